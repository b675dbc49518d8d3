"""What may happen to a store and to the processes that write it, made to happen."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest
from small import planned
from small import small_trials as trials

from headcount import api
from headcount.config import BadInput
from headcount.experiments import Execution, Store, runner
from headcount.experiments.store import FILE_NAME, STORE_VERSION, StoreError

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
NUMBERS = ["id", "status", "error", "best_error", "best_step", "last_step", "weight_norm", "parameters"]


def numbers(store):
    return store.rows().sort_values("id")[NUMBERS].reset_index(drop=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Rows and curves of `trials()`, run without any trouble."""
    store = planned(tmp_path_factory.mktemp("calm"), trials())
    runner.run(trials(), store, Execution("cpu", 1))
    return numbers(store), store.curves()


def resumes(folder, undisturbed):
    """Running `trials()` again ends at the undisturbed rows and curves, whatever else the store holds."""
    store, few = planned(folder, trials()), [trial.id for trial in trials()]
    runner.run(trials(), store, Execution("cpu", 1))
    for found, expected in zip((numbers(store), store.curves()), undisturbed, strict=True):
        pd.testing.assert_frame_equal(found[found["id"].isin(few)].reset_index(drop=True), expected, check_dtype=False)


# Kills and signals


def long_run(*words):
    """The long run of a module beside this file, made short."""
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_few_kills():
    done = long_run("tests.kills", "--kills", "8", "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 kills" in done.stdout
    assert "0 lost, 0 duplicated, 0 rerun, 0 differing" in done.stdout


def test_processes_share_a_store_and_one_is_killed():
    done = long_run("tests.writers", "--trials", "320")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "320 trials" in done.stdout
    assert "0 faults" in done.stdout


def command(folder, *more):
    return [sys.executable, "-m", "headcount", "sweep", "polynomial", "--k", "1:3", "--heads", "1:2", "--tokens", "6",
            "--set", "training.steps=100000", "--results", str(folder), *more]  # fmt: skip


def started(folder, *more):
    """A sweep that trains."""
    process = subprocess.Popen(
        command(folder, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.time() + 60
    while time.time() < deadline and process.poll() is None:
        time.sleep(0.05)
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as database:
            if database.execute("SELECT COUNT(*) FROM trials WHERE status = 'running'").fetchone()[0]:
                return process
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    ("sent", "times", "code"), [(signal.SIGTERM, 1, 143), (signal.SIGINT, 1, 130), (signal.SIGINT, 2, 130)]
)
def test_a_signal_ends_a_sweep_in_one_sentence(tmp_path, sent, times, code):
    process = started(tmp_path, "--workers", "2")
    for _ in range(times):
        # A terminal sends Ctrl-C to every process of the group.
        os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    if times == 1:
        assert errors.count("headcount: stopped; what was finished is stored, the same command resumes") == 1
    store, deadline = Store(tmp_path), time.time() + 10
    if times == 2:
        while "running" in set(store.rows()["status"]) and time.time() < deadline:
            store.release_dead()
    assert set(store.rows()["status"]) == {"planned"}


# The file


WRITER = """
import os, signal, sys
from headcount.experiments import Execution, Store, runner
from headcount.experiments.trial import Trial
store = Store(sys.argv[1])
written, finish = 0, store.finish
def counted(*arguments):
    global written
    finish(*arguments)
    written += 1
    if written == 4:
        os.kill(os.getpid(), signal.SIGKILL)
store.finish = counted
runner.LARGEST_STACK = 1
runner.run(list(store.trials().values()), store, Execution("cpu", 1))
"""


def test_a_log_cut_at_any_length_holds_a_prefix_and_resumes(tmp_path, undisturbed):
    (tmp_path / "whole").mkdir()
    planned(tmp_path / "whole", trials()).close()
    script = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "whole")], capture_output=True, text=True)
    assert script.returncode == -signal.SIGKILL, script.stderr
    log = tmp_path / "whole" / f"{FILE_NAME}-wal"
    size, choice, seen = log.stat().st_size, random.Random(0), set()
    order = list(Store(shutil.copytree(tmp_path / "whole", tmp_path / "all")).rows().dropna(subset="error")["id"])
    assert len(order) == 4
    for attempt in range(40):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(attempt))
        os.truncate(folder / f"{FILE_NAME}-wal", choice.randint(0, size))
        store = Store(folder)
        rows = store.rows()
        finished = list(rows[rows["status"] == "done"]["id"])
        assert finished == order[: len(finished)]
        assert len(store.curves()) == 10 * len(finished)
        if len(finished) not in seen:
            seen.add(len(finished))
            resumes(folder, undisturbed)
        store.close()
    assert len(seen) >= 3


