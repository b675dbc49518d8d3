"""Kill sweeps at random moments, start them again, and compare what they leave with an undisturbed store.

Long run: python -m tests.kills --kills 200
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headcount import cli

FILE = "headcount.sqlite"
SWEEP = [
    "headcount", "sweep", "polynomial", "--k", "1:3", "--heads", "1:4", "--tokens", "6",
    "--seeds", "4", "--set", "training.steps=250", "--set", "training.test_examples=64",
    "--set", "training.validation_examples=32",
]  # fmt: skip
NUMBERS = "error, error_stderr, best_error, best_stderr, best_step, last_step, weight_norm, parameters"


@dataclass
class Tally:
    """What a run of kills found."""

    kills: int = 0
    sweeps: int = 0
    lost: int = 0
    rerun: int = 0
    duplicated: int = 0
    differing: int = 0
    stages: collections.Counter = field(default_factory=collections.Counter)
    targets: collections.Counter = field(default_factory=collections.Counter)

    @property
    def clean(self):
        return not (self.lost or self.rerun or self.duplicated or self.differing)

    def __str__(self):
        return (
            f"{self.kills} kills over {self.sweeps} sweeps: {self.lost} lost, {self.duplicated} duplicated, {self.rerun} "
            f"rerun, {self.differing} differing; stage when killed: {dict(self.stages)}; killed: {dict(self.targets)}"
        )


class Sweep:
    """The console script in a forked process of its own group: as the real one, without seconds of imports."""

    def __init__(self, folder, workers):
        self.folder, self.code, self.errors = folder, None, folder.with_suffix(f".{time.monotonic_ns()}.txt")
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            log = os.open(self.errors, os.O_CREAT | os.O_WRONLY)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(log, 2)
            sys.argv = [*SWEEP, "--workers", str(workers), "--results", str(folder)]
            code = 1
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
            finally:
                os._exit(code)

    def poll(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds=600):
        """Exit code; negative for a signal."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"a sweep did not end in {seconds} s")
            time.sleep(0.01)
        return self.code

    def workers(self):
        children = psutil.Process(self.pid).children()
        return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]


def finished(folder):
    """finished_at of every finished trial, read from a copy: recovering the log is left to the program."""
    with copied(folder) as database:
        if not database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]:
            return {}
        rows = database.execute(
            "SELECT r.id, r.finished_at FROM results r JOIN trials t ON t.id = r.id WHERE t.status = 'done'"
        ).fetchall()
        assert len(rows) == len(dict(rows)), "a result is there twice"
        return dict(rows)


def content(folder):
    """Numbers and curve of every trial."""
    with copied(folder) as database:
        curves = collections.defaultdict(list)
        for key, *point in database.execute("SELECT id, step, loss, error FROM curves ORDER BY id, step"):
            curves[key].append(tuple(point))
        rows = database.execute(
            f"SELECT t.id, t.status, {NUMBERS} FROM trials t LEFT JOIN results r ON r.id = t.id"
        ).fetchall()
        return {row[0]: (row[1:], curves[row[0]]) for row in rows}, len(rows)


@contextlib.contextmanager
def copied(folder):
    with tempfile.TemporaryDirectory() as place:
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{folder / FILE}{end}", f"{place}/{FILE}{end}")
        with contextlib.closing(sqlite3.connect(f"{place}/{FILE}")) as database:
            yield database


def stage(folder):
    """Where the process was: before the store was there, planning, between groups, training, or writing, which
    leaves frames of the log that no commit ends."""
    if not (folder / FILE).exists():
        return "before the store"
    if torn(Path(f"{folder / FILE}-wal")):
        return "writing"
    with copied(folder) as database:
        if not database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'trials'").fetchone()[0]:
            return "planning"
        counts = dict(database.execute("SELECT status, COUNT(*) FROM trials GROUP BY status"))
    if not counts:
        return "planning"
    return "training" if counts.get("running") else "between groups"


