"""CPM-3 end to end: token ids in, the number of completing pairs out as a class (paper Sec. 4.3)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks.cpm3 import pair_counts
from headcount.tasks.described import Described
from headcount.tasks.task import Batch


class Cpm3Tokens(Described):
    """Tokens are integers drawn uniformly from low..high; at i count the ordered pairs (j1, j2), j1 = j2
    allowed, with x_i + G x_j1 + x_j2 = 0 mod M.

    Example, G = 10, M = 3: x = (1, 2, 3) is answered 3 3 3.

    Attributes:
        tokens: N.
        modulus, multiplier: M and G; only G mod M matters.
        low, high: range of the integers.
        encoding: "value" gives every integer an id, "residue" every residue modulo M.
        cap: the answer is the count itself, one of N^2 + 1 classes, or, with a cap, at most the cap.
    """

    name: Literal["cpm3_tokens"] = "cpm3_tokens"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    tokens: int = pydantic.Field(default=9, ge=1, le=4096)
    modulus: int = pydantic.Field(default=5, ge=2, le=4096)
    multiplier: int = pydantic.Field(default=12, ge=1)
    low: int = pydantic.Field(default=0, ge=0)
    high: int = pydantic.Field(default=99, le=65535)
    encoding: Literal["value", "residue"] = "value"
    cap: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.high <= self.low:
            raise ValueError(f"high = {self.high} must be above low = {self.low}")
        if self.cap is not None and self.cap > self.tokens**2:
            raise ValueError(f"cap = {self.cap} is above the largest count, {self.tokens**2}")
        return self

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def vocabulary(self) -> int:
        return 1 + (self.high - self.low + 1 if self.encoding == "value" else self.modulus)

    @property
    def input_width(self) -> int:
        return 1

    @property
    def output_width(self) -> int:
        return 1 + (self.tokens**2 if self.cap is None else self.cap)

    @property
    def asks(self) -> str:
        most = "" if self.cap is None else f", at most {self.cap}"
        return f"how many ordered pairs complete x_i + {self.multiplier} x_j1 + x_j2 = 0 mod {self.modulus}{most}"

    @property
    def theory(self) -> str:
        return (
            "one uniform head over one-hot residues gives their histogram, from which an MLP counts exactly; gathering "
            f"the values by fixed patterns takes N = {self.tokens} standard or ceil(sqrt N) interleaved heads"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        return self.encode(torch.randint(self.low, self.high + 1, (examples, self.tokens), generator=generator))

    def encode(self, values: Int[Tensor, "examples tokens"]) -> Batch:
        """Inputs and targets of given integers."""
        ids = 1 + (values - self.low if self.encoding == "value" else values.remainder(self.modulus))
        counts = pair_counts(values, self.multiplier, self.modulus)
        return Batch(ids[..., None], counts.clamp_max(self.output_width - 1))

    def _residues(self, inputs: Tensor) -> Tensor:
        ids = inputs[..., 0] - 1
        return (ids + self.low).remainder(self.modulus) if self.encoding == "value" else ids

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """`own residue and its count`: how often x_i occurs modulo M."""
        residues = self._residues(batch.inputs)
        counts = torch.zeros(len(residues), self.modulus, dtype=torch.long)
        counts.scatter_add_(1, residues, torch.ones_like(residues))
        return {"own residue and its count": torch.stack([residues, counts.gather(1, residues)], -1)}

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        """`mean count`: N^2 / M, rounded; `without order`: the count for G = 1."""
        residues, most = self._residues(batch.inputs), self.output_width - 1
        mean = min(round(self.tokens**2 / self.modulus), most)
        return {
            "mean count": torch.full_like(batch.targets, mean),
            "without order": pair_counts(residues, 1, self.modulus).clamp_max(most),
        }

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        G, M = self.multiplier, self.modulus
        x = (inputs[:, 0] - 1 + (self.low if self.encoding == "value" else 0)).tolist()
        text = f"x       {' '.join(map(str, x))}\nanswers {' '.join(map(str, targets.tolist()))}"
        pairs = ((i, a, b) for i in x for a in x for b in x if (i + G * a + b) % M == 0)
        if (found := next(pairs, None)) is None:
            return text
        i, a, b = found
        return f"{text}\nfor instance {i} + {G} * {a} + {b} = {i + G * a + b} = {(i + G * a + b) // M} * {M}"
