"""The store: one SQLite file with every planned trial, its outcome, its learning curve, and verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headcount.config import BadInput, file_errors
from headcount.experiments.training import Outcome
from headcount.experiments.trial import Trial, flatten

STORE_VERSION = 3
FILE_NAME = "headcount.sqlite"
CLAIM_SECONDS = 60.0
"""A claim of another host without a sign of life for this long may be taken over."""
CLOCK_SECONDS = 5.0
"""How far the clock may have been set back since a claim, without the process that holds it losing it."""
BUSY_SECONDS = 60.0
"""How long to wait for another process that writes."""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    id TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    sweep TEXT NOT NULL,
    status TEXT NOT NULL,          -- planned, running, done, nan, failed
    owner TEXT,                    -- host:pid:token of the store that runs it
    heartbeat REAL,
    planned_at REAL NOT NULL
);
CREATE INDEX trials_status ON trials (status);
CREATE TABLE results (
    id TEXT PRIMARY KEY REFERENCES trials (id),
    error REAL, error_stderr REAL,
    best_error REAL, best_stderr REAL, best_step INTEGER, last_step INTEGER,
    accuracy REAL, best_accuracy REAL,
    weight_norm REAL, parameters INTEGER, seconds REAL, stack INTEGER,
    environment TEXT NOT NULL, finished_at REAL NOT NULL,
    cause TEXT, traceback TEXT          -- of a failure
);
CREATE TABLE curves (
    id TEXT NOT NULL REFERENCES trials (id), step INTEGER NOT NULL, loss REAL, error REAL,
    train_error REAL, test_error REAL,
    PRIMARY KEY (id, step)
) WITHOUT ROWID;
CREATE TABLE verdicts (
    claim TEXT PRIMARY KEY, verdict TEXT NOT NULL, predicted TEXT NOT NULL, measured TEXT NOT NULL,
    details TEXT NOT NULL, computed_at REAL NOT NULL
);
"""

_NUMBERS = (
    "error", "error_stderr", "best_error", "best_stderr", "best_step", "last_step", "accuracy", "best_accuracy",
    "weight_norm", "parameters", "seconds", "stack",
)  # fmt: skip

_ADVICE = {
    sqlite3.SQLITE_FULL: "there is no space left; what was finished is stored, and the same command resumes once there is",
    sqlite3.SQLITE_IOERR: "the disk reports an error; what was finished is stored, and the same command resumes",
    sqlite3.SQLITE_CORRUPT: "it is damaged; 'headcount runs recover' saves what can be read and keeps this file",
    sqlite3.SQLITE_NOTADB: "it is damaged, or no database; 'headcount runs recover' saves what can be read and keeps this file",
    sqlite3.SQLITE_READONLY: "it may not be written; name another folder with --results",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened or created; name another folder with --results",
    sqlite3.SQLITE_BUSY: f"another program has kept it locked for {BUSY_SECONDS:.0f} s",
}  # fmt: skip
"""What to do about an error that is no fault of the program."""


class StoreError(BadInput):
    """A store that cannot be read or written; the message says why, and what to do."""


