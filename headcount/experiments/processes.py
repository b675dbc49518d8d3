"""Groups in worker processes: each is handed one group after the other, and what a dead one had is tried again."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from headcount.experiments.attempt import failed, halves
from headcount.experiments.execution import Execution
from headcount.experiments.here import environment, run_here
from headcount.experiments.store import Store, StoreError
from headcount.experiments.training import resolve_device
from headcount.experiments.trial import Trial

MOST_DEATHS = 2
"""Processes that a trial may take with it, alone, before it counts as failed."""

Job = tuple[list[Trial], int]
"""A group, and the optimiser steps its end adds to the progress: none for what is tried again."""


@dataclass
class _Worker:
    process: SpawnProcess
    ready: bool = False
    job: Job | None = None
    step: int = 0


def run_in_processes(
    waiting: list[list[Trial]], store: Store, execution: Execution, count: int, tell: Callable[[int, str], None]
) -> int:
    """Train groups in `count` processes of one thread each; the other arguments are those of `run_here`.

    A process that dies is replaced. The group it had is tried again in halves, and a trial that takes
    MOST_DEATHS processes with it is a failed row. One that dies before its first group would die again, and
    is not replaced.

    Returns:
        How many processes died.

    Raises:
        StoreError: if a process could not write the store.
    """
    pool = _Pool(waiting, store, execution)
    try:
        for _ in range(count):
            pool.start()
        while pool.workers:
            for connection in wait(list(pool.workers)):
                assert isinstance(connection, Connection)
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    pool.bury(connection)
                    continue
                worker = pool.workers[connection]
                if kind == "stop":
                    raise StoreError(value)
                if kind == "step":
                    worker.step, label = value
                    tell(pool.progress(), label)
                    continue
                pool.end(worker)
                tell(pool.progress(), "")
                if value and execution.fail_fast:
                    return pool.died
                pool.hand(connection)
        return pool.died
    finally:
        pool.close()


class _Pool:
    """The processes, the groups that wait, and what is known of both."""

    def __init__(self, waiting: list[list[Trial]], store: Store, execution: Execution) -> None:
        self.waiting: deque[Job] = deque((group, group[0].training.steps) for group in waiting)
        self.store, self.execution = store, execution
        self.workers: dict[Connection, _Worker] = {}
        self.started: list[SpawnProcess] = []
        self.deaths: Counter[str] = Counter()
        self.done = self.died = 0

    def start(self) -> None:
        """One more process."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (str(self.store.folder), self.execution, theirs)
        process = context.Process(target=work, args=arguments, daemon=True)
        with _no_interrupt():
            process.start()
        theirs.close()
        self.workers[ours] = _Worker(process)
        self.started.append(process)

    def hand(self, connection: Connection) -> None:
        """Give a process its next group, or let it go."""
        worker = self.workers[connection]
        worker.ready = True
        worker.job = self.waiting.popleft() if self.waiting else None
        try:
            connection.send(None if worker.job is None else [trial.to_json() for trial in worker.job[0]])
        except OSError:
            return self.bury(connection)
        if worker.job is None:
            del self.workers[connection]

    def end(self, worker: _Worker) -> None:
        """Count a group as done."""
        self.done += worker.job[1] if worker.job else 0
        worker.job, worker.step = None, 0

    def progress(self) -> int:
        """Optimiser steps done."""
        return self.done + sum(min(worker.step, worker.job[1]) for worker in self.workers.values() if worker.job)

    def bury(self, connection: Connection) -> None:
        """Replace a process that died, and try again what it had."""
        worker = self.workers.pop(connection)
        worker.process.join()
        self.died += 1
        self.store.release_dead()
        if not worker.ready:
            return
        if worker.job is not None:
            group = worker.job[0]
            self.end(worker)
            statuses = self.store.statuses(trial.id for trial in group)
            left = [trial for trial in group if statuses[trial.id] == "planned"]
            if len(left) > 1:
                self.waiting.extendleft((half, 0) for half in reversed(halves(left)))
            elif left:
                self._alone(left[0], worker.process.exitcode or 0)
        self.start()

    def _alone(self, trial: Trial, code: int) -> None:
        self.deaths[trial.id] += 1
        if self.deaths[trial.id] < MOST_DEATHS:
            self.waiting.appendleft(([trial], 0))
        elif self.store.claim([trial.id]):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            text = f"the process that trained this trial alone died {MOST_DEATHS} times, the last time by {how}"
            hint = "; systems end a process by signal 9 when memory runs out" if code == -signal.SIGKILL else ""
            machine = environment(resolve_device(self.execution.device), self.execution.compiled)
            self.store.finish(*failed([trial], f"worker died ({how})", text + hint), machine)

    def close(self) -> None:
        """End every process, and give back what they held."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.join()
        self.store.release_dead()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which a terminal sends to all; their parent ends them."""
    # This helper process would be started on the way, and lift the block.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(folder: str, execution: Execution, connection: Any) -> None:
    """What a worker process does: groups, until it is handed none."""

    def tell(step: int, label: str) -> None:
        try:
            connection.send(("step", (step, label)))
        except OSError:
            # The parent was killed and cannot end its workers; what this one holds counts as abandoned.
            os._exit(1)

    try:
        store = Store(folder)
        connection.send(("ended", 0))
        while (texts := connection.recv()) is not None:
            failures = run_here([[Trial.from_json(text) for text in texts]], store, execution, tell)
            connection.send(("ended", failures))
    except StoreError as error:
        connection.send(("stop", str(error)))
    except (EOFError, BrokenPipeError):
        os._exit(1)
