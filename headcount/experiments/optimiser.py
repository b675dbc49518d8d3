"""Adam and AdamW for a stack of models: one step on one tensor, with a rate for every model."""

from __future__ import annotations

import math

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
    """The update of torch.optim.Adam and AdamW, where row i of `theta` has its own learning rate.

    torch's optimisers take one rate a parameter group, which would cut the stack into pieces.
    """

    def __init__(
        self,
        theta: Float[Tensor, "members parameters"],
        rates: Float[Tensor, " members"],
        decays: Float[Tensor, " members"],
        clip: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.theta, self.rates, self.decays, self.clip = theta, rates[:, None], decays[:, None], clip
        self.betas, self.epsilon, self.steps = betas, epsilon, 0
        self.decayed = bool(decays.any())
        self.mean = torch.zeros_like(theta)
        self.square = torch.zeros_like(theta)

    @torch.no_grad()
    def step(self, gradient: Float[Tensor, "members parameters"], factor: float) -> None:
        """One update with rates times `factor`."""
        if self.clip is not None:
            norm = gradient.norm(dim=1, keepdim=True)
            gradient = gradient * (self.clip / norm.clamp_min(1e-12)).clamp_max(1.0)
        self.steps += 1
        first, second = self.betas
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = self.square.sqrt().mul_((1 - second**self.steps) ** -0.5).add_(self.epsilon)
        rates = self.rates * factor
        if self.decayed:
            self.theta.mul_(1 - rates * self.decays)
        # One product for the whole stack: rates differ by row, so they cannot be an addcdiv's single number.
        self.theta.sub_(self.mean.div(scale).mul_(rates / (1 - first**self.steps)))

    def keep(self, members: Int[Tensor, " kept"], theta: Float[Tensor, "kept parameters"]) -> None:
        """Go on with some rows only, whose weights are now `theta`."""
        self.theta = theta
        self.rates, self.decays = self.rates[members], self.decays[members]
        self.mean, self.square = self.mean[members], self.square[members]
