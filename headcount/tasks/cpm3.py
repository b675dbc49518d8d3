"""CPM-3: count ordered pairs of tokens that complete a sum to zero modulo M (paper Sec. 4.3, B.3)."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import pydantic
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.tasks.task import Batch, Task


def order_sensitive(multiplier: int, modulus: int) -> bool:
    """Whether swapping two different values can change x_i + G a + b = 0 mod M.

    Swapping a and b changes the sum by (G - 1)(a - b), and a - b = 1 occurs, so the predicate is
    symmetric exactly when G = 1 mod M. The paper asks for G > 2M instead, which decides nothing.
    """
    return multiplier % modulus != 1 % modulus


def pair_counts(values: Int[Tensor, "*batch tokens"], multiplier: int, modulus: int) -> Int[Tensor, "*batch tokens"]:
    """For each i the number of ordered pairs (j1, j2), j1 = j2 allowed, with
    x_i + G x_j1 + x_j2 = 0 mod M, in O(N + M^2) a sequence.

    Only the histogram c of residues matters: label_i = sum_s c[s] c[(-x_i - G s) mod M].
    Example: x = (1, 2, 3), G = 10, M = 3 gives (3, 3, 3).
    """
    residues = values.remainder(modulus)
    histogram = torch.zeros(*residues.shape[:-1], modulus, dtype=torch.long, device=values.device)
    histogram.scatter_add_(-1, residues, torch.ones_like(residues))
    every = torch.arange(modulus, device=values.device)
    partner = (-every[:, None] - multiplier * every[None, :]).remainder(modulus)
    by_residue = (histogram[..., None, :] * histogram[..., partner]).sum(-1)
    return by_residue.gather(-1, residues)


def pair_counts_brute(values: Int[np.ndarray, " tokens"], multiplier: int, modulus: int) -> list[int]:
    """The definition of `pair_counts`, enumerated: O(N^3)."""
    numbers = [int(value) for value in values]
    return [sum((x + multiplier * a + b) % modulus == 0 for a in numbers for b in numbers) for x in numbers]


class Cpm3(Task):
    """Tokens are integers drawn uniformly from low..high.

    Inputs are the standardised values (scalar) or one-hot residues modulo M. Targets are either the
    `workspace` of the proof, where position i holds all N cyclic shifts x_i, x_{i+1}, .., or the
    `count` itself, divided by N^2 / M, its mean for uniform residues.

    Example, workspace, N = 3: x = (1, 2, 3) gives rows (1 2 3), (2 3 1), (3 1 2), standardised.
    """

    name: Literal["cpm3"] = "cpm3"
    target: Literal["workspace", "count"] = "workspace"
    tokens: int = pydantic.Field(default=9, ge=2, le=4096)
    modulus: int = pydantic.Field(default=5, ge=2, le=4096)
    multiplier: int = pydantic.Field(default=12, ge=1)
    low: int = 0
    high: int = 99
    encoding: Literal["scalar", "residue"] = "scalar"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.high <= self.low:
            raise ValueError(f"high = {self.high} must be above low = {self.low}")
        if self.low < 0:
            raise ValueError(f"low = {self.low}: tokens are natural numbers")
        if self.target == "workspace" and self.encoding == "residue":
            raise ValueError("the workspace holds token values, so its encoding is 'scalar'")
        return self

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def input_width(self) -> int:
        return 1 if self.encoding == "scalar" else self.modulus

    @property
    def output_width(self) -> int:
        return self.tokens if self.target == "workspace" else 1

    @property
    def order_sensitive(self) -> bool:
        """See `order_sensitive`."""
        return order_sensitive(self.multiplier, self.modulus)

    @property
    def count_unit(self) -> float:
        """Mean label for uniform residues, N^2 / M: the unit of the `count` target."""
        return self.tokens**2 / self.modulus

    def standardise(self, values: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens"]:
        """Token values with mean 0 and variance 1 under the uniform distribution on low..high."""
        span = self.high - self.low + 1
        return (values - (self.low + self.high) / 2) / ((span**2 - 1) / 12) ** 0.5

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        values = torch.randint(self.low, self.high + 1, (examples, self.tokens), generator=generator)
        return self.encode(values)

    def encode(self, values: Int[Tensor, "examples tokens"]) -> Batch:
        """Inputs and targets of given token values."""
        scalars = self.standardise(values)
        if self.encoding == "scalar":
            inputs = scalars[..., None]
        else:
            inputs = torch.nn.functional.one_hot(values.remainder(self.modulus), self.modulus).float()
        if self.target == "workspace":
            positions = torch.arange(self.tokens)
            targets = scalars[:, (positions[:, None] + positions[None, :]) % self.tokens]
        else:
            targets = pair_counts(values, self.multiplier, self.modulus)[..., None] / self.count_unit
        return Batch(inputs.float(), targets.float())

    def accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        if self.target == "workspace":
            return None
        right = (outputs * self.count_unit).round() == (targets * self.count_unit).round()
        return right.double().mean((-1, -2, -3))
