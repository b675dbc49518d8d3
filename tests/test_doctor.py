"""The doctor says what is wrong, and changes nothing."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from headcount import cli, doctor
from headcount.experiments import Store, Sweep
from headcount.experiments.store import FILE_NAME

DATA = Path(__file__).parent / "data"


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["headcount", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, capsys.readouterr().out


def checks(monkeypatch, capsys, folder):
    code, output = call(monkeypatch, capsys, "doctor", "--json", "--results", folder)
    return code, {check["name"]: check for check in json.loads(output)}


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path)
    made.plan(
        Sweep.parse(
            {
                "task": {"name": "polynomial", "k": 1, "tokens": 4},
                "model": {"score": "linear"},
                "grid": {"seed": [0, 1]},
            }
        ).trials(),
        "s",
    )
    return made


def test_a_sound_installation_passes(monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "doctor", "--results", tmp_path / "none")
    assert code == 0
    assert not (tmp_path / "none").exists()
    lines = [line.split(maxsplit=2) for line in output.splitlines()]
    assert {line[1] for line in lines} >= {
        "python",
        "torch",
        "sqlite",
        "cpu",
        "memory",
        "store",
        "training",
        "construction",
        "writing",
    }
    assert {line[0] for line in lines} <= {"ok", "WARN"}


def test_a_store_is_counted_and_dead_claims_are_named(monkeypatch, capsys, tmp_path, store):
    store.owner = store.owner.rsplit(":", 2)[0] + ":999999999:dead"
    store.claim(list(store.trials())[:1])
    code, found = checks(monkeypatch, capsys, tmp_path)
    assert code == 0
    assert "1 planned, 1 running" in found["store"]["found"]
    assert found["claims"]["status"] == "WARN"
    assert found["claims"]["found"].startswith("1 trials of processes that are gone")


def test_a_damaged_store_fails(monkeypatch, capsys, tmp_path, store):
    store.close()
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    data[4096 * 2 : 4096 * 4] = b"x" * 8192
    (tmp_path / FILE_NAME).write_bytes(data)
    code, found = checks(monkeypatch, capsys, tmp_path)
    assert (code, found["store"]["status"]) == (1, "FAIL")
    assert "runs recover" in found["store"]["found"]


def test_an_older_store_is_looked_at_and_not_migrated(monkeypatch, capsys, tmp_path):
    shutil.copyfile(DATA / "store-version-1.sqlite", tmp_path / FILE_NAME)
    code, found = checks(monkeypatch, capsys, tmp_path)
    assert (code, found["store"]["status"]) == (0, "WARN")
    assert (tmp_path / FILE_NAME).read_bytes() == (DATA / "store-version-1.sqlite").read_bytes()
    assert "version 1" in found["store"]["found"]


def test_a_broken_part_fails(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "AGREEMENT", -1.0)
    code, found = checks(monkeypatch, capsys, tmp_path)
    assert (code, found["training"]["status"]) == (1, "FAIL")
    assert "differs from the same alone" in found["training"]["found"]


def test_runs_commands(monkeypatch, capsys, tmp_path, store):
    key = next(iter(store.trials()))
    code, output = call(monkeypatch, capsys, "runs", "--status", "planned", "--results", tmp_path)
    assert (code, key in output) == (0, True)
    code, output = call(monkeypatch, capsys, "runs", "show", key[:12], "--results", tmp_path)
    assert (code, f"id: {key}" in output, "status: planned" in output) == (0, True, True)
    store.claim([key])
    store._database.execute("UPDATE trials SET status = 'failed' WHERE id = ?", (key,))
    code, output = call(monkeypatch, capsys, "runs", "retry", key, "--results", tmp_path)
    assert (code, output) == (0, "1 failed trials are planned again\n")
    assert call(monkeypatch, capsys, "runs", "retry", "--failed", "--results", tmp_path)[1].startswith("0 failed")
    for arguments in (("retry",), ("retry", "--failed", key), ("retry", key), ("show", "zz"), ("recover",)):
        assert call(monkeypatch, capsys, "runs", *arguments, "--results", tmp_path)[0] == 2