def damaged(folder):
    """A finished store of many trials, with pages of the curves overwritten."""
    many = trials(heads=range(1, 9), seeds=8, steps=2, evaluations=1) + trials()
    store = planned(folder, many)
    runner.run(many, store, Execution("cpu", 1))
    store.close()
    data = bytearray((folder / FILE_NAME).read_bytes())
    choice = random.Random(0)
    for page in choice.sample(range(6, len(data) // 4096), 3):
        data[page * 4096 : (page + 1) * 4096] = choice.randbytes(4096)
    (folder / FILE_NAME).write_bytes(data)
    return many, bytes(data)


def test_a_damaged_store_is_named_kept_and_recovered(tmp_path, undisturbed):
    many, data = damaged(tmp_path)
    with pytest.raises(StoreError, match=r"damaged.*runs recover"):
        Store(tmp_path).curves()
    assert (tmp_path / FILE_NAME).read_bytes() == data
    said = api.recover(tmp_path)
    assert (tmp_path / f"{FILE_NAME}.damaged-1").read_bytes() == data
    store = Store(tmp_path, create=False)
    rows = store.rows()
    counts = dict(rows["status"].value_counts())
    assert said.startswith(f"{len(rows)} trials, {counts['done']} results and {counts['done']} learning curves")
    assert 0 < counts["done"] < len(many)
    kept = rows[rows["status"] == "done"].set_index("id")["finished_at"].to_dict()
    store.plan(many, "s")
    runner.run(many, store, Execution("cpu", 1))
    after = store.rows()
    assert set(after["status"]) == {"done"}
    assert kept.items() <= after.set_index("id")["finished_at"].to_dict().items()
    resumes(tmp_path, undisturbed)
    with pytest.raises(BadInput, match="is in order"):
        api.recover(tmp_path)


def test_a_file_without_a_readable_page_is_refused_and_kept(tmp_path):
    planned(tmp_path, trials()).close()
    junk = b"x" * (tmp_path / FILE_NAME).stat().st_size
    (tmp_path / FILE_NAME).write_bytes(junk)
    with pytest.raises(StoreError, match=r"headcount\.sqlite' cannot be used as a store: it is damaged"):
        Store(tmp_path)
    assert api.recover(tmp_path).startswith("0 trials, 0 results")
    assert (tmp_path / f"{FILE_NAME}.damaged-1").read_bytes() == junk
    assert Store(tmp_path, create=False).rows().empty


@pytest.fixture
def disk():
    """A small disk of its own: a function that mounts it with some options, again and again."""
    # Not below tmp_path: pytest could not clean that up if this process were killed.
    place = Path(tempfile.mkdtemp(prefix="headcount-disk-"))

    def mount(options):
        again = "remount," if os.path.ismount(place) else ""
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("needs the right to mount a file system")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True)
    place.rmdir()


def test_a_full_disk_is_one_sentence_and_the_rest_resumes(disk, undisturbed, tmp_path):
    many = trials(heads=range(1, 9), seeds=4, steps=2) + trials()
    folder = disk("size=320k")
    store = planned(folder, many)
    with pytest.raises(StoreError, match=r"no space left.*resumes") as stop:
        runner.run(many, store, Execution("cpu", 1))
    assert "\n" not in str(stop.value)
    store.close()
    disk("size=4m")
    store = Store(folder)
    rows = store.rows()
    finished = set(rows[rows["status"] == "done"]["id"])
    assert 0 < len(finished) < len(many)
    assert set(store.curves()["id"]) == finished
    store.close()
    resumes(folder, undisturbed)


def test_a_folder_that_may_not_be_written_is_one_sentence(disk):
    folder = disk("size=4m")
    planned(folder, trials()).close()
    before = (folder / FILE_NAME).read_bytes()
    disk("ro")
    with pytest.raises(StoreError, match=r"may not be written|cannot be opened"):
        planned(folder, trials())
    assert (folder / FILE_NAME).read_bytes() == before


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from headcount import cli
cli.main()
"""


def test_a_disk_error_is_one_sentence_and_the_rest_resumes(tmp_path):
    words = ["sweep", "polynomial", "--k", "1:2", "--heads", "1:4", "--tokens", "5", "--seeds", "2", "--workers", "1",
             "--set", "training.steps=20", "--set", "training.test_examples=32"]  # fmt: skip
    command = [sys.executable, "-c", LIMITED, "200000", *words, "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the disk reports an error" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert 0 < len(Store(tmp_path).curves()["id"].unique()) < 32
    command[3] = str(2**30)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(Store(tmp_path).rows()["status"]) == {"done"}


def test_a_store_of_version_1_is_migrated_with_a_copy_beside_it(tmp_path):
    shutil.copyfile(DATA / "store-version-1.sqlite", tmp_path / FILE_NAME)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        before = pd.read_sql_query(
            "SELECT r.*, t.config FROM trials t JOIN results r ON r.id = t.id ORDER BY t.rowid", database
        )
        points = database.execute("SELECT step, loss, error FROM curves ORDER BY loss, step").fetchall()
    store = Store(tmp_path)
    rows = store.rows()
    assert store._database.execute("SELECT value FROM meta").fetchall() == [(str(STORE_VERSION),)]
    for column in ("error", "best_error", "weight_norm", "parameters", "finished_at"):
        pd.testing.assert_series_equal(rows[column], before[column])
    assert set(rows["last_step"]) == {40}
    assert rows["cause"].isna().all()
    assert store._database.execute("SELECT step, loss, error FROM curves ORDER BY loss, step").fetchall() == points
    assert all(trial.id == key for key, trial in store.trials().items())
    assert store._database.execute("PRAGMA foreign_key_check").fetchall() == []
    backup = tmp_path / f"{FILE_NAME}.v1.bak"
    assert backup.read_bytes()[:16] == b"SQLite format 3\0"
    with contextlib.closing(sqlite3.connect(backup)) as database:
        assert database.execute("SELECT value FROM meta").fetchall() == [("1",)]
        assert database.execute("SELECT COUNT(*) FROM results").fetchone() == (len(rows),)
    everything = list(store.trials().values())
    assert runner.run(everything, store, Execution("cpu", 1)).ran == 0
