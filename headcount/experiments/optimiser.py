"""Adam and AdamW for a stack of models: one step on one tensor, with a rate for every model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

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

    @torch.inference_mode()
    def step(
        self, gradients: Sequence[Float[Tensor, "some numbers"]], factor: float, members: slice | None = None
    ) -> None:
        """One update with rates times `factor`, of some members or all."""
        first, last, _ = (members or slice(None)).indices(len(self.settings))
        if (first, last) not in self.rows:
            some = slice(first, last)
            state = [[block[some] for block in blocks] for blocks in (self.weights, self.means, self.squares)]
            self.rows[first, last] = _Rows(self.settings[some], self.steps[some], *state)
        rows = self.rows[first, last]
        rows.steps.add_(1)
        if self.clip is not None:
            norm = torch.stack([block.norm(dim=1) for block in gradients]).norm(dim=0)[:, None]
            gradients = [block * (self.clip / norm.clamp_min(1e-12)).clamp_max(1.0) for block in gradients]
        beta1, beta2 = self.betas
        for (rate, decay), given, weights, means, squares, steps in rows.calls(gradients):
            torch._fused_adamw_(
                weights, given, means, squares, [], steps, amsgrad=False, maximize=False, beta1=beta1, beta2=beta2,
                lr=rate * factor, weight_decay=decay, eps=self.epsilon,
            )  # fmt: skip

    def keep(self, members: Int[Tensor, " kept"], weights: Sequence[Float[Tensor, "kept numbers"]]) -> None:
        """Go on with some rows only, whose weights are now `weights`."""
        self.weights = weights
        self.means, self.squares = ([block[members] for block in blocks] for blocks in (self.means, self.squares))
        self.steps = self.steps[members]
        self.settings = [self.settings[member] for member in members.tolist()]
        self.rows.clear()


class _Rows:
    """Members that are updated at once, as lists of tensors for the kernel: one call for every pair of rate and decay."""

    def __init__(
        self, settings: Sequence[tuple[float, float]], steps: Float[Tensor, " some"], *state: Sequence[Tensor]
    ) -> None:
        self.steps = steps
        self.gradients: Sequence[Tensor] = ()
        self.given: list[list[Tensor]] = []
        self.members = {setting: [i for i, own in enumerate(settings) if own == setting] for setting in settings}
        self.state = [self._lists(blocks) for blocks in (*state, [steps] * len(state[0]))]

    def _lists(self, blocks: Sequence[Tensor]) -> list[list[Tensor]]:
        rows = [block.unbind() for block in blocks]
        return [[block[member] for block in rows for member in members] for members in self.members.values()]

    def calls(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Any, ...]]:
        """Rate and decay, gradients, and the state that they update."""
        # A recorded step gives the same tensors every time.
        if [*map(id, gradients)] != [*map(id, self.gradients)]:
            self.gradients, self.given = gradients, self._lists(gradients)
        return zip(self.members, self.given, *self.state, strict=True)
