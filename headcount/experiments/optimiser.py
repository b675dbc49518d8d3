"""Adam and AdamW for a stack of models: one step on one tensor, with a rate for every model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.experiments.trial import TrainingConfig


def schedule(step: int, config: TrainingConfig) -> float:
    """Factor on the peak rate at `step` (from 0): linear warm-up, then constant or cosine to zero,
    the latter starting again `restarts` times in periods of equal length."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    period = max(config.steps - config.warmup, 1) / (config.restarts + 1)
    return 0.5 * (1 + math.cos(math.pi * ((step - config.warmup) % period) / period))


class StackedAdam:
    """torch.optim's Adam, or AdamW, in its fused form, where every row has its own learning rate and decay.

    Rows that share both go through the kernel in one call. Each is a tensor of its own there, so that its bits do not
    depend on its neighbours. The kernel is called as it is: what `torch.optim.adamw` does around it takes half as long
    as the update.

    Args:
        weights: blocks with one row for each model; updated in place.
        rates, decays: for every row.
        clip: largest norm of a row's gradient, over all blocks.
    """

    def __init__(
        self,
        weights: Sequence[Float[Tensor, "members numbers"]],
        rates: Sequence[float],
        decays: Sequence[float],
        clip: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.weights, self.clip = weights, clip
        self.betas, self.epsilon = betas, epsilon
        self.means = [torch.zeros_like(block) for block in weights]
        self.squares = [torch.zeros_like(block) for block in weights]
        self.steps = torch.zeros(len(rates), device=weights[0].device)
        self.settings = list(zip(rates, decays, strict=True))
        self.rows: dict[tuple[int, int], _Rows] = {}

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Float[Tensor, "some numbers"]], factor: float, members: slice | None = None
    ) -> None:
        """One update with rates times `factor`, of some members or all."""
        first, last, _ = (members or slice(None)).indices(len(self.settings))
        if (first, last) not in self.rows:
            self.rows[first, last] = self._rows(slice(first, last))
        rows = self.rows[first, last]
        rows.steps.add_(1)
        if self.clip is not None:
            norm = torch.stack([block.norm(dim=1) for block in gradients]).norm(dim=0)[:, None]
            gradients = [block * (self.clip / norm.clamp_min(1e-12)).clamp_max(1.0) for block in gradients]
        given = [block.unbind() for block in gradients]
        beta1, beta2 = self.betas
        for (rate, decay), some, (weights, means, squares, steps) in rows.calls:
            torch._fused_adamw_(
                weights, [block[row] for block in given for row in some], means, squares, [], steps, amsgrad=False,
                maximize=False, beta1=beta1, beta2=beta2, lr=rate * factor, weight_decay=decay, eps=self.epsilon,
            )  # fmt: skip

    def _rows(self, members: slice) -> _Rows:
        together: dict[tuple[float, float], list[int]] = {}
        for row, setting in enumerate(self.settings[members]):
            together.setdefault(setting, []).append(row)
        steps = [self.steps[members]] * len(self.weights)
        state = [
            [block[members].unbind() for block in blocks] for blocks in (self.weights, self.means, self.squares)
        ] + [[block.unbind() for block in steps]]
        calls = [
            (setting, some, [[block[row] for block in blocks for row in some] for blocks in state])
            for setting, some in together.items()
        ]
        return _Rows(steps[0], calls)

    def keep(self, members: Int[Tensor, " kept"], weights: Sequence[Float[Tensor, "kept numbers"]]) -> None:
        """Go on with some rows only, whose weights are now `weights`."""
        self.weights = weights
        self.means, self.squares = ([block[members] for block in blocks] for blocks in (self.means, self.squares))
        self.steps = self.steps[members]
        self.settings = [self.settings[member] for member in members.tolist()]
        self.rows.clear()


class _Rows(NamedTuple):
    """Members that are updated at once: how many steps each has had, and for every pair of rate and decay the rows that
    have it, with their weights, means, squares and steps. Gradients come anew each time; all this stays in place."""

    steps: Float[Tensor, " some"]
    calls: list[tuple[tuple[float, float], list[int], list[list[Tensor]]]]
