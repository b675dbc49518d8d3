"""The store: nothing finished is lost or repeated, whatever happens to the process."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pandas as pd
import pytest
from small import small_trials

from headcount.config import BadInput
from headcount.experiments import Execution, Store, attempt, processes, runner
from headcount.experiments import store as store_module
from headcount.experiments.store import FILE_NAME, StoreError
from headcount.experiments.training import Outcome

SMALL = (
    "--set",
    "training.steps=150",
    "--set",
    "training.test_examples=64",
    "--set",
    "training.validation_examples=32",
)
SWEEP = [sys.executable, "-m", "headcount", "sweep", "polynomial", "--k", "1:3", "--heads", "1:4", "--tokens", "6",
         "--seeds", "2", "--workers", "1", *SMALL]  # fmt: skip
COMPARED = ["id", "status", "error", "best_error", "best_step", "weight_norm", "parameters"]


def _dies(*args):
    os._exit(9)


def rows_of(folder):
    return Store(folder, create=False).rows().sort_values("id").reset_index(drop=True)


def test_killed_sweep_loses_nothing_and_repeats_nothing(tmp_path):
    subprocess.run([*SWEEP, "--results", str(tmp_path / "calm")], check=True, capture_output=True)
    calm = rows_of(tmp_path / "calm")
    kept = {}
    for _ in range(3):
        process = subprocess.Popen(
            [*SWEEP, "--results", str(tmp_path / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = len(kept)
        deadline = time.time() + 120
        while time.time() < deadline and process.poll() is None:
            time.sleep(0.02)
            if (tmp_path / "killed" / FILE_NAME).exists():
                with sqlite3.connect(tmp_path / "killed" / FILE_NAME, timeout=30) as database:
                    tables = database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]
                    done = database.execute("SELECT COUNT(*) FROM results").fetchone()[0] if tables else 0
                if done >= before + 4:
                    break
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows = rows_of(tmp_path / "killed")
        finished = rows[rows["status"] == "done"].set_index("id")["finished_at"].to_dict()
        assert kept.items() <= finished.items()
        kept = finished
    assert len(kept) >= 4
    subprocess.run([*SWEEP, "--results", str(tmp_path / "killed")], check=True, capture_output=True)
    killed = rows_of(tmp_path / "killed")
    assert kept.items() <= killed.set_index("id")["finished_at"].to_dict().items()
    pd.testing.assert_frame_equal(calm[COMPARED], killed[COMPARED])


def test_interrupt_stops_cleanly_and_gives_claims_back(tmp_path):
    command = [*SWEEP, "--set", "training.steps=5000", "--results", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while time.time() < deadline:
        time.sleep(0.1)
        if (tmp_path / FILE_NAME).exists():
            with sqlite3.connect(tmp_path / FILE_NAME, timeout=30) as database:
                tables = database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'trials'").fetchone()[0]
                if tables and database.execute("SELECT COUNT(*) FROM trials WHERE status = 'running'").fetchone()[0]:
                    break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in errors
    assert "Traceback" not in errors
    assert "running" not in set(rows_of(tmp_path)["status"])


def test_workers_give_the_same_rows_as_one_process(tmp_path):
    trials = small_trials()
    stores = {}
    for workers in (1, 2):
        store = Store(tmp_path / str(workers))
        store.plan(trials, "s")
        report = runner.run(trials, store, Execution("cpu", workers))
        assert (report.ran, report.elsewhere) == (4, 0)
        stores[workers] = store.rows().sort_values("id")[COMPARED].reset_index(drop=True)
    pd.testing.assert_frame_equal(stores[1], stores[2])


def test_second_run_does_nothing(tmp_path):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    assert runner.run(trials, store, Execution("cpu", 1)).ran == 4
    again = runner.run(trials, store, Execution("cpu", 1))
    assert (again.ran, again.already) == (0, 4)
    assert len(store.rows()) == 4
    assert len(store.curves()) == 4 * 10


def test_planning_twice_keeps_outcomes(tmp_path):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "first")
    runner.run(trials[:2], store, Execution("cpu", 1))
    store.plan(trials, "second")
    assert sorted(store.rows()["status"]) == ["done", "done", "planned", "planned"]
    assert set(store.rows()["sweep"]) == {"first"}


def test_exceptions_are_rows_with_their_traceback(tmp_path, monkeypatch):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")

    def broken(*args, **kwargs):
        raise MemoryError("no room for the stack")

    monkeypatch.setattr(attempt, "train", broken)
    report = runner.run(trials, store, Execution("cpu", 1))
    assert report.failed == 4
    assert store.rows()["traceback"].str.contains("no room for the stack").all()
    assert store.rows()["error"].isna().all()
    monkeypatch.undo()
    assert runner.run(trials, store, Execution("cpu", 1)).ran == 0
    assert store.retry_failed() == 4
    assert runner.run(trials, store, Execution("cpu", 1)).ran == 4
    assert set(store.rows()["status"]) == {"done"}


def test_claims_keep_processes_apart_and_expire(tmp_path, monkeypatch):
    trials = small_trials()
    ids = [trial.id for trial in trials]
    mine, other = Store(tmp_path), Store(tmp_path)
    mine.plan(trials, "s")
    other.owner = "elsewhere:1:a"
    assert mine.claim(ids[:2]) == ids[:2]
    assert other.claim(ids) == ids[2:]
    mine.owner = "third:1:b"
    assert mine.claim(ids) == []
    monkeypatch.setattr(store_module, "CLAIM_SECONDS", 0.01)
    time.sleep(0.05)
    assert mine.claim(ids) == ids[2:], "a live process of this host keeps its claims, however long it is silent"


def test_dead_process_on_this_host_loses_its_claim_at_once(tmp_path):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    host = store.owner.rsplit(":", 2)[0]
    mine, store.owner = store.owner, f"{host}:{child.pid}:c"
    store.claim([trials[0].id])
    store.owner = mine
    assert store.claim([trials[0].id]) == [trials[0].id]


def test_a_process_number_in_other_hands_keeps_no_claim(tmp_path):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    mine, host = store.owner, store.owner.rsplit(":", 2)[0]
    store.owner = f"{host}:{os.getpid()}:before-restart"
    store.claim([trials[0].id])
    store.owner = mine
    assert store.claim([trials[0].id]) == []
    store._database.execute("UPDATE trials SET heartbeat = heartbeat - 1e6")
    assert store.claim([trials[0].id]) == [trials[0].id], "claimed long before this process began"
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    store.owner = f"{host}:{zombie.pid}:dead"
    store.claim([trials[1].id])
    store.owner = mine
    assert store.claim([trials[1].id]) == [trials[1].id], "dead, though nobody has collected it"
    zombie.wait()


def test_outcome_curve_and_status_are_one_transaction(tmp_path):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    store.claim([trials[0].id])
    broken = Outcome(status="done", error=0.1, curve=[(1, 0.1, 0.1), (2, "not a number", object())])
    with pytest.raises(sqlite3.Error):
        store.finish(trials[:1], [broken], {})
    store.release()
    assert set(store.rows()["status"]) == {"planned"}
    assert store.curves().empty


def test_a_trial_taken_over_is_not_written_twice(tmp_path):
    trials, slow, other = small_trials(), Store(tmp_path), Store(tmp_path)
    slow.plan(trials, "s")
    slow.owner = "elsewhere:1:a"
    slow.claim([trials[0].id])
    slow._database.execute("UPDATE trials SET heartbeat = 0 WHERE owner IS NOT NULL")
    assert other.claim([trials[0].id]) == [trials[0].id]
    slow.finish(trials[:1], [Outcome(status="done", error=0.5)], {})
    assert other.rows()["error"].isna().all()
    other.finish(trials[:1], [Outcome(status="done", error=0.25)], {})
    assert other.rows()["error"].dropna().tolist() == [0.25]


def test_dead_workers_are_reported(tmp_path, monkeypatch):
    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    monkeypatch.setattr(processes, "work", _dies)
    report = runner.run(trials, store, Execution("cpu", 2))
    assert report.died == 2
    assert report.broken
    assert set(store.rows()["status"]) == {"planned"}


def test_rows_carry_every_field_and_export_reads_back(tmp_path):
    from headcount import Results

    trials, store = small_trials(), Store(tmp_path)
    store.plan(trials, "s")
    runner.run(trials, store, Execution("cpu", 1))
    rows = store.rows()
    assert {*trials[0].flat(), "error", "environment", "seconds"} <= set(rows.columns)
    results = Results(tmp_path)
    assert results.export("parquet", tmp_path / "rows.parquet") == 4
    assert results.export("csv", tmp_path / "rows.csv") == 4
    for table in (pd.read_parquet(tmp_path / "rows.parquet"), pd.read_csv(tmp_path / "rows.csv")):
        assert table["id"].tolist() == rows["id"].tolist()
        assert table["error"].tolist() == pytest.approx(rows["error"].tolist())
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_is_no_store_is_named_and_left_alone(tmp_path):
    path = tmp_path / FILE_NAME
    path.write_bytes(b"this is not a database, and it is precious" * 50)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=r"headcount\.sqlite' cannot be used"):
        Store(tmp_path)
    assert path.read_bytes() == before


def test_a_newer_store_is_refused(tmp_path):
    store = Store(tmp_path)
    store._database.execute("UPDATE meta SET value = '999' WHERE key = 'version'")
    store.close()
    with pytest.raises(BadInput, match="version 999"):
        Store(tmp_path)


def test_unusable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be used"):
        Store(tmp_path / "file")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(BadInput, match="cannot be used"):
            Store(tmp_path / "locked")
    with pytest.raises(BadInput, match="no results in"):
        Store(tmp_path / "nothing", create=False)


def test_rows_that_are_twice_where_they_should_be_once_are_damage(tmp_path):
    store = Store(tmp_path)
    store._database.execute(
        "CREATE TABLE twice AS SELECT 'cpm3-order' AS claim, 'HOLDS' AS verdict UNION ALL SELECT 'cpm3-order', 'X'"
    )
    store._database.execute("DROP TABLE verdicts")
    store._database.execute("ALTER TABLE twice RENAME TO verdicts")
    with pytest.raises(StoreError, match=r"cannot be used as a store: .*claim of their own"):
        store.verdicts()
