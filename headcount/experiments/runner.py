"""Run trials: group the missing ones, train them, and write each group as it ends.

Groups run in worker processes of one thread each. The matrices are small: one process with two threads
gains little over one, two processes of one thread gain nearly two, and a single-threaded worker does not
stall when another program takes a core. The thread count is therefore the same however many workers run,
and so are the rows.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from headcount.experiments import memory
from headcount.experiments.execution import Execution
from headcount.experiments.here import run_here
from headcount.experiments.processes import run_in_processes
from headcount.experiments.ray_executor import run_on_ray
from headcount.experiments.recording import need_compiler
from headcount.experiments.store import Store
from headcount.experiments.training import resolve_device
from headcount.experiments.trial import Trial

LARGEST_STACK = 64
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """What a call of `run` did.

    Attributes:
        asked, already, ran: trials asked for, there already, and run now.
        nan: of those run now, how many ended in NaN.
        causes: of those run now, how many failed from which cause.
        elsewhere: trials that another process has in hand.
        left: trials that wait: no worker was left, or fail_fast ended the run.
        seconds: wall time.
        died: worker processes that died.
    """

    asked: int
    already: int
    ran: int
    nan: int
    elsewhere: int
    left: int
    seconds: float
    causes: Mapping[str, int] = field(default_factory=dict)
    died: int = 0

    @property
    def failed(self) -> int:
        """Trials that failed."""
        return sum(self.causes.values())

    @property
    def broken(self) -> bool:
        """Whether something failed that should not have: a trial, or a worker process."""
        return self.failed > 0 or self.died > 0


def groups(trials: Iterable[Trial], room: float = float("inf")) -> list[list[Trial]]:
    """Trials that train as one stack, in order of first appearance: at most LARGEST_STACK each, and no more
    than fit into `room` bytes by `memory.needed`."""
    by_group: dict[str, list[Trial]] = {}
    for trial in trials:
        by_group.setdefault(trial.group, []).append(trial)
    made = []
    for members in by_group.values():
        made += memory.cut(members, room, LARGEST_STACK)
    return made


def choose_workers(workers: int | None, device: torch.device, open_groups: int) -> int:
    """How many processes: one a core, never more than groups, and one on a GPU."""
    if workers is None:
        workers = (
            1
            if device.type == "cuda"
            else len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    return max(1, min(workers, open_groups))


def run(
    trials: Sequence[Trial],
    store: Store,
    execution: Execution = Execution(),  # noqa: B008 - frozen
    on_progress: Progress = lambda done, total, label: None,
) -> Report:
    """Train what the store has planned and not finished. Interrupting loses at most the groups in training.

    Args:
        trials: planned before with `Store.plan`.
        on_progress: called with optimiser steps done, steps in all (of this call), and what is training.

    Raises:
        BadInput: if a trial needs more memory than the device has, programs cannot be compiled here, or the cluster
            cannot be used.
        StoreError: if the store cannot be read or written.
    """
    started, cluster = time.perf_counter(), execution.cluster
    known = store.statuses(trial.id for trial in trials)
    open_trials = [trial for trial in trials if known[trial.id] in ("planned", "running")]
    if cluster is None:
        where = resolve_device(execution.device)
        if execution.compiled:
            need_compiler(where)
        memory.refuse_what_never_fits(open_trials, memory.total(where), where.type)
        count = choose_workers(execution.workers, where, len(groups(open_trials)))
        waiting = groups(open_trials, memory.SHARE * memory.free(where) / count)
    else:
        waiting = groups(open_trials)
    total, died = sum(group[0].training.steps for group in waiting), 0
    if waiting:
        on_progress(0, total, "")

    def tell(done: int, label: str) -> None:
        on_progress(done, total, label)

    if cluster is None and count == 1:
        run_here(waiting, store, execution, tell)
    else:
        # Long groups first: the last ones to end should be short.
        waiting.sort(key=_weight, reverse=True)
        if cluster is not None:
            died = run_on_ray(waiting, store, execution, tell)
        else:
            died = run_in_processes(waiting, store, execution, count, tell)
    after = store.statuses(trial.id for trial in open_trials)
    ended = Counter(after.values())
    return Report(
        asked=len(trials),
        already=len(trials) - len(open_trials),
        ran=ended["done"] + ended["nan"] + ended["failed"],
        nan=ended["nan"],
        elsewhere=ended["running"],
        left=ended["planned"],
        seconds=time.perf_counter() - started,
        causes=store.causes(key for key, status in after.items() if status == "failed"),
        died=died,
    )


def _weight(group: list[Trial]) -> float:
    first = group[0]
    return first.training.steps * (1 + len(group) * first.task.length**2 * first.task.output_width / 1e5)
