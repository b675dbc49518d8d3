"""Groups on a Ray cluster. The driver alone holds the store: it claims groups, hands them out as tasks, and writes
what comes back; a node needs neither the store nor a shared folder.

Ray itself tries nothing again (`max_retries=0`): a group that was lost comes back to the driver, which knows whether
a node went away, or a worker died and may do so at every trial.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headcount.config import BadInput
from headcount.experiments import memory
from headcount.experiments.attempt import OUT_OF_MEMORY, attempt, failed, halves
from headcount.experiments.execution import Execution, RayCluster
from headcount.experiments.here import BEAT_SECONDS, environment, label
from headcount.experiments.processes import MOST_DEATHS
from headcount.experiments.recording import need_compiler
from headcount.experiments.store import Store
from headcount.experiments.training import Outcome, Point, resolve_device
from headcount.experiments.trial import Trial

if TYPE_CHECKING:
    import ray

IN_FLIGHT = 2
"""Tasks submitted for each that the cluster can run at once: none of its slots waits, and nothing piles up."""

MOST_LOST_NODES = 10
"""Nodes that a trial may be lost with before it counts as failed."""

LOOK_SECONDS = 1.0
"""How often a worker reports its step, and the driver reads the reports and counts the nodes."""

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 * 2**20

Parts = list[tuple[list[str], list[dict[str, Any]]]]
"""Parts of a group as they ended: ids, and the fields of their outcomes as plain data."""


def run_on_ray(waiting: list[list[Trial]], store: Store, execution: Execution, tell: Callable[[int, str], None]) -> int:
    """Train groups as Ray tasks on the cluster of `execution`; `tell` is that of `run_here`.

    A group that is lost with its node is trained again elsewhere. One whose worker died is tried again in halves,
    and a trial that takes MOST_DEATHS workers with it is a failed row.

    Returns:
        How many workers died; those of lost nodes are not counted.

    Raises:
        BadInput: if Ray is not installed, the cluster cannot be reached, no node has what a group takes, or
            the package cannot be imported there.
    """
    cluster = execution.cluster
    assert cluster is not None
    placed = replace(execution, device=cluster.device(execution.device))
    if not waiting:
        return 0
    with _connected(cluster, execution.workers) as own:
        driver = _Driver(waiting, store, placed, cluster)
        try:
            return driver.run(tell)
        finally:
            store.release()
            if not own:
                driver.cancel()


@contextlib.contextmanager
def _connected(cluster: RayCluster, workers: int | None) -> Iterator[bool]:
    """A connection to the cluster; one that the calling program has made before is used and left as it is.

    Yields:
        Whether it is our own. Its end is the end of all tasks: to cancel them just before that makes Ray 2.60 abort.
    """
    if cluster.address is None and "ray" not in sys.modules:
        # Without this switch, which is read when Ray is imported, Ray listens on every network interface.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError:
        raise BadInput("the Ray executor needs Ray; install it with: pip install 'headcount[ray]'") from None
    if ray.is_initialized():
        if cluster.address not in (None, "auto"):
            raise BadInput(f"this process is connected to a Ray cluster already, and not to '{cluster.address}'")
        yield False
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address is None:
        options |= _own(cluster, workers)
    else:
        _reach(cluster.address)
        # Nodes run the driver's code, whether or not some version of the package is installed there.
        options |= {"address": cluster.address, "runtime_env": {"py_modules": [str(Path(__file__).parents[1])]}}
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, ImportError, RuntimeError, ray.exceptions.RayError) as error:
        what = "cluster of its own" if cluster.address is None else f"cluster at '{cluster.address}'"
        raise BadInput(f"Ray has no connection to a {what}: {_one_line(error)}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)
    try:
        if cluster.address is None and ray.util.get_node_ip_address() != LOOPBACK:
            raise BadInput(
                "Ray was imported before and would listen on every network interface; "
                "start a cluster yourself, and give its address"
            )
        yield True
    finally:
        ray.shutdown()


def _own(cluster: RayCluster, workers: int | None) -> dict[str, Any]:
    """Options of a cluster on this machine: no dashboard, no usage statistics. From version 2.59, which the package
    asks for, Ray itself makes a token that others on this machine would need to get in."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    if workers is not None:
        options["num_cpus"] = max(1, round(workers * cluster.cpus_per_group))
    return options


