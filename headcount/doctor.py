"""Is this installation, this machine and this store in order?"""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from headcount.experiments import Store, Trial, memory, recovery
from headcount.experiments.store import FILE_NAME, STORE_VERSION, abandoned
from headcount.experiments.training import train
from headcount.tasks.operators import cyclic_shift
from headcount.theory.constructions.construction import deviation
from headcount.theory.constructions.polynomial import iha_polynomial

CPU = torch.device("cpu")
SCARCE_GIB = 1.0
AGREEMENT = 1e-4
"""Relative difference in float32 between a model trained in a stack and alone."""


class Check(NamedTuple):
    """One line of a diagnosis."""

    name: str
    status: Literal["ok", "WARN", "FAIL"]
    found: str


def diagnose(results: str | Path = "results") -> Iterator[Check]:
    """Every check, as it is made."""
    yield from _versions()
    yield from _machine()
    yield from _store(Path(results))
    yield from (_tried(name, test) for name, test in _SELF_TESTS.items())


def _versions() -> Iterator[Check]:
    yield Check("headcount", "ok", f"{metadata.version('headcount')}, stores of version {STORE_VERSION}")
    yield Check("python", "ok", platform.python_version())
    for name, version in (("torch", torch.__version__), ("numpy", np.__version__), ("sqlite", sqlite3.sqlite_version)):
        yield Check(name, "ok", version)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cpu", "ok", f"{platform.machine()}, {cores} cores, {torch.get_num_threads()} threads of torch")
    free, total = (amount / memory.GIB for amount in (memory.free(CPU), memory.total(CPU)))
    yield Check("memory", "ok" if free > SCARCE_GIB else "WARN", f"{free:.1f} of {total:.1f} GiB are free")
    for number in range(torch.cuda.device_count()):
        free, total = (amount / memory.GIB for amount in torch.cuda.mem_get_info(number))
        yield Check(
            f"cuda:{number}", "ok", f"{torch.cuda.get_device_name(number)}, {free:.1f} of {total:.1f} GiB are free"
        )


def _store(folder: Path) -> Iterator[Check]:
    path = folder / FILE_NAME
    if not Store.is_in(folder):
        yield Check("store", "ok", f"none in '{folder}' yet")
        return
    try:
        # Opened to be read only: looking at an older store must not migrate it.
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            if not recovery.in_order(database):
                yield Check("store", "FAIL", f"'{path}' is damaged; 'headcount runs recover' saves what can be read")
                return
            version = int(database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0])
            counts = dict(database.execute("SELECT status, COUNT(*) FROM trials GROUP BY status"))
            claims = database.execute("SELECT owner, heartbeat FROM trials WHERE status = 'running'").fetchall()
    except sqlite3.Error as error:
        yield Check("store", "FAIL", f"'{path}' cannot be read: {error}")
        return
    held = ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "no trials"
    text = f"'{path}' is whole, version {version}: {held}"
    if version > STORE_VERSION:
        yield Check("store", "FAIL", f"{text}; this program reads version {STORE_VERSION}")
    elif version < STORE_VERSION:
        yield Check("store", "WARN", f"{text}; the next command migrates it, and keeps a copy")
    else:
        yield Check("store", "WARN" if "failed" in counts else "ok", text)
    if gone := sum(abandoned(*claim) for claim in claims):
        yield Check("claims", "WARN", f"{gone} trials of processes that are gone; the next run takes them over")


def _trial(seed: int) -> Trial:
    return Trial.build(
        {
            "task": {"name": "polynomial", "k": 2, "tokens": 4},
            "model": {"heads": 2, "score": "linear", "content": "positions", "value_content": "features"},
            "training": {"steps": 20, "validation_examples": 16, "test_examples": 64},
            "seed": seed,
        }
    )


def _trains() -> str:
    group = [_trial(0), _trial(1)]
    together, alone = train(group, CPU), [train([trial], CPU)[0] for trial in group]
    apart = max(abs(a.error - b.error) / b.error for a, b in zip(together, alone, strict=True))
    if not apart < AGREEMENT:
        raise ArithmeticError(f"a model trained in a stack differs from the same alone by {apart:.1e}")
    return f"a stack of two models equals each alone within {apart:.1e}"


def _proves() -> str:
    construction = iha_polynomial(cyclic_shift(7), 4)
    apart = deviation(construction)
    if not apart < construction.tolerance:
        raise ArithmeticError(f"{construction.name} deviates by {apart:.1e}")
    return f"{construction.name} is exact within {apart:.1e}"


def _stores() -> str:
    group = [_trial(0)]
    (outcome,) = train(group, CPU)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.plan(group, "doctor")
        store.claim([group[0].id])
        store.finish(group, [outcome], {})
        store.close()
        again = Store(folder, create=False)
        read, points = again.rows()["error"].iloc[0], len(again.curves())
        again.close()
    if (read, points) != (outcome.error, len(outcome.curve)):
        raise ArithmeticError("a row came back from the store with other numbers")
    return "a row comes back from a new store as it was written"


_SELF_TESTS: dict[str, Callable[[], str]] = {"training": _trains, "construction": _proves, "writing": _stores}


def _tried(name: str, test: Callable[[], str]) -> Check:
    started = time.perf_counter()
    try:
        found = test()
    except Exception as error:
        return Check(name, "FAIL", f"{type(error).__name__}: {error}")
    return Check(name, "ok", f"{found} ({time.perf_counter() - started:.1f} s)")
