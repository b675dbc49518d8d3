"""Save what a damaged store still holds. A trial counts as finished only if its result and its whole curve can be
read; any other that can be read is planned again, and gives the same numbers again."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headcount.config import BadInput, file_errors
from headcount.experiments.store import FILE_NAME, Store, abandoned
from headcount.experiments.trial import Trial

SMALLEST_ROW = 64
"""Bytes; with the size of the file this bounds the row numbers to look for."""

SIDE_FILES = ("", "-wal", "-shm")

Row = dict[str, Any]


class Saved(NamedTuple):
    """What `recover` did: how many rows the new store has, its path, and that of the old file."""

    trials: int
    results: int
    curves: int
    path: Path
    kept: Path


def recover(folder: Path) -> Saved:
    """Write what can be read of the store in `folder` into a new one, and keep the old under another name.

    Raises:
        BadInput: if there is no store, it is in order, or a living process runs trials of it.
    """
    path = folder / FILE_NAME
    if not Store.is_in(folder):
        raise BadInput(f"no results in '{folder}' yet; there is nothing to recover")
    with (
        file_errors(path, f"'{path}' cannot be recovered here"),
        tempfile.TemporaryDirectory(dir=folder, prefix="recovery-") as name,
    ):
        # Opening replays the log of the last writer; that happens to a copy.
        for end in SIDE_FILES[:2]:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{end}", Path(name, f"old{end}"))
        with contextlib.closing(sqlite3.connect(Path(name, "old"), isolation_level=None)) as old:
            if in_order(old):
                raise BadInput(f"'{path}' is in order; there is nothing to recover")
            trials, results, curves = _readable(old, path)
        new = Store(name)
        new.restore(trials, results, curves)
        new.close()
        kept = _unused(folder)
        for end in SIDE_FILES:
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{end}").rename(f"{kept}{end}")
        Path(name, FILE_NAME).rename(path)
    return Saved(len(trials), len(results), sum(map(bool, curves.values())), path, kept)


def in_order(database: sqlite3.Connection) -> bool:
    """Whether every page and index of a database fits together."""
    try:
        return [row[0] for row in database.execute("PRAGMA integrity_check(1)")] == ["ok"]
    except sqlite3.DatabaseError:
        return False


def _readable(old: sqlite3.Connection, path: Path) -> tuple[list[Row], list[Row], dict[str, list[Row]]]:
    """Trials that can be read, results of the finished ones, and their curves."""
    trials = {}
    for row in _rows(old, "trials"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            # A damaged page can hold anything.
            if Trial.from_json(row["config"]).id == row["id"]:
                trials[row["id"]] = row
    if living := next((row["owner"] for row in trials.values() if _alive(row)), None):
        raise BadInput(f"process {living} runs trials of '{path}'; stop it first")
    results, curves = [], {}
    for row in _rows(old, "results"):
        trial = trials.get(row["id"])
        if trial is None or trial["status"] not in ("done", "nan", "failed"):
            continue
        try:
            points = _fetch(old, "SELECT * FROM curves WHERE id = ? ORDER BY step", row["id"])
        except sqlite3.Error:
            continue
        if points or trial["status"] == "failed":
            results.append(row)
            curves[row["id"]] = points
    for key, trial in trials.items():
        trial["owner"] = trial["heartbeat"] = None
        if key not in curves:
            trial["status"] = "planned"
    return list(trials.values()), results, curves


def _alive(trial: Row) -> bool:
    return trial["status"] == "running" and not abandoned(trial["owner"], trial["heartbeat"])


def _rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """The rows of a table whose pages can be read: ranges of row numbers that cannot are halved."""
    try:
        pages, size = (old.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        old.execute(f"SELECT 1 FROM {table} LIMIT 0")
    except sqlite3.Error:
        return
    # Numbers of rows that were retried are not used again.
    waiting = [(0, 2**20 + pages * size // SMALLEST_ROW)]
    while waiting:
        first, last = waiting.pop()
        try:
            # An index may be damaged where the table is not.
            query = f"SELECT * FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
            found = _fetch(old, query, first, last)
        except sqlite3.Error:
            middle = (first + last) // 2
            if first < last:
                waiting += [(middle + 1, last), (first, middle)]
        else:
            yield from found


def _fetch(database: sqlite3.Connection, query: str, *parameters: Any) -> list[Row]:
    cursor = database.execute(query, parameters)
    names: Sequence[str] = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _unused(folder: Path) -> Path:
    """A name for the damaged file that no other has."""
    number = 1
    while (kept := folder / f"{FILE_NAME}.damaged-{number}").exists():
        number += 1
    return kept
