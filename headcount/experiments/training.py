"""Train a stack of trials that differ in seed and rates only, and measure what they reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.config import BadInput
from headcount.experiments.optimiser import StackedAdam, schedule
from headcount.experiments.trial import Trial
from headcount.models import Ensemble, build_ensemble
from headcount.tasks import Task, random_stream
from headcount.tasks.task import Measure, Split

CHUNK = 32
"""Training steps whose data are drawn in one call. Part of what defines the data: see trial.SCHEMA."""

EVALUATION_SLICE = 256
"""Held-out examples that pass through the models at once."""


@dataclass(frozen=True)
class Outcome:
    """What one trial gave.

    Attributes:
        status: done, nan (the last weights are not finite), or failed (an exception).
        error: relative error of the last weights on the test sample; NaN if not finite.
        error_stderr: its standard error over test examples.
        best_error, best_stderr, best_step: the same for the weights with the least validation error.
        accuracy, best_accuracy: share of exactly right answers, where the task has such.
        weight_norm: Euclidean norm of all last weights.
        parameters: trained numbers, counted on the module.
        seconds: wall time of the stack divided by its members.
        curve: (step, training loss, validation error).
        traceback: of the exception when failed.
    """

    status: str
    error: float = float("nan")
    error_stderr: float = float("nan")
    best_error: float = float("nan")
    best_stderr: float = float("nan")
    best_step: int = 0
    accuracy: float | None = None
    best_accuracy: float | None = None
    weight_norm: float = float("nan")
    parameters: int = 0
    seconds: float = 0.0
    stack: int = 1
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    traceback: str | None = None


def resolve_device(name: str) -> torch.device:
    """The device for "cpu", "cuda" or "auto" (cuda if there is one).

    Raises:
        BadInput: if cuda is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("device 'cuda' is not available on this machine; use 'cpu' or 'auto'")
    if name not in ("cpu", "cuda"):
        raise BadInput(f"unknown device '{name}'; allowed: auto, cpu, cuda")
    return torch.device(name)


