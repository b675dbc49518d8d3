"""Random draws that several token tasks share."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_CELLS = 1 << 22
"""Numbers drawn at once when every member of a large set gets its own."""


def distinct(
    examples: int,
    count: int,
    size: int,
    generator: torch.Generator,
    banned: Bool[Tensor, "examples size"] | None = None,
) -> Int[Tensor, "examples count"]:
    """For each example `count` different numbers below `size`, in random order, none of them banned.

    Few numbers out of many are drawn freely and redrawn while some are equal, which leaves them uniform
    over the different ones; otherwise the numbers with the largest of `size` random keys are taken.
    """
    if banned is None and count * count <= size:
        chosen = torch.randint(size, (examples, count), generator=generator)
        while len(again := _repeats(chosen).nonzero()[:, 0]):
            chosen[again] = torch.randint(size, (len(again), count), generator=generator)
        return chosen
    parts = []
    for start in range(0, examples, step := max(1, _CELLS // size)):
        keys = torch.rand(min(step, examples - start), size, generator=generator)
        if banned is not None:
            keys.masked_fill_(banned[start : start + step], -1.0)
        parts.append(keys.topk(count, -1).indices)
    return torch.cat(parts) if parts else torch.zeros(0, count, dtype=torch.long)


def _repeats(numbers: Int[Tensor, "examples count"]) -> Bool[Tensor, " examples"]:
    ordered = numbers.sort(-1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(-1)


def shuffled(examples: int, count: int, generator: torch.Generator) -> Int[Tensor, "examples count"]:
    """A random permutation of 0 .. count - 1 for each example."""
    return torch.rand(examples, count, generator=generator).argsort(-1)