def torn(log):
    """Whether the last frame of a write-ahead log that belongs to its present salt is no commit."""
    data = log.read_bytes() if log.exists() else b""
    if len(data) < 32:
        return False
    page, salts, last = struct.unpack(">I", data[8:12])[0], data[16:24], None
    for at in range(32, len(data), 24 + page):
        if data[at + 8 : at + 16] != salts:
            break
        last = struct.unpack(">I", data[at + 4 : at + 8])[0]
    return last == 0 or (last is not None and (len(data) - 32) % (24 + page) != 0)


def written(folder):
    """Changes whenever the store is written."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(f"{folder / FILE}-wal")
        return found.st_size, found.st_mtime_ns
    return None


def wait_for_moment(sweep, choice):
    """Return at a random moment: at any time; soon after the store is first written; or on a write."""
    kind = choice.choice(("any", "soon", "write", "write"))
    if kind == "any":
        time.sleep(choice.uniform(0, 1.5))
        return
    changes = 1 if kind == "soon" else choice.randint(1, 12)
    before, deadline = written(sweep.folder), time.monotonic() + 60
    while changes and time.monotonic() < deadline:
        now = written(sweep.folder)
        if now != before:
            before, changes = now, changes - 1
        elif sweep.poll() is not None:
            return
    if kind == "soon":
        time.sleep(choice.uniform(0, 0.5))


def kill(sweep, target, choice):
    """Kill everything, the parent alone, or one worker alone; returns whether it was there."""
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        if target == "worker":
            if not (workers := sweep.workers()):
                return False
            os.kill(choice.choice(workers), signal.SIGKILL)
        elif target == "parent":
            os.kill(sweep.pid, signal.SIGKILL)
        else:
            os.killpg(sweep.pid, signal.SIGKILL)
        return True
    return False


def disturb(folder, workers, choice, tally, kills):
    """One process, killed; or a worker of it, and then the rest. Returns whether the sweep came to its end."""
    sweep = Sweep(folder, workers)
    targets = ["all"] if workers == 1 else choice.choice((["all"], ["parent"], ["worker", "all"], ["worker"]))
    for target in targets:
        wait_for_moment(sweep, choice)
        if sweep.poll() is None and tally.kills < kills and kill(sweep, target, choice):
            tally.kills += 1
            tally.targets[target] += 1
            if target == "worker":
                continue
            sweep.wait()
            tally.stages[stage(folder)] += 1
            if target == "parent":
                # Orphaned workers notice at their next sign of life, and may end a group before.
                time.sleep(1.0)
            return False
    code = sweep.wait()
    assert code in (0, 3), sweep.errors.read_text()
    assert "Traceback" not in sweep.errors.read_text()
    return True


def kill_sweeps(kills, seed, place, say=lambda text: None):
    """Kill sweeps of one and of two workers until there were `kills` kills; every sweep is ended undisturbed."""
    choice, tally, calm = random.Random(seed), Tally(), {}
    for workers in (1, 2):
        assert Sweep(place / f"calm-{workers}", workers).wait() == 0
        calm[workers] = content(place / f"calm-{workers}")
    while tally.kills < kills:
        workers, folder, kept, ended = choice.choice((1, 1, 2)), place / f"sweep-{tally.sweeps}", {}, False
        while not ended:
            ended = tally.kills >= kills or disturb(folder, workers, choice, tally, kills)
            if ended:
                assert Sweep(folder, workers).wait() == 0
            now = finished(folder)
            tally.lost += len(kept.keys() - now.keys())
            tally.rerun += sum(now[key] != kept[key] for key in kept.keys() & now.keys())
            kept = now
        (expected, _), (found, rows) = calm[workers], content(folder)
        tally.sweeps += 1
        tally.lost += len(expected.keys() - found.keys())
        tally.duplicated += rows - len(found)
        tally.differing += sum(found.get(key) != value for key, value in expected.items())
        say(str(tally))
        shutil.rmtree(folder)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        tally = kill_sweeps(arguments.kills, arguments.seed, Path(place), lambda text: print(text, flush=True))
    print(f"{tally}; seed {arguments.seed}, {time.monotonic() - started:.0f} s")
    raise SystemExit(not tally.clean)


if __name__ == "__main__":
    main()
