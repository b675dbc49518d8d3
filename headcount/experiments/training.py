"""Train a stack of trials that differ in seed and rates only, and measure what they reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.config import BadInput
from headcount.experiments.gradients import Parts, Weights, plain_gradients, recorded_gradients
from headcount.experiments.optimiser import StackedAdam, schedule
from headcount.experiments.trial import TrainingConfig, Trial
from headcount.models import Ensemble, build_ensemble
from headcount.tasks import Task, random_stream
from headcount.tasks.task import Measure, Split

CHUNK = 32
"""Training steps whose data are drawn in one call. Part of what defines the data: see trial.SCHEMA."""

EVALUATION_SLICE = 256
"""Held-out examples that pass through the models at once."""

RECORDED_FROM = 50
"""Steps from which on recording the step as a flat list of operations pays."""


class Point(NamedTuple):
    """One point of a learning curve: the loss of the step's batch, and errors; None where not measured."""

    step: int
    loss: float
    error: float
    train_error: float | None = None
    test_error: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What one trial gave.

    Attributes:
        status: done, nan (the last weights are not finite), or failed (an exception).
        error: relative error of the last weights on the test sample; NaN if not finite.
        error_stderr: its standard error over test examples.
        best_error, best_stderr, best_step: the same for the weights with the least validation error.
        last_step: steps trained; fewer than the most allowed if patience ended it.
        accuracy, best_accuracy: share of exactly right answers, where the task has such.
        weight_norm: Euclidean norm of all last weights.
        parameters: trained numbers, counted on the module.
        seconds: wall time of the stack divided by its members.
        curve: one point an evaluation.
        cause: why it failed: the class of an exception, or another name; see `attempt`.
        traceback: of the exception when failed.
    """

    status: str
    error: float = float("nan")
    error_stderr: float = float("nan")
    best_error: float = float("nan")
    best_stderr: float = float("nan")
    best_step: int = 0
    last_step: int = 0
    accuracy: float | None = None
    best_accuracy: float | None = None
    weight_norm: float = float("nan")
    parameters: int = 0
    seconds: float = 0.0
    stack: int = 1
    curve: list[Point] = field(default_factory=list)
    cause: str | None = None
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
        self.latest: tuple[Tensor, Tensor] | None = None

    def draw(self, split: Split, examples: int, chunk: int = 0) -> tuple[Tensor, Tensor]:
        batches = [self.task.draw(split, examples, random_stream(seed, split, chunk)) for seed in self.seeds]
        inputs = torch.stack([batch.inputs for batch in batches])
        targets = torch.stack([batch.targets for batch in batches])
        return self._place(inputs), self._place(targets)

    def batches(self, config: TrainingConfig) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of all steps: fresh ones, or epochs of a fixed set. `latest` holds the examples they are cut from."""
        if config.training_examples is None:
            for chunk in range(-(-config.steps // CHUNK)):
                inputs, targets = self.latest = self.draw("train", CHUNK * config.batch, chunk)
                yield from zip(inputs.split(config.batch, 1), targets.split(config.batch, 1), strict=True)
            return
        inputs, targets = self.latest = self.draw("train", config.training_examples)
        an_epoch, rows = config.training_examples // config.batch, torch.arange(len(self.seeds))[:, None]
        for epoch in range(-(-config.steps // an_epoch)):
            streams = [random_stream(seed, "train", 1 + epoch) for seed in self.seeds]
            order = torch.stack([torch.randperm(config.training_examples, generator=stream) for stream in streams])
            for chosen in order[:, : an_epoch * config.batch].split(config.batch, 1):
                yield inputs[rows, chosen], targets[rows, chosen]

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def train(
    trials: Sequence[Trial], device: torch.device, on_step: Callable[[int], None] = lambda step: None,
    compiled: bool = False,
) -> list[Outcome]:  # fmt: skip
    """Train all `trials`, which must share `Trial.group`, as one stack.

    Every member sees the data and starts from the weights that its own seed defines, so its result
    is that of training it alone, up to rounding. A member that becomes NaN does not touch others, and one
    that runs out of patience leaves the stack.

    Args:
        on_step: called after every optimiser step with the number of steps done.
        compiled: let torch.compile fuse the step; results then agree up to rounding only.
    """
    started = time.perf_counter()
    assert all(trial.group == trials[0].group for trial in trials)
    stack = _Stack(trials, device, compiled)
    for step, (inputs, targets) in zip(range(stack.config.steps), stack.data.batches(stack.config), strict=False):
        losses = stack.step(step, inputs, targets)
        if step + 1 in stack.milestones:
            stack.evaluate(step + 1, losses)
            if not len(stack.members):
                break
        on_step(step + 1)
    outcomes = stack.outcomes()
    on_step(stack.config.steps)
    seconds = (time.perf_counter() - started) / len(trials)
    return [replace(outcome, seconds=seconds) for outcome in outcomes]


class _Stack:
    """The members still in training, and what is kept of all."""

    def __init__(self, trials: Sequence[Trial], device: torch.device, compiled: bool) -> None:
        self.trials, self.task, self.config = trials, trials[0].task, trials[0].training
        config, count = self.config, len(trials)
        dtype = torch.float64 if config.dtype == "float64" else torch.float32
        seeds = sorted({trial.seed for trial in trials})
        self.data = _Data(self.task, seeds, device, dtype)
        self.member_seed = torch.tensor([seeds.index(trial.seed) for trial in trials], device=device)
        self.members = torch.arange(count, device=device)
        self.select = self._selector(self.members)
        starts = [initial_weights(trial.seed) for trial in trials]
        self.ensemble = build_ensemble(trials[0].build_model, starts).to(device, dtype)
        rates = [trial.training.learning_rate for trial in trials]
        decays = [trial.training.weight_decay for trial in trials]
        self.weights = [block.detach() for block in self.ensemble.weights]
        self.optimiser = StackedAdam(self.weights, rates, decays, config.clip)
        self.gradients: Parts | None = None
        self.compile_at = count if compiled else 0

        self.validation = self.data.draw("validation", config.validation_examples)
        self.test = self.data.draw("test", config.test_examples)
        self.milestones = {round(config.steps * i / config.evaluations) for i in range(1, config.evaluations + 1)}
        self.best_error = torch.full((count,), float("inf"), dtype=torch.float64, device=device)
        self.best_step = torch.zeros(count, dtype=torch.long, device=device)
        self.last_step = torch.full((count,), config.steps, dtype=torch.long, device=device)
        self.waited = torch.zeros(count, dtype=torch.long, device=device)
        self.best, self.last = ([block.clone() for block in self.weights] for _ in range(2))
        self.curves: list[list[Point]] = [[] for _ in trials]

    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Float[Tensor, " members"]:
        """One optimiser step of every member in training; returns their losses."""
        x, y = self.select(inputs), self.select(targets)
        if self.gradients is None:
            self.gradients = self._gradients(self.config.steps - step, x, y)
        losses = []
        for members, loss, gradient in self.gradients(x, y):
            self.optimiser.step(gradient, schedule(step, self.config), members)
            losses.append(loss.clone())
        return torch.cat(losses)

    def _gradients(self, steps: int, x: Tensor, y: Tensor) -> Parts:
        """How those of the next steps, of members who are as many as now, are computed."""
        if steps < RECORDED_FROM:
            return plain_gradients(self.ensemble, self.task, self.weights)
        # Compiling anew for every member that leaves would take longer than it saves.
        compiled = len(self.members) <= self.compile_at
        if compiled:
            self.compile_at = len(self.members) // 2
        return recorded_gradients(self.ensemble, self.task, self.weights, x, y, compiled)

    def evaluate(self, step: int, losses: Float[Tensor, " members"]) -> None:
        """Add a point to every curve, keep weights that are the best so far, and let go who waited too long."""
        members = self.members
        error = self._error(self.validation)
        others: list[Tensor | None] = [None, None]
        if self.config.curves == "all":
            assert self.data.latest is not None
            few = self.config.validation_examples
            others = [self._error((x[:, :few], y[:, :few])) for x, y in (self.data.latest, self.test)]
        for place, member in enumerate(members.tolist()):
            more = [None if other is None else float(other[place]) for other in others]
            self.curves[member].append(Point(step, float(losses[place]), float(error[place]), *more))
        better = error < self.best_error[members]
        improved = members[better]
        self.best_error[improved], self.best_step[improved] = error[better], step
        _put(self.best, improved, _of(self.weights, better))
        self.waited[members] += 1
        self.waited[improved] = 0
        if self.config.patience is not None:
            self._keep(self.waited[members] < self.config.patience, step)

    def _keep(self, staying: Tensor, step: int) -> None:
        if bool(staying.all()):
            return
        leaving = self.members[~staying]
        _put(self.last, leaving, _of(self.weights, ~staying))
        self.last_step[leaving] = step
        self.members, self.weights = self.members[staying], _of(self.weights, staying)
        self.optimiser.keep(staying.nonzero().flatten(), self.weights)
        self.select, self.gradients = self._selector(self.members), None

    def _selector(self, members: Int[Tensor, " some"]) -> Callable[[Tensor], Tensor]:
        return _selector(self.member_seed[members], len(self.data.seeds))

    def _error(self, held_out: tuple[Tensor, Tensor]) -> Tensor:
        return _measure(self.ensemble, self.weights, self.task, held_out, self.select).error

    def outcomes(self) -> list[Outcome]:
        """What every trial gave, measured on the test sample."""
        _put(self.last, self.members, self.weights)
        everyone = self._selector(torch.arange(len(self.trials), device=self.members.device))
        last = _measure(self.ensemble, self.last, self.task, self.test, everyone)
        # Where the best weights are the last ones, their measure is known.
        other = (self.best_step != self.last_step).nonzero().flatten()
        best = Measure(
            last.error.clone(), last.stderr.clone(), None if last.accuracy is None else last.accuracy.clone()
        )
        if len(other):
            part = _measure(self.ensemble, _of(self.best, other), self.task, self.test, self._selector(other))
            best.error[other], best.stderr[other] = part.error, part.stderr
            if best.accuracy is not None and part.accuracy is not None:
                best.accuracy[other] = part.accuracy
        rows = self.ensemble.rows(self.last)
        norms = rows.norm(dim=1)
        return [
            Outcome(
                status="done" if bool(last.error[i].isfinite()) else "nan",
                error=float(last.error[i]),
                error_stderr=float(last.stderr[i]),
                best_error=float(best.error[i]) if self.best_step[i] else float("nan"),
                best_stderr=float(best.stderr[i]) if self.best_step[i] else float("nan"),
                best_step=int(self.best_step[i]),
                last_step=int(self.last_step[i]),
                accuracy=None if last.accuracy is None else float(last.accuracy[i]),
                best_accuracy=None if best.accuracy is None or not self.best_step[i] else float(best.accuracy[i]),
                weight_norm=float(norms[i]),
                parameters=rows.shape[1],
                stack=len(self.trials),
                curve=self.curves[i],
            )
            for i in range(len(self.trials))
        ]


def _of(weights: Weights, members: Tensor) -> list[Tensor]:
    """Rows of some members, in blocks."""
    return [block[members] for block in weights]


def _put(weights: Weights, members: Tensor, rows: Weights) -> None:
    """Write rows of some members."""
    for block, some in zip(weights, rows, strict=True):
        block[members] = some


def _selector(member_seed: Int[Tensor, " members"], seeds: int) -> Callable[[Tensor], Tensor]:
    """From data (seeds, ..) to those of every member; a view when members and seeds are the same thing."""
    members = len(member_seed)
    if seeds == 1:
        return lambda per_seed: per_seed.expand(members, *per_seed.shape[1:])
    if member_seed.tolist() == list(range(seeds)):
        return lambda per_seed: per_seed
    return lambda per_seed: per_seed[member_seed]


@torch.no_grad()
def _measure(
    ensemble: Ensemble, weights: Weights, task: Task, held_out: tuple[Tensor, Tensor],
    select: Callable[[Tensor], Tensor],
) -> Measure:  # fmt: skip
    """How good every member is on a held-out sample, which passes through in slices."""
    inputs, targets = held_out
    mistakes, accuracies = [], []
    for x, y in zip(inputs.split(EVALUATION_SLICE, 1), targets.split(EVALUATION_SLICE, 1), strict=True):
        outputs, wanted = ensemble(select(x), weights), select(y)
        mistakes.append(task.mistakes(outputs, wanted))
        accuracy = task.accuracy(outputs, wanted)
        if accuracy is not None:
            accuracies.append(accuracy * (x.shape[1] / inputs.shape[1]))
    denominators = select(task.denominators(targets))
    return task.judge(torch.cat(mistakes, -1), denominators, torch.stack(accuracies).sum(0) if accuracies else None)