class Store:
    """Rows on disk. A trial is done only when its last row is in: outcome, curve and status are
    written in one transaction, so a killed process leaves nothing half-finished."""

    def __init__(self, folder: str | Path, create: bool = True) -> None:
        """Open, or create, the store under a results folder.

        Raises:
            StoreError: if the file cannot be used, or is no store of this version.
            BadInput: if the folder cannot be written, or holds no store and `create` is off.
        """
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        if not create and not self.is_in(folder):
            raise BadInput(f"no results in '{folder}' yet; run a sweep, or name another folder with --results")
        if not str(folder).strip():
            raise BadInput("the results folder needs a name")
        with file_errors(folder, f"results folder '{folder}' cannot be used"):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._plainly():
            self._database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._write_ahead()
            self._prepare()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    @staticmethod
    def is_in(folder: str | Path) -> bool:
        """Whether a folder holds a store, in whatever state.

        Raises:
            BadInput: if it cannot be looked into.
        """
        with file_errors(folder, f"results folder '{folder}' cannot be used"):
            return Path(folder, FILE_NAME).exists()

    @contextlib.contextmanager
    def _plainly(self) -> Iterator[None]:
        """Say in one sentence what is wrong with the file."""
        try:
            yield
        except (sqlite3.Error, pd.errors.DatabaseError, UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
            cause = error if isinstance(error, sqlite3.Error) else error.__cause__ or error
            if isinstance(cause, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
                raise  # a fault of this program
            # Text that is none, or a table that lost its columns, are damage too.
            advice = _ADVICE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, _ADVICE[sqlite3.SQLITE_CORRUPT])
            raise StoreError(f"'{self.path}' cannot be used as a store: {advice} ({cause})") from None

    def _write_ahead(self) -> None:
        """Switch a new file to a write-ahead log: readers never wait, and a killed writer leaves whole rows."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # This statement alone does not wait while another process does the same.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _prepare(self) -> None:
        with self._transaction() as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                # executescript would commit the surrounding transaction.
                for statement in _TABLES.split(";\n"):
                    if statement.strip():
                        database.execute(statement)
                database.execute("INSERT INTO meta VALUES ('version', ?)", (str(STORE_VERSION),))
            elif "meta" not in tables:
                raise StoreError(f"'{self.path}' is a database, but not a store of this program")
            row = database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
            if row is None or not str(row[0]).isdecimal():
                raise sqlite3.DatabaseError("no version number")
            version = int(row[0])
        if version > STORE_VERSION:
            raise StoreError(
                f"'{self.path}' is a store of version {version}, this program reads version {STORE_VERSION};"
                " name another folder with --results"
            )
        if version < STORE_VERSION:
            self._migrate(version)

    def _migrate(self, version: int) -> None:
        """Bring an older store to this version, all or nothing, with a copy of it beside it first."""
        backup = self.path.with_name(f"{FILE_NAME}.v{version}.bak")
        with contextlib.closing(sqlite3.connect(backup)) as copy:
            self._database.backup(copy)
        with self._transaction() as database:
            stored = int(database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0])
            if stored < 2:
                _from_version_1(database)
            if stored < 3:
                _from_version_2(database)
            database.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(STORE_VERSION),))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._plainly():
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                # A full disk or a damaged page ends the transaction by itself.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def plan(self, trials: Iterable[Trial], sweep: str) -> None:
        """Register trials; those already known are left as they are."""
        now = time.time()
        rows = [(trial.id, trial.to_json(), sweep, now) for trial in trials]
        with self._transaction() as database:
            database.executemany(
                "INSERT OR IGNORE INTO trials (id, config, sweep, status, planned_at) VALUES (?, ?, ?, 'planned', ?)",
                rows,
            )

    def statuses(self, ids: Iterable[str]) -> dict[str, str]:
        """Status of each known id."""
        wanted = set(ids)
        with self._plainly():
            rows = self._database.execute("SELECT id, status FROM trials")
            return {key: status for key, status in rows if key in wanted}

    def causes(self, ids: Iterable[str]) -> dict[str, int]:
        """How many of these trials failed from which cause, the most frequent first."""
        wanted = set(ids)
        with self._plainly():
            rows = self._database.execute("SELECT id, cause FROM results WHERE cause IS NOT NULL")
            return dict(Counter(cause for key, cause in rows if key in wanted).most_common())

    def claim(self, ids: Sequence[str]) -> list[str]:
        """Take trials to run: planned ones, and running ones whose process is gone.

        Returns:
            The ids now owned by this process, in the order given.
        """
        now, mine = time.time(), []
        with self._transaction() as database:
            for key in ids:
                row = database.execute("SELECT status, owner, heartbeat FROM trials WHERE id = ?", (key,)).fetchone()
                if row is None or not (row[0] == "planned" or (row[0] == "running" and abandoned(row[1], row[2]))):
                    continue
                database.execute(
                    "UPDATE trials SET status = 'running', owner = ?, heartbeat = ? WHERE id = ?",
                    (self.owner, now, key),
                )
                mine.append(key)
        return mine

    def beat(self) -> None:
        """Show that this process is alive."""
        with self._transaction() as database:
            database.execute(
                "UPDATE trials SET heartbeat = ? WHERE owner = ? AND status = 'running'",
                (time.time(), self.owner),
            )

    def release(self) -> None:
        """Give back what this process has claimed and not finished."""
        with self._transaction() as database:
            database.execute(
                "UPDATE trials SET status = 'planned', owner = NULL WHERE owner = ? AND status = 'running'",
                (self.owner,),
            )

    def release_dead(self) -> None:
        """Give back what processes of this host claimed that no longer run."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT DISTINCT owner, MAX(heartbeat) FROM trials WHERE status = 'running' GROUP BY owner"
            ).fetchall()
            for owner, heartbeat in rows:
                if abandoned(owner, heartbeat):
                    database.execute(
                        "UPDATE trials SET status = 'planned', owner = NULL WHERE owner IS ? AND status = 'running'",
                        (owner,),
                    )

    def retry_failed(self, ids: Iterable[str] | None = None) -> int:
        """Plan failed trials again, all or those of some ids; returns how many."""
        with self._transaction() as database:
            failed = [key for (key,) in database.execute("SELECT id FROM trials WHERE status = 'failed'")]
            chosen = [(key,) for key in (failed if ids is None else set(failed).intersection(ids))]
            database.executemany("DELETE FROM results WHERE id = ?", chosen)
            database.executemany("UPDATE trials SET status = 'planned' WHERE id = ?", chosen)
        return len(chosen)

    def finish(self, trials: Sequence[Trial], outcomes: Sequence[Outcome], environment: dict[str, Any]) -> None:
        """Write outcomes, curves and final status, all or nothing.

        Trials that this store does not hold (any more) are left to whoever holds them now.
        """
        now, text = time.time(), json.dumps(environment, sort_keys=True)
        columns = ", ".join(("id", *_NUMBERS, "environment", "finished_at", "cause", "traceback"))
        marks = ", ".join("?" * (len(_NUMBERS) + 5))
        with self._transaction() as database:
            for trial, outcome in zip(trials, outcomes, strict=True):
                owner = database.execute("SELECT owner FROM trials WHERE id = ?", (trial.id,)).fetchone()
                if owner is None or owner[0] != self.owner:
                    continue
                numbers = [getattr(outcome, name) for name in _NUMBERS]
                database.execute(
                    f"INSERT OR REPLACE INTO results ({columns}) VALUES ({marks})",
                    (trial.id, *numbers, text, now, outcome.cause, outcome.traceback),
                )
                database.executemany(
                    "INSERT OR REPLACE INTO curves (id, step, loss, error, train_error, test_error) VALUES (?, ?, ?, ?, ?, ?)",
                    [(trial.id, *point) for point in outcome.curve],
                )
                database.execute("UPDATE trials SET status = ?, owner = NULL WHERE id = ?", (outcome.status, trial.id))

    def find(self, start: str) -> str:
        """The id that starts like this.

        Raises:
            BadInput: if there is none, or more than one.
        """
        with self._plainly():
            found = [key for (key,) in self._database.execute("SELECT id FROM trials") if key.startswith(start)]
        if len(found) == 1 and start:
            return str(found[0])
        some = f"{len(found)} runs" if found else "no run"
        raise BadInput(f"{some} in '{self.path}' with an id that starts with '{start}'; see 'headcount runs'")

    def one(self, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """All that is stored of a trial, and the points of its learning curve."""
        found: dict[str, Any] = {}
        for table in ("trials", "results"):
            for row in self._records(f"SELECT * FROM {table} WHERE id = ?", key):
                found |= row
        return found, self._records("SELECT * FROM curves WHERE id = ? ORDER BY step", key)

    def restore(
        self, trials: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]], curves: dict[str, Any]
    ) -> None:
        """Write rows as another store held them, into this empty one; curves by trial."""
        points = [point for curve in curves.values() for point in curve]
        with self._transaction() as database:
            for table, rows in (("trials", trials), ("results", results), ("curves", points)):
                for row in rows:
                    columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
                    database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", row)

    def _records(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        with self._plainly():
            cursor = self._database.execute(query, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def trials(self) -> dict[str, Trial]:
        """Every trial by id."""
        with self._plainly():
            rows = self._database.execute("SELECT id, config FROM trials").fetchall()
            return {key: Trial.from_json(config) for key, config in rows}

    def rows(self) -> pd.DataFrame:
        """One row a trial: id, sweep, status, every configuration field under its dotted name
        (task.k, model.heads, training.steps, seed), and the outcome's numbers (NaN until done)."""
        table = self._read(
            "SELECT t.id, t.sweep, t.status, t.config, r.* FROM trials t LEFT JOIN results r ON r.id = t.id"
            " ORDER BY t.planned_at, t.rowid",
            "id",
        )
        with self._plainly():
            fields = pd.DataFrame([flatten(json.loads(config)) for config in table["config"]], index=table.index)
        numbers = table.drop(columns=["id", "sweep", "status", "config"])
        return pd.concat([table[["id", "sweep", "status"]], fields, numbers], axis=1)

    def curves(self, ids: Iterable[str] | None = None) -> pd.DataFrame:
        """Learning curves, of all trials or those named: id, step, loss (of the step's batch), error (validation),
        train_error, test_error."""
        table = self._read("SELECT * FROM curves ORDER BY id, step", "id", "step")
        return table if ids is None else table[table["id"].isin(set(ids))]

    def _read(self, query: str, *key: str) -> pd.DataFrame:
        """What a query gives; its rows must differ in `key`, and do unless the file is damaged."""
        with self._plainly():
            table = pd.read_sql_query(query, self._database)
            table = table.loc[:, ~table.columns.duplicated()]
            if table[[*key]].isna().any(axis=None) or table.duplicated([*key]).any():
                raise sqlite3.DatabaseError(f"rows without {' and '.join(key)} of their own")
            return table

    def save_verdicts(self, verdicts: Iterable[dict[str, Any]]) -> None:
        """Replace the stored verdict of each claim given."""
        now = time.time()
        with self._transaction() as database:
            database.executemany(
                "INSERT OR REPLACE INTO verdicts VALUES (:claim, :verdict, :predicted, :measured, :details, :now)",
                [{**verdict, "details": json.dumps(verdict["details"]), "now": now} for verdict in verdicts],
            )

    def verdicts(self) -> pd.DataFrame:
        """Stored verdicts: claim, verdict, predicted, measured, details (JSON), computed_at."""
        return self._read("SELECT * FROM verdicts", "claim")


def _from_version_1(database: sqlite3.Connection) -> None:
    """Version 2 has curves of training and test, the last step, and training fields whose defaults are what
    version 1 always did; a run's id, the hash of its configuration, changes with them."""
    database.execute("ALTER TABLE curves ADD COLUMN train_error REAL")
    database.execute("ALTER TABLE curves ADD COLUMN test_error REAL")
    database.execute("ALTER TABLE results ADD COLUMN last_step INTEGER")
    database.execute("PRAGMA defer_foreign_keys = ON")
    for old, config in database.execute("SELECT id, config FROM trials").fetchall():
        trial = Trial.from_json(config)
        database.execute("UPDATE results SET last_step = ? WHERE id = ?", (trial.training.steps, old))
        database.execute("UPDATE trials SET config = ? WHERE id = ?", (trial.to_json(), old))
        for table in ("trials", "results", "curves"):
            database.execute(f"UPDATE {table} SET id = ? WHERE id = ?", (trial.id, old))


def _from_version_2(database: sqlite3.Connection) -> None:
    """Version 3 has the cause of a failure; that of old ones is the exception named last in their traceback."""
    database.execute("ALTER TABLE results ADD COLUMN cause TEXT")
    for key, text in database.execute("SELECT id, traceback FROM results WHERE traceback IS NOT NULL").fetchall():
        name = text.strip().splitlines()[-1].partition(":")[0].rpartition(".")[2]
        database.execute("UPDATE results SET cause = ? WHERE id = ?", (name, key))


def abandoned(owner: str | None, heartbeat: float | None) -> bool:
    """Whether a claim's process is gone: dead on this host, or silent for too long on another. A number that the
    host has given to a younger process since, as after a restart, is not that process."""
    if owner is None or heartbeat is None:
        return True
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return time.time() - heartbeat > CLAIM_SECONDS
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return _started(int(pid)) > heartbeat + CLOCK_SECONDS


def _started(pid: int) -> float:
    """When a process began, where Linux tells: infinitely late for one that is dead and not yet collected."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return float("-inf")
    return float("inf") if state == "Z" else int(boot.split()[1]) + int(fields[18]) / os.sysconf("SC_CLK_TCK")
