"""Run trials: plan them, train the missing ones group by group, and write each group as it ends.

Groups run in worker processes of one thread each. The matrices are small: one process with two threads
gains little over one, two processes of one thread gain nearly two, and a single-threaded worker does not
stall when another program takes a core. The thread count is therefore the same however many workers run,
and so are the rows.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess

import numpy as np
import torch

from headcount.config import BadInput
from headcount.experiments.store import Store
from headcount.experiments.training import Outcome, resolve_device, train
from headcount.experiments.trial import SCHEMA, Trial

LARGEST_STACK = 64
BEAT_SECONDS = 5.0
TELL_SECONDS = 0.2

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """What a call of `run` did: trials asked for, already there, run now, the outcomes that are no number,
    those that another process had in hand, and worker processes that died."""

    asked: int
    already: int
    ran: int
    nan: int
    failed: int
    elsewhere: int
    seconds: float
    died: int = 0

    @property
    def broken(self) -> bool:
        """Whether something failed that should not have: a trial, or a worker process."""
        return self.failed > 0 or self.died > 0


def environment(device: torch.device) -> dict[str, str | int]:
    """What a row records of the machine it came from."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "schema": SCHEMA,
    }


def groups(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trials that train as one stack, in order of first appearance, at most LARGEST_STACK each."""
    by_group: dict[str, list[Trial]] = {}
    for trial in trials:
        by_group.setdefault(trial.group, []).append(trial)
    return [
        members[start : start + LARGEST_STACK]
        for members in by_group.values()
        for start in range(0, len(members), LARGEST_STACK)
    ]


def choose_workers(workers: int | None, device: torch.device, open_groups: int) -> int:
    """How many processes: one a core, never more than groups, and one on a GPU.

    Raises:
        BadInput: if fewer than one is asked for.
    """
    if workers is not None and workers < 1:
        raise BadInput(f"workers = {workers}: at least 1 is needed")
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
    device: str = "auto",
    workers: int | None = None,
    on_progress: Progress = lambda done, total, label: None,
) -> Report:
    """Train what the store has planned and not finished. Interrupting loses at most the groups in training.

    Args:
        trials: planned before with `Store.plan`.
        workers: processes; None for one a core (one on a GPU). One runs in this process.
        on_progress: called with optimiser steps done, steps in all (of this call), and what is training.
    """
    started = time.perf_counter()
    where = resolve_device(device)
    known = store.statuses(trial.id for trial in trials)
    open_trials = [trial for trial in trials if known[trial.id] in ("planned", "running")]
    waiting = groups(open_trials)
    total = sum(group[0].training.steps for group in waiting)
    count, died = choose_workers(workers, where, len(waiting)), 0
    if waiting:
        on_progress(0, total, "")
    if count == 1:
        _run_here(waiting, store, where, lambda done, label: on_progress(done, total, label))
    else:
        # Long groups first: the last ones to end should be short.
        waiting.sort(key=_weight, reverse=True)
        died = _run_in_processes(waiting, store, device, count, lambda done, label: on_progress(done, total, label))
    after = store.statuses(trial.id for trial in open_trials)
    ended = list(after.values())
    return Report(
        asked=len(trials),
        already=len(trials) - len(open_trials),
        ran=sum(status in ("done", "nan", "failed") for status in ended),
        nan=ended.count("nan"),
        failed=ended.count("failed"),
        elsewhere=sum(status in ("planned", "running") for status in ended),
        seconds=time.perf_counter() - started,
        died=died,
    )


def _weight(group: list[Trial]) -> float:
    first = group[0]
    return first.training.steps * (1 + len(group) * first.task.length**2 * first.task.output_width / 1e5)


def _run_here(waiting: list[list[Trial]], store: Store, device: torch.device, tell: Callable[[int, str], None]) -> None:
    """Train groups in this process with one thread, claiming each before it starts."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    done = 0
    try:
        for group in waiting:
            by_id = {trial.id: trial for trial in group}
            mine = [by_id[key] for key in store.claim(list(by_id))]
            if mine:
                label = _label(mine[0])
                outcomes = _train_group(mine, device, store, lambda step: tell(done + step, label))  # noqa: B023
                store.finish(mine, outcomes, environment(device))
            done += group[0].training.steps
            tell(done, "")
    finally:
        store.release()
        torch.set_num_threads(threads)


def _label(trial: Trial) -> str:
    task, fields = trial.task, trial.flat()
    return f"{task.name} N={task.length} outputs={task.output_width} {fields['model.attention']} H={fields.get('model.heads', 1)}"


def _train_group(
    group: list[Trial], device: torch.device, store: Store, on_step: Callable[[int], None]
) -> list[Outcome]:
    last_beat = last_tell = time.monotonic()

    def beat(step: int) -> None:
        nonlocal last_beat, last_tell
        now = time.monotonic()
        if now - last_tell > TELL_SECONDS:
            on_step(step)
            last_tell = now
        if now - last_beat > BEAT_SECONDS:
            store.beat()
            last_beat = now

    try:
        return train(group, device, beat)
    except Exception:
        text = traceback.format_exc()
        return [Outcome(status="failed", traceback=text, stack=len(group)) for _ in group]


def _run_in_processes(
    waiting: list[list[Trial]], store: Store, device: str, count: int, tell: Callable[[int, str], None]
) -> int:
    """The same in `count` processes that draw groups from one list; the store's claims keep them apart.

    Returns:
        How many of them died before their work was done.
    """
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    for group in waiting:
        inbox.put([trial.to_json() for trial in group])
    for _ in range(count):
        inbox.put(None)
    workers = [
        context.Process(target=_worker, args=(str(store.folder), device, inbox, outbox), daemon=True)
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    try:
        _listen(workers, outbox, tell)
        return sum(worker.exitcode != 0 for worker in workers)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        store.release_dead()


def _listen(
    workers: list[SpawnProcess], outbox: multiprocessing.Queue[tuple[int, int, bool, str]],
    tell: Callable[[int, str], None],
) -> None:  # fmt: skip
    done, running, last = 0, dict.fromkeys((worker.pid for worker in workers), 0), ""
    while True:
        try:
            pid, step, ended, label = outbox.get(timeout=0.5)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                return
            continue
        if ended:
            done, running[pid] = done + step, 0
        else:
            running[pid], last = step, label
        tell(done + sum(running.values()), last)


def _worker(folder: str, device: str, inbox: multiprocessing.Queue, outbox: multiprocessing.Queue) -> None:
    # Ctrl-C reaches every process of the terminal; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store, where, pid, parent = Store(folder), resolve_device(device), os.getpid(), os.getppid()
    while (texts := inbox.get()) is not None:
        group = [Trial.from_json(text) for text in texts]

        def tell(step: int, label: str, steps: int = group[0].training.steps) -> None:
            if os.getppid() != parent:
                # The parent was killed and cannot end its workers; what this one holds counts as abandoned.
                os._exit(1)
            outbox.put((pid, step, step == steps and not label, label))

        _run_here([group], store, where, tell)
