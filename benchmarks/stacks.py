"""The stacked training step against the same models trained in other ways."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import CPU, Options, Row, alternate, cores, has_jax, medians
from headcount.config import BadInput
from headcount.experiments.gradients import recorded_gradients
from headcount.experiments.optimiser import StackedAdam
from headcount.experiments.recording import need_compiler
from headcount.experiments.training import initial_weights
from headcount.experiments.trial import Trial
from headcount.models import build_ensemble
from headcount.tasks import random_stream

BATCHES = 4
"""Batches that lie in memory; training goes through them again and again."""

RATE = 0.01

AGREEMENT = 1e-4
"""Largest relative difference of losses between contenders, over the first BATCHES steps."""

ENSEMBLES = (1, 4, 16, 64)


def _polynomial(k: int, attention: str, heads: int) -> dict[str, Any]:
    layer = {"score": "linear", "content": "positions", "value_content": "features"}
    return {
        "task": {"name": "polynomial", "operator": "cyclic", "tokens": 26, "k": k},
        "model": {**layer, "attention": attention, "heads": heads},
    }


def _workspace(attention: str, heads: int) -> dict[str, Any]:
    layer = {"score": "softmax", "content": "positions", "value_content": "features"}
    return {
        "task": {"name": "cpm3", "target": "workspace", "tokens": 16},
        "model": {**layer, "attention": attention, "heads": heads},
    }


def _network(width: int, attention: str) -> dict[str, Any]:
    return {
        "task": {"name": "retrieval", "form": "multi-key-2", "layout": "fused", "pairs": 8, "filler": 0},
        "model": {"network": "transformer", "width": width, "heads": 4, "attention": attention},
        "training": {"batch": 64},
    }


MODELS: dict[str, dict[str, Any]] = {
    "polynomial k=9 MHA H=9": _polynomial(9, "mha", 9),
    "polynomial k=9 IHA H=3": _polynomial(9, "iha", 3),
    "polynomial k=25 MHA H=25": _polynomial(25, "mha", 25),
    "polynomial k=25 IHA H=5": _polynomial(25, "iha", 5),
    "CPM-3 N=16 MHA H=16": _workspace("mha", 16),
    "CPM-3 N=16 IHA H=4": _workspace("iha", 4),
    "network D=16 MHA": _network(16, "mha"),
    "network D=32 MHA": _network(32, "mha"),
    "network D=64 MHA": _network(64, "mha"),
    "network D=128 MHA": _network(128, "mha"),
    "network D=64 IHA": _network(64, "iha"),
}
"""Layers of preset quick, and a network of one layer on nine tokens."""


def trials(model: str, members: int) -> list[Trial]:
    """The members of an ensemble: seeds 0, 1, .."""
    return [Trial.build({"training": {"batch": 32}, **MODELS[model], "seed": seed}) for seed in range(members)]


def batches(members: Sequence[Trial], device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (BATCHES, members, batch, ..): those that training starts with."""
    drawn = []
    for trial in members:
        examples = BATCHES * trial.training.batch
        drawn.append(trial.task.draw("train", examples, random_stream(trial.seed, "train")))
    columns = (torch.stack(column).unflatten(1, (BATCHES, -1)) for column in zip(*drawn, strict=True))
    inputs, targets = (column.transpose(0, 1).contiguous().to(device) for column in columns)
    return inputs, targets


class Trainer(Protocol):
    """One way to train an ensemble."""

    def train(self, rounds: int) -> np.ndarray:
        """Go through the batches `rounds` times; the losses of the last time, (BATCHES, members)."""