def _reach(address: str) -> None:
    """Ray takes minutes to find out that nobody listens.

    Raises:
        BadInput: if the address is none, or nobody listens there.
    """
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise BadInput(f"'{address}' is no address of a Ray cluster; allowed: auto, host:port, ray://host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise BadInput(f"no Ray cluster at '{address}': {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@dataclass
class _Job:
    """A group, the optimiser steps its end adds to the progress, and whether this process has claimed it."""

    group: list[Trial]
    steps: int
    claimed: bool = False

    @property
    def bytes(self) -> int:
        """What training it takes."""
        return memory.needed(self.group).total


class _Driver:
    """The groups that wait, those in flight, and what is known of both."""

    def __init__(self, waiting: list[list[Trial]], store: Store, execution: Execution, cluster: RayCluster) -> None:
        import ray

        self.ray, self.store, self.cluster, self.fail_fast = ray, store, cluster, execution.fail_fast
        self.waiting: deque[_Job] = deque()
        self.running: dict[ray.ObjectRef, tuple[int, _Job]] = {}
        self.submitted = self.done = self.died = 0
        self.died_with: Counter[str] = Counter()
        self.lost_with: Counter[str] = Counter()
        self.steps: dict[int, int] = {}
        self.board = ray.remote(_board()).options(num_cpus=0, max_restarts=-1).remote()
        self.reports = self.board.take.remote()
        self.settings = execution.device, execution.timeout, execution.compiled
        self.train = ray.remote(num_cpus=cluster.cpus_per_group, num_gpus=cluster.gpus_per_group, max_retries=0)(
            _train_group
        )
        self.slots, self.looked, self.beaten = self._slots(), time.monotonic(), time.monotonic()
        if not self.slots:
            raise BadInput(
                f"no node of the Ray cluster has what a group takes: cpus = {cluster.cpus_per_group:g}, "
                f"gpus = {cluster.gpus_per_group:g}"
            )
        self._make_fit(waiting)

    def run(self, tell: Callable[[int, str], None]) -> int:
        """Until every group has ended; returns how many workers died."""
        while self.waiting or self.running:
            self._fill()
            ended: list[ray.ObjectRef] = []
            if self.running:
                ended, _ = self.ray.wait(list(self.running), num_returns=1, timeout=LOOK_SECONDS)
            failures = sum(self._end(reference) for reference in ended)
            self._look()
            tell(*self._progress())
            if failures and self.fail_fast:
                break
        return self.died

    def _make_fit(self, waiting: list[list[Trial]]) -> None:
        """Cut groups so that the largest node can hold each, and have Ray set their memory aside. Of a GPU's memory
        Ray knows nothing."""
        most = float("inf")
        if not self.cluster.gpus_per_group:
            most = max(node["Resources"].get("memory", 0) for node in self.ray.nodes() if self.cluster.slots(node))
            memory.refuse_what_never_fits((trial for group in waiting for trial in group), most, "a Ray node")
        for group in waiting:
            steps = group[0].training.steps
            for part in memory.cut(group, memory.SHARE * most, len(group)):
                self.waiting.append(_Job(part, steps))
                steps = 0

    def cancel(self) -> None:
        """End what still trains."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)

    def _fill(self) -> None:
        """Keep as many tasks in flight as the cluster can use."""
        while self.waiting and len(self.running) < max(1, IN_FLIGHT * self.slots):
            job = self.waiting.popleft()
            if not job.claimed:
                mine = set(self.store.claim([trial.id for trial in job.group]))
                job = _Job([trial for trial in job.group if trial.id in mine], job.steps, claimed=True)
            if job.group:
                self.submitted += 1
                texts = [trial.to_json() for trial in job.group]
                task = self.train if self.cluster.gpus_per_group else self.train.options(memory=job.bytes)
                reference = task.remote(self.submitted, texts, *self.settings, self.board)
                self.running[reference] = self.submitted, job
            else:
                self.done += job.steps

    def _end(self, reference: ray.ObjectRef) -> int:
        """Write what a task gave, or try its group again; returns how many trials failed."""
        number, job = self.running.pop(reference)
        self.steps.pop(number, None)
        errors = self.ray.exceptions
        try:
            parts, machine = self.ray.get(reference)
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            return self._again(job, self.lost_with, MOST_LOST_NODES, "node lost", error)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            self.died += 1
            if len(job.group) > 1:
                first, second = halves(job.group)
                self.waiting.extendleft((_Job(second, 0, claimed=True), _Job(first, job.steps, claimed=True)))
                return 0
            how = OUT_OF_MEMORY if isinstance(error, errors.OutOfMemoryError) else "worker died"
            return self._again(job, self.died_with, MOST_DEATHS, how, error)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # What training raises comes back as rows: this is about the node.
            reason = getattr(error, "cause", error)
            unable = isinstance(reason, BadInput | errors.RuntimeEnvSetupError)
            if not (unable or "failed to import on the worker" in str(reason)):
                raise
            last_line = str(reason).strip().splitlines()[-1]
            raise BadInput(f"a node of the Ray cluster cannot train: {last_line}") from None
        self.done += job.steps
        by_id = {trial.id: trial for trial in job.group}
        failures = 0
        for ids, fields in parts:
            outcomes = [_outcome(one) for one in fields]
            self.store.finish([by_id[key] for key in ids], outcomes, machine)
            failures += sum(outcome.status == "failed" for outcome in outcomes)
        return failures

    def _again(self, job: _Job, counts: Counter[str], most: int, cause: str, error: Exception) -> int:
        """Train a lost group again, the first of all; one lost too often is failed rows."""
        key = job.group[0].id
        counts[key] += 1
        if counts[key] < most:
            self.waiting.appendleft(job)
            return 0
        self.done += job.steps
        self.store.finish(*failed(job.group, cause, f"{cause}, {most} times; the last time: {error}"), {})
        return len(job.group)

    def _look(self) -> None:
        """Read what workers report and count the nodes, now and then, and show that this process is alive."""
        now = time.monotonic()
        if now - self.beaten > BEAT_SECONDS:
            self.store.beat()
            self.beaten = now
        if now - self.looked < LOOK_SECONDS:
            return
        self.slots, self.looked = self._slots(), now
        if self.ray.wait([self.reports], timeout=0)[0]:
            # Reports go away with the node that keeps them.
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.steps |= self.ray.get(self.reports)
            self.reports = self.board.take.remote()

    def _slots(self) -> int:
        return sum(self.cluster.slots(node) for node in self.ray.nodes())

    def _progress(self) -> tuple[int, str]:
        jobs = dict(self.running.values())
        self.steps = {number: step for number, step in self.steps.items() if number in jobs}
        training = [job for number, job in jobs.items() if number in self.steps]
        text = label(training[-1].group[0]) if training else ""
        done = self.done + sum(min(step, jobs[number].steps) for number, step in self.steps.items())
        return done, text if self.slots else "no node is left that has what a group takes; waiting for one"


def _board() -> type:
    """The class of an actor that keeps the steps which workers report, until the driver takes them.

    A class made inside a function travels by value: the actor's process need not import this package, and torch.
    """

    class Board:
        def __init__(self) -> None:
            self.steps: dict[int, int] = {}

        def report(self, number: int, step: int) -> None:
            self.steps[number] = step

        def take(self) -> dict[int, int]:
            taken, self.steps = self.steps, {}
            return taken

    return Board


def _train_group(
    number: int, texts: Sequence[str], device: str, timeout: float | None, compiled: bool, board: Any
) -> tuple[Parts, dict[str, str | int]]:
    """On a worker: train one group in one thread, as every executor does."""
    where, last = resolve_device(device), time.monotonic()
    if where.type == "cpu":
        torch.set_num_threads(1)
    if compiled:
        need_compiler(where)

    def on_step(step: int) -> None:
        nonlocal last
        if time.monotonic() - last > LOOK_SECONDS:
            last = time.monotonic()
            with contextlib.suppress(Exception):
                # For the eye only: no report may end what it is about.
                board.report.remote(number, step)

    group = [Trial.from_json(text) for text in texts]
    parts = [
        ([trial.id for trial in part], [_plain(outcome) for outcome in outcomes])
        for part, outcomes in attempt(group, where, on_step, timeout, compiled)
    ]
    return parts, environment(where, compiled)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**vars(outcome), "curve": [tuple(point) for point in outcome.curve]}


def _outcome(fields: dict[str, Any]) -> Outcome:
    return Outcome(**{**fields, "curve": [Point(*point) for point in fields["curve"]]})
