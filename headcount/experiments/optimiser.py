"""Adam and AdamW for a stack of models: one step on one tensor, with a rate for every model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim.adamw import adamw

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
    """torch.optim's Adam, or AdamW, in its fused form, where row i of `theta` has its own learning rate and decay.

    Rows that share both go through the kernel in one call. Each is a tensor of its own there, so that its bits do not
    depend on its neighbours.
    """

    def __init__(
        self,
        theta: Float[Tensor, "members parameters"],
        rates: Sequence[float],
        decays: Sequence[float],
        clip: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.theta, self.clip = theta, clip
        self.betas, self.epsilon = betas, epsilon
        self.mean = torch.zeros_like(theta)
        self.square = torch.zeros_like(theta)
        self.steps = torch.zeros(len(theta), device=theta.device)
        self.settings = list(zip(rates, decays, strict=True))
        self._arrange()

    def _arrange(self) -> None:
        """Which rows are updated together; gradients come as a new tensor each time, the rest stays in place."""
        together: dict[tuple[float, float], list[int]] = {}
        for row, setting in enumerate(self.settings):
            together.setdefault(setting, []).append(row)
        state = [list(tensor.unbind()) for tensor in (self.theta, self.mean, self.square, self.steps)]
        self.calls = [
            (rate, decay, rows, [[tensors[row] for row in rows] for tensors in state])
            for (rate, decay), rows in together.items()
        ]

    @torch.no_grad()
    def step(self, gradient: Float[Tensor, "members parameters"], factor: float) -> None:
        """One update with rates times `factor`."""
        if self.clip is not None:
            norm = gradient.norm(dim=1, keepdim=True)
            gradient = gradient * (self.clip / norm.clamp_min(1e-12)).clamp_max(1.0)
        gradients = gradient.unbind()
        first, second = self.betas
        for rate, decay, rows, (theta, mean, square, steps) in self.calls:
            adamw(
                theta, [gradients[row] for row in rows], mean, square, [], steps, fused=True, foreach=False,
                amsgrad=False, beta1=first, beta2=second, lr=rate * factor, weight_decay=decay, eps=self.epsilon,
                maximize=False,
            )  # fmt: skip

    def keep(self, members: Int[Tensor, " kept"], theta: Float[Tensor, "kept parameters"]) -> None:
        """Go on with some rows only, whose weights are now `theta`."""
        self.theta = theta
        self.mean, self.square, self.steps = self.mean[members], self.square[members], self.steps[members]
        self.settings = [self.settings[member] for member in members.tolist()]
        self._arrange()
