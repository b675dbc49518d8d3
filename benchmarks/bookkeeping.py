"""What a trial costs besides its model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measure import Options, Row
from headcount.experiments import Execution, Store, Sweep, run
from headcount.experiments.runner import groups
from headcount.experiments.store import FILE_NAME
from headcount.experiments.training import Outcome, Point
from headcount.experiments.trial import Trial

LAYER = {"attention": "iha", "heads": 2, "score": "linear", "content": "positions", "value_content": "features"}
OUTCOME = Outcome(
    status="done", error=0.05, error_stderr=0.001, best_error=0.05, best_stderr=0.001, best_step=1000, last_step=1000,
    weight_norm=10.0, parameters=1000, seconds=0.1, stack=64,
    curve=[Point(100 * evaluation, 0.1, 0.1) for evaluation in range(1, 11)],
)  # fmt: skip


class _Watch:
    """Seconds of named stretches."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def once(count: int, folder: Path) -> tuple[dict[str, float], int]:
    """Seconds of every stretch in the life of `count` trials, and the size of the store in bytes."""
    sweep = Sweep(name="fake", task={"name": "polynomial"}, model=LAYER, grid={"seed": list(range(count))})
    data = {"task": {"name": "polynomial"}, "model": LAYER}
    watch, store = _Watch(), Store(folder)
    with watch.stretch("configure"):
        trials = [Trial.build({**data, "seed": seed}) for seed in range(count)]
    with watch.stretch("hash"):
        hashed = {(trial.id, trial.group) for trial in trials}
    if len(hashed) != count:
        raise RuntimeError(f"{count} trials have {len(hashed)} ids")
    with watch.stretch("plan"):
        store.plan(trials, "fake")
    stacks = groups(trials)
    with watch.stretch("claim"):
        claimed = [store.claim([trial.id for trial in stack]) for stack in stacks]
    with watch.stretch("finish"):
        for stack in stacks:
            store.finish(stack, [OUTCOME] * len(stack), {"device": "none"})
    if sum(map(len, claimed)) != count or set(store.statuses(key for key, _ in hashed).values()) != {"done"}:
        raise RuntimeError("not every trial was claimed and finished")
    store.close()
    with watch.stretch("resume"):
        store, trials = Store(folder), sweep.trials()
        store.plan(trials, "fake")
        report = run(trials, store, Execution(workers=1))
    if report.already != count:
        raise RuntimeError(f"{count - report.already} finished trials would run again")
    store.close()
    return watch.seconds, (folder / FILE_NAME).stat().st_size


def bookkeeping(options: Options) -> Iterator[Row]:
    """Microseconds a trial outside of the model, with made-up outcomes of ten evaluations: building and checking its
    configuration, its id and group, planning, claiming and finishing it (a transaction for every stack of 64). Resume is
    the same sweep once more with everything done, configuring and hashing included.
    """
    for count in (10, 100) if options.quick else (10, 1_000, 100_000):
        found = []
        for _ in range(options.rounds):
            with TemporaryDirectory() as folder:
                found.append(once(count, Path(folder)))
        seconds = {name: [each[name] for each, _ in found] for name in found[0][0]}
        taken = {f"{name} us": median(values) / count * 1e6 for name, values in seconds.items()}
        yield {"trials": count, **taken, "bytes a trial": found[0][1] / count, "seconds": seconds}