class Stacked:
    """Ours: the inner loop of `headcount.experiments.training`, recorded as it is from 50 steps on, or compiled."""

    def __init__(self, members: Sequence[Trial], device: torch.device = CPU, compiled: bool = False) -> None:
        self.task = members[0].task
        starts = [initial_weights(trial.seed) for trial in members]
        self.ensemble = build_ensemble(members[0].build_model, starts).to(device, torch.float32)
        self.inputs, self.targets = batches(members, device)
        self.weights = [block.detach() for block in self.ensemble.weights]
        self.optimiser = StackedAdam(self.weights, [RATE] * len(members), [0.0] * len(members))
        first = self.inputs[0], self.targets[0]
        self.gradients = recorded_gradients(self.ensemble, self.task, self.weights, *first, compiled)

    def train(self, rounds: int) -> np.ndarray:
        for _ in range(rounds):
            losses = []
            for inputs, targets in zip(self.inputs, self.targets, strict=True):
                for members, loss, gradient in self.gradients(inputs, targets):
                    self.optimiser.step(gradient, 1.0, members)
                    losses.append(loss.clone())
        return torch.cat(losses).unflatten(0, (BATCHES, -1)).cpu().numpy()


class Loop:
    """Plain PyTorch: one nn.Module each, torch.optim.Adam (fused), one model after another."""

    def __init__(self, members: Sequence[Trial]) -> None:
        self.task, self.models = members[0].task, []
        self.inputs, self.targets = batches(members)
        for trial in members:
            model = trial.build_model()
            model.reset(initial_weights(trial.seed))
            self.models.append((model, torch.optim.Adam(model.parameters(), lr=RATE, fused=True)))

    def train(self, rounds: int) -> np.ndarray:
        columns = []
        for member, (model, optimiser) in enumerate(self.models):
            for _ in range(rounds):
                losses = []
                for inputs, targets in zip(self.inputs[:, member], self.targets[:, member], strict=True):
                    optimiser.zero_grad()
                    loss = self.task.loss(model(inputs), targets)
                    loss.backward()
                    optimiser.step()
                    losses.append(loss.detach())
            columns.append(torch.stack(losses))
        return torch.stack(columns, 1).numpy()


def build(kind: str, model: str, members: int) -> Trainer:
    """A trainer on the CPU: stacked, compiled, loop or jax."""
    made = trials(model, members)
    if kind == "jax":
        # Imported by the processes that run it alone: it starts threads, and need not be installed.
        peer: Trainer = importlib.import_module("benchmarks.jax_peer").Peer(made)
        return peer
    return Loop(made) if kind == "loop" else Stacked(made, compiled=kind == "compiled")