def initial_weights(seed: int) -> torch.Generator:
    """The stream a model's weights are drawn from: a function of the trial's seed alone."""
    words = np.random.SeedSequence([seed, 0x1817]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


class _Data:
    """Examples of the seeds of a stack, shaped (seeds, .., examples, tokens, width), on the device."""

    def __init__(self, task: Task, seeds: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
        self.task, self.seeds, self.device, self.dtype = task, seeds, device, dtype

    def draw(self, split: Split, examples: int, chunk: int = 0) -> tuple[Tensor, Tensor]:
        batches = [self.task.draw(split, examples, random_stream(seed, split, chunk)) for seed in self.seeds]
        inputs = torch.stack([batch.inputs for batch in batches])
        targets = torch.stack([batch.targets for batch in batches])
        return self._place(inputs), self._place(targets)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def train(
    trials: Sequence[Trial], device: torch.device, on_step: Callable[[int], None] = lambda step: None
) -> list[Outcome]:
    """Train all `trials`, which must share `Trial.group`, as one stack.

    Every member sees the data and starts from the weights that its own seed defines, so its result
    is that of training it alone, up to rounding. A member that becomes NaN does not touch others.

    Args:
        on_step: called after every optimiser step with the number of steps done.
    """
    started = time.perf_counter()
    first, config = trials[0], trials[0].training
    assert all(trial.group == first.group for trial in trials)
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    seeds = sorted({trial.seed for trial in trials})
    member_seed = torch.tensor([seeds.index(trial.seed) for trial in trials], device=device)
    data = _Data(first.task, seeds, device, dtype)
    ensemble = build_ensemble(first.build_model, [initial_weights(trial.seed) for trial in trials]).to(device, dtype)
    per_member = [[trial.training.learning_rate, trial.training.weight_decay] for trial in trials]
    rates, decays = torch.tensor(per_member, device=device, dtype=dtype).T
    optimiser = StackedAdam(ensemble.theta, rates, decays, config.clip)

    validation = data.draw("validation", config.validation_examples)
    milestones = {round(config.steps * i / config.evaluations) for i in range(1, config.evaluations + 1)}
    best_error = torch.full((len(trials),), float("inf"), dtype=torch.float64, device=device)
    best_step = torch.zeros(len(trials), dtype=torch.long, device=device)
    best_theta = ensemble.theta.detach().clone()
    curve: list[tuple[int, Tensor, Tensor]] = []

    for step in range(config.steps):
        if step % CHUNK == 0:
            inputs, targets = data.draw("train", CHUNK * config.batch, step // CHUNK)
        now = slice(step % CHUNK * config.batch, (step % CHUNK + 1) * config.batch)
        outputs = ensemble(_pick(inputs[:, now], member_seed))
        losses = first.task.loss(outputs, _pick(targets[:, now], member_seed))
        losses.sum().backward()
        optimiser.step(schedule(step, config))
        if step + 1 in milestones:
            error = _measure(ensemble, first.task, validation, member_seed).error
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best_step = torch.where(better, step + 1, best_step)
            best_theta = torch.where(better[:, None], ensemble.theta.detach(), best_theta)
            curve.append((step + 1, losses.detach(), error))
        on_step(step + 1)

    test = data.draw("test", config.test_examples)
    last = _measure(ensemble, first.task, test, member_seed)
    norms = ensemble.theta.detach().norm(dim=1)
    ensemble.theta = best_theta.requires_grad_()
    best = _measure(ensemble, first.task, test, member_seed)
    seconds = (time.perf_counter() - started) / len(trials)
    return [
        Outcome(
            status="done" if bool(last.error[i].isfinite()) else "nan",
            error=float(last.error[i]),
            error_stderr=float(last.stderr[i]),
            best_error=float(best.error[i]) if best_step[i] else float("nan"),
            best_stderr=float(best.stderr[i]) if best_step[i] else float("nan"),
            best_step=int(best_step[i]),
            accuracy=None if last.accuracy is None else float(last.accuracy[i]),
            best_accuracy=None if best.accuracy is None or not best_step[i] else float(best.accuracy[i]),
            weight_norm=float(norms[i]),
            parameters=ensemble.theta.shape[1],
            seconds=seconds,
            stack=len(trials),
            curve=[(at, float(loss[i]), float(error[i])) for at, loss, error in curve],
        )
        for i in range(len(trials))
    ]


def _pick(per_seed: Float[Tensor, "seeds ..."], member_seed: Int[Tensor, " members"]) -> Tensor:
    """The data of every member; a view when members and seeds are the same thing."""
    if len(per_seed) == 1:
        return per_seed.expand(len(member_seed), *per_seed.shape[1:])
    if len(per_seed) == len(member_seed) and bool((member_seed.diff() == 1).all()):
        return per_seed
    return per_seed[member_seed]


@torch.no_grad()
def _measure(
    ensemble: Ensemble, task: Task, held_out: tuple[Tensor, Tensor], member_seed: Int[Tensor, " members"]
) -> Measure:
    """How good every member is on a held-out sample, which passes through in slices."""
    inputs, targets = held_out
    mistakes, accuracies = [], []
    for x, y in zip(inputs.split(EVALUATION_SLICE, 1), targets.split(EVALUATION_SLICE, 1), strict=True):
        outputs, wanted = ensemble(_pick(x, member_seed)), _pick(y, member_seed)
        mistakes.append(task.mistakes(outputs, wanted))
        accuracy = task.accuracy(outputs, wanted)
        if accuracy is not None:
            accuracies.append(accuracy * (x.shape[1] / inputs.shape[1]))
    weights = _pick(task.denominators(targets), member_seed)
    return task.judge(torch.cat(mistakes, -1), weights, torch.stack(accuracies).sum(0) if accuracies else None)
