"""Match-2 and Match-3: tokens that complete a sum to zero modulo M (arXiv 2306.02896; 2501.19215, App. C)."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headcount.config import BadInput
from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch
from headcount.tasks.tokens import shuffled

BINS = 4
"""The published sample holds equally many sequences with 0-25, 25-50, 50-75 and 75-100 % positive labels."""

_MOST_PERCENT = {2: 100, 3: 39}
"""Largest share of positive labels, in percent, that the construction aims at. Three-token sums overshoot by
themselves: a new value also completes earlier ones."""

_ATTEMPTS = 300


def matches(
    values: Int[Tensor, "*batch tokens"], present: Bool[Tensor, "*batch tokens"], order: int, modulus: int
) -> Bool[Tensor, "*batch tokens"]:
    """For each i whether order - 1 tokens j, k, .. (repeats and i itself allowed) have
    x_i + x_j + x_k + .. = 0 mod M, in O(N + M^2) a sequence.

    Example: x = (1, 2, 3), M = 6, order 3: 1 + 2 + 3 = 0 and 2 + 2 + 2 = 0, so all three are True.
    """
    residues = values.remainder(modulus)
    found = torch.zeros(*values.shape[:-1], modulus + 1, dtype=torch.bool)
    found.scatter_(-1, residues.where(present, modulus), True)
    found = found[..., :modulus]
    sums = found
    for _ in range(order - 2):
        shifted = (sums.roll(residue, -1) & found[..., residue, None] for residue in range(modulus))
        sums = reduce(torch.logical_or, shifted)
    return sums.gather(-1, (-residues).remainder(modulus)) & present


def matches_brute(values: list[int], order: int, modulus: int) -> list[bool]:
    """The definition of `matches`, enumerated: O(N^order)."""
    return [any((x + sum(rest)) % modulus == 0 for rest in product(values, repeat=order - 1)) for x in values]


class Match(Described):
    """Tokens are values 1 .. M - 1; at i say whether other tokens complete x_i to a sum of zero modulo M.

    Example, Match-3, M = 37: x = (1, 10, 26, 4) is answered 1 1 1 0, since 1 + 10 + 26 = 37.

    Attributes:
        order: tokens in a sum, i included: 2 or 3.
        modulus: M.
        smallest, largest: the number of tokens is uniform between them.
        construction: "binned" builds sequences with a wanted share of positive labels and holds equally many
            in four bins of that share; "independent" draws every value uniformly, which at the default sizes
            makes every Match-3 label positive.
        permutations: "binned" only; each built sequence appears about so often, in random orders, as in the
            published sample of 50 000 orders of 5 000 sequences. Sequences are built anew for every draw
            and only then permuted, so that splits, which are separate draws, share no multiset of values.
    """

    name: Literal["match"] = "match"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "binary"
    order: Literal[2, 3] = 3
    modulus: int = pydantic.Field(default=37, ge=3, le=1024)
    smallest: int = pydantic.Field(default=30, ge=2, le=4096)
    largest: int = pydantic.Field(default=35, ge=2, le=4096)
    construction: Literal["binned", "independent"] = "binned"
    permutations: int = pydantic.Field(default=10, ge=1, le=1000)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.largest < self.smallest:
            raise ValueError(f"largest = {self.largest} is below smallest = {self.smallest}")
        if self.construction == "independent" and "permutations" in self.model_fields_set and self.permutations != 10:
            raise ValueError("permutations belong to construction 'binned'")
        return self

    @property
    def length(self) -> int:
        return self.largest

    @property
    def vocabulary(self) -> int:
        return self.modulus

    @property
    def input_width(self) -> int:
        return 1

    @property
    def output_width(self) -> int:
        return 1

    @property
    def asks(self) -> str:
        others = "a token j completes" if self.order == 2 else "tokens j, k complete"
        return f"whether {others} token i to a sum of 0 modulo {self.modulus}, for every i"

    @property
    def theory(self) -> str:
        if self.order == 2:
            return "one standard head of constant width can"
        return (
            "one standard layer needs H d p almost linear in N (width d, p bits); one third-order or Strassen head of "
            "constant width can; so can one uniform head of width M with an MLP, from the histogram"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        if self.construction == "independent":
            sizes = torch.randint(self.smallest, self.largest + 1, (examples,), generator=generator)
            values = torch.randint(1, self.modulus, (examples, self.largest), generator=generator)
            return self.encode(values.where(torch.arange(self.largest) < sizes[:, None], 0))
        values = self._balanced(examples, generator)
        order = torch.rand(values.shape, generator=generator).masked_fill(values == 0, 2.0).argsort(-1)
        return self.encode(values.gather(1, order))

    def encode(self, values: Int[Tensor, "examples tokens"]) -> Batch:
        """Inputs and targets of given values, 0 being padding."""
        present = values > 0
        answer = matches(values, present, self.order, self.modulus)
        return Batch(values[..., None], answer.long().masked_fill(~present, IGNORED)[..., None])

    def _balanced(self, examples: int, generator: torch.Generator) -> Int[Tensor, "examples tokens"]:
        """Built sequences with repetition, equally many of each bin, in random order."""
        bins = shuffled(1, examples, generator)[0] % BINS
        quota = -(-examples // (BINS * self.permutations))
        pools: list[list[Tensor]] = [[] for _ in range(BINS)]
        for _ in range(_ATTEMPTS):
            built = self._build(max(64, BINS * quota), generator)
            positive = matches(built, built > 0, self.order, self.modulus).sum(-1)
            share = (100 * positive) // (built > 0).sum(-1)
            place = (share * BINS // 100).clamp_max(BINS - 1)
            for index, pool in enumerate(pools):
                pool.extend(built[place == index][: quota - len(pool)])
            if all(len(pool) == quota for pool in pools):
                break
        else:
            poorest = min(range(BINS), key=lambda index: len(pools[index]))
            raise BadInput(
                f"match: modulus = {self.modulus} with {self.smallest} to {self.largest} tokens hardly ever gives "
                f"{25 * poorest}-{25 * poorest + 25} % positive labels; use construction 'independent'"
            )
        chosen = torch.stack([torch.stack(pool) for pool in pools])
        # Every sequence of a bin is used before any is used again.
        turn = (torch.nn.functional.one_hot(bins, BINS).cumsum(0).gather(1, bins[:, None])[:, 0] - 1) % quota
        return chosen[bins, turn]

    def _build(self, count: int, generator: torch.Generator) -> Int[Tensor, "count tokens"]:
        """Grow sequences value by value towards a wanted number of positive labels.

        At marked places a value is taken that the values so far complete, elsewhere and as soon as enough
        labels are positive one that they do not; if there is no such value, any other.
        """
        M, order = self.modulus, self.order
        sizes = torch.randint(self.smallest, self.largest + 1, (count,), generator=generator)
        percent = torch.randint(1, _MOST_PERCENT[order] + 1, (count,), generator=generator)
        wanted = sizes * percent // 100
        draws = torch.rand(count, self.largest, generator=generator)
        places = torch.minimum(2 + (draws * (sizes[:, None] - 2)).long(), sizes[:, None] - 1).clamp_min(0)
        places = places.where(torch.arange(self.largest) < wanted[:, None], self.largest)
        marked = torch.zeros(count, self.largest + 1, dtype=torch.bool).scatter_(1, places, True)
        every = torch.arange(M)
        negative = (-every).remainder(M)
        alone = (order * every).remainder(M) == 0
        counts = torch.zeros(count, M, dtype=torch.long)
        sums = torch.zeros(count, M, dtype=torch.bool)
        values = torch.zeros(count, self.largest, dtype=torch.long)
        for place in range(self.largest):
            positive = (counts * sums[:, negative]).sum(-1)
            completed = sums[:, negative] | (alone if place else torch.zeros_like(alone))
            seek = marked[:, place] & (positive < wanted)
            fits = completed == seek[:, None]
            fits[:, 0] = False
            fits = fits | ~fits.any(-1, keepdim=True)
            fits[:, 0] = False
            chosen = torch.rand(count, M, generator=generator).masked_fill(~fits, -1.0).argmax(-1)
            inside = place < sizes
            values[:, place] = chosen.where(inside, 0)
            counts.scatter_add_(1, chosen[:, None], inside.long()[:, None])
            present = counts > 0
            if order == 2:
                sums = present
            else:
                sums = sums | (present.gather(1, (every - chosen[:, None]).remainder(M)) & inside[:, None])
        return values

    def comparable(self, inputs: Tensor) -> Tensor:
        return inputs.sort(1).values

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """`count of positives` knows how many labels of the sequence are positive, but not which."""
        values = batch.inputs[..., 0]
        known = torch.stack([(batch.targets[..., 0] == 1).sum(-1), (values > 0).sum(-1)], -1)
        return {"count of positives": known[:, None].expand(-1, self.length, -1)}

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        values = inputs[inputs[:, 0] > 0, 0].tolist()
        labels = targets[: len(values), 0].tolist()
        text = f"values  {' '.join(f'{value:2d}' for value in values)}\nanswers {' '.join(f'{x:2d}' for x in labels)}"
        if 1 not in labels:
            return text
        first, M = values[labels.index(1)], self.modulus
        rest = next(r for r in product(values, repeat=self.order - 1) if (first + sum(r)) % M == 0)
        total = first + sum(rest)
        return f"{text}\nfor instance {' + '.join(map(str, (first, *rest)))} = {total} = {total // M} * {M}"