def _serve(connection: Connection, threads: int, core: int | None) -> None:
    """A process that builds a trainer and trains when told to. JAX sizes its pool by the cores it may use."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    os.environ["JAX_PLATFORMS"] = "cpu"
    torch.set_num_threads(threads)
    trainers: dict[str, Trainer] = {}
    while (order := connection.recv()) is not None:
        kind, *arguments = order
        if isinstance(arguments[0], int):
            trainers[kind].train(*arguments)
            connection.send(None)
            continue
        started = time.perf_counter()
        # The one before is let go first, to never hold two.
        trainers.pop(kind, None)
        trainers[kind] = build(kind, *arguments)
        losses = trainers[kind].train(1)
        connection.send((time.perf_counter() - started, losses))


class Worker:
    """A process of its own, with a number of threads; on one core alone if `core` says which."""

    def __init__(self, threads: int, core: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads, core), daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.join()


class Crew:
    """Workers that each train an ensemble of their own at the same time: a contender."""

    def __init__(self, kind: str, workers: Sequence[Worker]) -> None:
        self.kind, self.workers = kind, workers

    def build(self, model: str, members: int) -> tuple[float, np.ndarray]:
        """Seconds until ready, the first BATCHES steps included, and the losses of these."""
        for worker in self.workers:
            worker.connection.send((self.kind, model, members))
        found = [worker.connection.recv() for worker in self.workers]
        return max(seconds for seconds, _ in found), found[0][1]

    def __call__(self, count: int) -> None:
        for worker in self.workers:
            worker.connection.send((self.kind, count))
        for worker in self.workers:
            worker.connection.recv()


def check_agreement(losses: dict[str, np.ndarray]) -> None:
    """Refuse to time what does not compute the same.

    Raises:
        RuntimeError: if losses differ by more than AGREEMENT.
    """
    (first, ours), *others = losses.items()
    for name, theirs in others:
        difference = float((np.abs(theirs - ours) / np.abs(ours)).max())
        if not difference <= AGREEMENT:
            raise RuntimeError(f"losses of '{name}' differ from those of '{first}' by {difference:.1e}")


def stacks(options: Options) -> Iterator[Row]:
    """Model-steps per second of training many models of one shape: forward, backward and Adam, on the same batches
    and from the same weights. Where several processes run, each trains an ensemble of its own, and all are counted.
    On one core: one process of one thread. On all cores: a process of one thread for each (which is how the runner
    works), or one process with as many threads.

    - stacked: ours, `Ensemble` and `StackedAdam`, recorded once; compiled: with --compile, where there is a compiler;
    - loop: a plain PyTorch loop, an nn.Module and a fused torch.optim.Adam each, one model after another;
    - JAX: the same network and optimiser under `vmap`, steps under `lax.scan`, compiled by `jit`.

    The losses of the first steps are compared before anything is timed. Recording and compiling are left out of the
    rates, and stand in columns of their own, in seconds. On all cores, ratios are over the best of a kind.
    """
    names = list(MODELS)
    ensembles = ENSEMBLES
    if options.quick:
        names, ensembles = ["polynomial k=9 IHA H=3", "CPM-3 N=16 IHA H=4", "network D=16 MHA"], (1, 4)
    count = cores()
    with ExitStack() as stack:
        single = [stack.enter_context(Worker(1)) for _ in range(count)]
        many = [stack.enter_context(Worker(count))]
        crews = {
            "stacked, 1 core": Crew("stacked", single[:1]),
            "stacked, all cores": Crew("stacked", single),
            **({"compiled, 1 core": Crew("compiled", single[:1])} if _has_compiler() else {}),
            "loop, 1 core": Crew("loop", single[:1]),
            "loop, all cores by threads": Crew("loop", many),
            "loop, all cores by processes": Crew("loop", single),
        }
        if has_jax():
            pinned = [stack.enter_context(Worker(1, core)) for core in range(count)]
            crews["JAX, 1 core"] = Crew("jax", pinned[:1])
            crews["JAX, all cores by threads"] = Crew("jax", many)
            crews["JAX, all cores by processes"] = Crew("jax", pinned)
        for model in names:
            for members in ensembles:
                yield _race(crews, model, members, options)


def _ratios(rates: dict[str, float]) -> dict[str, float]:
    """Ours, replayed and compiled, over the best loop and the best of JAX on as many cores."""
    found = {}
    for ours, where in itertools.product(("stacked", "compiled"), ("1 core", "all cores")):
        for other in ("loop", "JAX"):
            theirs = [rate for name, rate in rates.items() if name.startswith(f"{other}, {where}")]
            if theirs and f"{ours}, {where}" in rates:
                found[f"{ours} over {other}, {where}"] = rates[f"{ours}, {where}"] / max(theirs)
    return found


def _has_compiler() -> bool:
    try:
        need_compiler(CPU)
    except BadInput:
        return False
    return True


def _race(crews: dict[str, Crew], model: str, members: int, options: Options) -> Row:
    built = {name: crew.build(model, members) for name, crew in crews.items()}
    check_agreement({name: losses for name, (_, losses) in built.items()})
    seconds = alternate(crews, options)
    rates = {name: BATCHES * members * len(crews[name].workers) / value for name, value in medians(seconds).items()}
    row: Row = {"model": model, "ensemble": members, **rates, **_ratios(rates)}
    for name, kind in (("recording", "stacked"), ("compiling", "compiled"), ("JAX compiling", "JAX")):
        if f"{kind}, 1 core" in built:
            row[name] = built[f"{kind}, 1 core"][0]
    return {**row, "seconds": seconds}
