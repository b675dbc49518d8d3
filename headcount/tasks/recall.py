"""Multi-query associative recall, MQAR (Arora et al., arXiv 2312.04927)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch
from headcount.tasks.tokens import distinct


class Recall(Described):
    """Key-value pairs k1 v1 k2 v2 .., then the keys again at scattered places; at each of these say its value.

    Example, T = 8, D = 2: 3 9 5 12 5 . 3 . is answered - - - - 12 - 9 -, a dot being filler.

    Keys are different ids from 1 .. C/2 - 1, values from C/2 .. C - 1. Queries stand at even offsets of the
    second part; the i-th of its S slots is drawn without replacement with probability ~ power i^(power - 1),
    so that a small power puts queries near its start. Answers are ids below C; id C is the blank.

    Attributes:
        tokens: T, even.
        alphabet: C, even and above T.
        pairs: D.
        passes: how often the list of pairs is told.
        power: 1 spreads the queries evenly; published 0.01.
        filler: "random" fills the rest with ids of the whole alphabet, which may be keys; "blank" with blanks,
            as in the published figure.
    """

    name: Literal["recall"] = "recall"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    tokens: int = pydantic.Field(default=64, ge=4, le=65536)
    alphabet: int = pydantic.Field(default=8192, ge=6, le=1 << 20)
    pairs: int = pydantic.Field(default=4, ge=1, le=4096)
    passes: int = pydantic.Field(default=1, ge=1, le=64)
    power: float = pydantic.Field(default=0.01, gt=0, le=1)
    filler: Literal["random", "blank"] = "random"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens % 2 or self.alphabet % 2:
            raise ValueError(f"tokens = {self.tokens} and alphabet = {self.alphabet} must both be even")
        if self.alphabet <= self.tokens:
            raise ValueError(f"alphabet = {self.alphabet} must be above tokens = {self.tokens}")
        if 2 * self.pairs * (self.passes + 1) > self.tokens:
            needed = 2 * self.pairs * (self.passes + 1)
            raise ValueError(f"tokens = {self.tokens} cannot hold {self.pairs} pairs and queries; {needed} are needed")
        return self

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def vocabulary(self) -> int:
        return self.alphabet + 1

    @property
    def input_width(self) -> int:
        return 1

    @property
    def output_width(self) -> int:
        return self.alphabet

    @property
    def told(self) -> int:
        """Tokens of the first part."""
        return 2 * self.pairs * self.passes

    @property
    def slots(self) -> int:
        """Places a query can stand at, S."""
        return (self.tokens - self.told) // 2

    def slot_weights(self) -> Tensor:
        """Probability of each slot to be drawn first."""
        weights = torch.arange(1, self.slots + 1, dtype=torch.float64) ** (self.power - 1)
        return weights / weights.sum()

    @property
    def asks(self) -> str:
        return "the value of each key that comes again"

    @property
    def theory(self) -> str:
        return (
            "two standard layers of one head can: one looks one token back, one finds the key; a recurrent state "
            "must grow linearly in the number of pairs"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        half = self.alphabet // 2
        keys = 1 + distinct(examples, self.pairs, half - 1, generator)
        values = half + distinct(examples, self.pairs, half, generator)
        # The largest of log p + Gumbel noise, one after the other, is drawing without replacement.
        uniform = torch.rand(examples, self.slots, generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.clamp_min(1e-300).log()).log()
        chosen = (self.slot_weights().log() + gumbel).topk(self.pairs, -1).indices
        noise = torch.randint(self.alphabet, (examples, self.tokens), generator=generator)
        return self.encode(keys, values, chosen, noise if self.filler == "random" else torch.zeros_like(noise))

    def encode(
        self,
        keys: Int[Tensor, "examples pairs"],
        values: Int[Tensor, "examples pairs"],
        slots: Int[Tensor, "examples pairs"],
        noise: Int[Tensor, "examples tokens"],
    ) -> Batch:
        """Inputs and targets; the key of pair i is asked in slot slots[i], and what is left shows the noise."""
        ids = noise.masked_fill(noise == 0, self.alphabet)
        ids[:, : self.told] = torch.stack([keys, values], -1).flatten(1).repeat(1, self.passes)
        places = self.told + 2 * slots
        targets = torch.full_like(ids, IGNORED).scatter_(1, places, values)
        return Batch(ids.scatter_(1, places, keys)[..., None], targets)

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        """Some value of the context is right once in D times; so is the one of the pair in query order."""
        ids = batch.inputs[..., 0]
        values = ids[:, 1 : 2 * self.pairs : 2]
        turn = ((batch.targets != IGNORED).cumsum(1) - 1).clamp(0, self.pairs - 1)
        return {
            "first value": values[:, :1].expand_as(ids),
            "last value": values[:, -1:].expand_as(ids),
            "values in the order told": values.gather(1, turn),
        }

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        ids = [str(number) if number < self.alphabet else "." for number in inputs[:, 0].tolist()]
        asked = (targets != IGNORED).nonzero()[:, 0].tolist()
        answers = "\n".join(f"at {place}: key {ids[place]} -> {int(targets[place])}" for place in asked)
        return f"pairs {' '.join(ids[: self.told])}\nthen  {' '.join(ids[self.told :])}\n{answers}"
