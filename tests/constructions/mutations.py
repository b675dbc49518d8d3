"""One-step changes of a compiled module, each of which its construction's check must notice."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from headcount.theory.constructions import Construction

Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A construction with one change, and where it was made."""

    original: Construction
    construction: Construction
    parameter: str
    kind: str
    index: Index

    def __str__(self) -> str:
        return f"{self.original.name}: {self.kind} {self.parameter}{list(self.index)}"


def mutants(construction: Construction, entries: int = 2, seed: int = 0) -> Iterator[Mutant]:
    """For every nonzero parameter tensor: negate, double or swap some of its nonzero entries, set some of its
    zeros to 1, rotate its heads; and drop the mask where there is one."""
    random = np.random.default_rng(seed)

    def mutate(name: str, kind: str, index: Index, value: Tensor) -> Mutant:
        module = copy.deepcopy(construction.module)
        module.get_parameter(name).data.copy_(value)
        return Mutant(construction, dataclasses.replace(construction, module=module), name, kind, index)

    for name, parameter in construction.module.named_parameters():
        weight = parameter.detach()
        if not weight.any():
            continue
        for index in pick(weight != 0, entries, random):
            for kind, factor in (("negate", -1.0), ("double", 2.0)):
                changed = weight.clone()
                changed[index] *= factor
                yield mutate(name, kind, index, changed)
            if (other := partner(weight, index)) is not None:
                changed = weight.clone()
                changed[index], changed[other] = weight[other], weight[index]
                yield mutate(name, "swap", index, changed)
        for index in pick(weight == 0, entries, random):
            changed = weight.clone()
            changed[index] = 1.0
            yield mutate(name, "bump", index, changed)
        rolled = weight.roll(1, 0)
        if not torch.equal(rolled, weight):
            yield mutate(name, "rotate", (), rolled)
    attention = attention_of(construction.module)
    if attention.config.mask != "none":
        module = copy.deepcopy(construction.module)
        attention_of(module).config = attention.config.changed(mask="none")
        yield Mutant(construction, dataclasses.replace(construction, module=module), "mask", "drop", ())


def pick(where: Tensor, entries: int, random: np.random.Generator) -> list[Index]:
    """Up to `entries` of the marked positions."""
    marked = where.nonzero().tolist()
    chosen = random.permutation(len(marked))[:entries]
    return [tuple(marked[position]) for position in chosen]


def partner(weight: Tensor, index: Index) -> Index | None:
    """The next entry along the last axis with another value (up to rounding), else along an earlier axis."""
    for axis in reversed(range(weight.dim())):
        for step in range(1, weight.shape[axis]):
            other = (*index[:axis], (index[axis] + step) % weight.shape[axis], *index[axis + 1 :])
            if abs(weight[other] - weight[index]) > 1e-9:
                return other
    return None


def attention_of(module: nn.Module) -> nn.Module:
    """The attention layer inside a compiled module."""
    return next(part for part in module.modules() if hasattr(part, "config"))


def on_a_path(construction: Construction, parameter: str) -> Tensor:
    """Which entries of a parameter lie on a path of nonzero weights from the input to an output that is read.

    With absolute values for weights, ones for inputs and a linear score every path contributes a product of
    nonnegative factors and none cancel, so an entry is off all paths exactly where the derivative is zero.
    A step activation has no derivative: there the attention layer alone is followed, all of whose outputs it
    reads, and every entry behind it counts as on a path.
    """
    module = copy.deepcopy(construction.module)
    for weight in module.parameters():
        weight.data.abs_()
    attention = attention_of(module)
    weight = module.get_parameter(parameter)
    attention.config = attention.config.changed(score="linear", mask="none", rope="none", inverse_temperature=None)
    whole = attention if isinstance(module, nn.Sequential) else module
    whole(torch.ones_like(construction.inputs[:1]))[..., : construction.read].sum().backward()
    return torch.ones_like(weight, dtype=torch.bool) if weight.grad is None else weight.grad != 0
