"""Failure is data: what one trial does wrong is a row with its cause, and nobody else's trouble."""

import json
import math
import os
import subprocess
import sys
from functools import partial

import dying
import pytest
import torch
from small import planned, small_trials

from headcount import Results, api
from headcount.config import BadInput
from headcount.experiments import Execution, attempt, memory, processes, runner
from headcount.experiments.attempt import OUT_OF_MEMORY, TIMEOUT, Overtime, cause_of
from headcount.experiments.store import StoreError
from headcount.experiments.training import train
from headcount.experiments.trial import Trial

CPU = torch.device("cpu")


trials = partial(small_trials, heads=(1,), seeds=4, steps=2)


def fails_with_seed_2(group, *others):
    if any(trial.seed == 2 for trial in group):
        raise ZeroDivisionError("seed 2")
    return train(group, *others)


def by_seed(store, column):
    rows = store.rows().sort_values("seed")
    return list(rows[column])


def test_causes():
    with pytest.raises(RuntimeError) as lack:
        torch.empty(2**60, dtype=torch.uint8)
    assert cause_of(lack.value) == OUT_OF_MEMORY
    for error, cause in (
        (MemoryError(), OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), OUT_OF_MEMORY),
        (RuntimeError("not enough memory: you tried to allocate"), OUT_OF_MEMORY),
        (Overtime("x"), TIMEOUT),
        (RuntimeError("shapes do not match"), "RuntimeError"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ):
        assert cause_of(error) == cause


def test_one_bad_trial_does_not_take_its_stack_mates(tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "train", fails_with_seed_2)
    store = planned(tmp_path, trials())
    report = runner.run(trials(), store, Execution("cpu", 1))
    assert by_seed(store, "status") == ["done", "done", "failed", "done"]
    assert by_seed(store, "cause")[2] == "ZeroDivisionError"
    assert "ZeroDivisionError: seed 2" in by_seed(store, "traceback")[2]
    assert (report.ran, report.failed, dict(report.causes)) == (4, 1, {"ZeroDivisionError": 1})
    assert store.retry_failed() == 1


@pytest.mark.parametrize(("fits", "stacks"), [(4, [4] * 4), (2, [2] * 4), (1, [1] * 4), (0, [1] * 4)])
def test_a_stack_that_does_not_fit_is_halved_down_to_one(tmp_path, monkeypatch, fits, stacks):
    def small_memory(group, *others):
        if len(group) > fits:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return train(group, *others)

    monkeypatch.setattr(attempt, "train", small_memory)
    store = planned(tmp_path, trials())
    report = runner.run(trials(), store, Execution("cpu", 1))
    assert by_seed(store, "stack") == stacks
    assert dict(report.causes) == ({} if fits else {OUT_OF_MEMORY: 4})


def test_nan_timeout_and_done_side_by_side(tmp_path):
    chosen = trials(seeds=1) + trials(seeds=2, steps=1_000_000) + trials(seeds=1, learning_rate=1e30, warmup=0)
    store = planned(tmp_path, chosen)
    report = runner.run(chosen, store, Execution(workers=1, timeout=0.3))
    assert (report.ran, report.nan, dict(report.causes)) == (4, 1, {TIMEOUT: 2})
    rows = store.rows().set_index("training.steps")
    assert "more than 0.3 s a trial" in rows.loc[1_000_000, "traceback"].iloc[0]
    with pytest.raises(BadInput, match="timeout = 0"):
        runner.run(chosen, store, Execution(workers=1, timeout=0))


def test_timeout_is_no_part_of_a_trial(tmp_path):
    store = planned(tmp_path, trials())
    runner.run(trials(), store, Execution(workers=1, timeout=60))
    assert runner.run(trials(), store, Execution("cpu", 1)).already == 4


def test_fail_fast_stops_at_the_first_failure(tmp_path, monkeypatch):
    def bad(group, *others):
        raise ValueError

    monkeypatch.setattr(attempt, "train", bad)
    chosen = trials(heads=(1, 2, 3), seeds=2)
    report = runner.run(chosen, planned(tmp_path, chosen), Execution(workers=1, fail_fast=True))
    assert (report.failed, report.left) == (2, 4)


def test_a_trial_that_kills_its_process_twice_is_a_failed_row(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "work", dying.deadly)
    chosen = trials(seeds=2) + trials(heads=[2], seeds=1)
    store = planned(tmp_path, chosen)
    report = runner.run(chosen, store, Execution("cpu", 2))
    rows = store.rows()
    assert list(rows["status"]) == ["done", "failed", "done"]
    assert rows["cause"][1] == "worker died (signal 9)"
    assert "died 2 times" in rows["traceback"][1]
    assert dict(report.causes) == {"worker died (signal 9)": 1}
    # The stack of two died once; its half with seed 1 twice.
    assert report.died == 1 + processes.MOST_DEATHS


def test_a_store_that_cannot_be_written_stops_the_run_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "work", dying.full)
    chosen = trials(heads=(1, 2))
    store = planned(tmp_path, chosen)
    with pytest.raises(StoreError, match="no space left"):
        runner.run(chosen, store, Execution("cpu", 2))
    assert set(store.rows()["status"]) == {"planned"}


def test_runs_are_shown_and_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "train", fails_with_seed_2)
    store = planned(tmp_path, trials())
    runner.run(trials(), store, Execution("cpu", 1))
    results = Results(tmp_path)
    good, bad = trials()[0], trials()[2]
    text = results.run_text(bad.id[:10])
    for words in (
        f"id: {bad.id}",
        "status: failed",
        "cause: ZeroDivisionError",
        "training.steps: 2",
        "torch: ",
        "Traceback",
    ):
        assert words in text
    shown = results.run_text(good.id)
    for words in ("status: done", "weight_norm: ", "parameters: ", "curve, 2 of 2 points", "loss"):
        assert words in shown
    with pytest.raises(BadInput, match="4 runs"):
        results.run_text("")
    with pytest.raises(BadInput, match=r"no run .* starts with 'xyz'"):
        results.run_text("xyz")
    with pytest.raises(BadInput, match=f"run {good.id} has not failed; it is done"):
        api.retry_failed(tmp_path, [good.id])
    assert api.retry_failed(tmp_path, [bad.id[:8]]) == 1
    assert by_seed(store, "status") == ["done", "done", "planned", "done"]


# Memory


def sized(members=1, task="polynomial", tokens=5, model=None, **training):
    sizes = {"k": 9, "tokens": tokens} if task == "polynomial" else {}
    return [Trial.build({"task": {"name": task, **sizes}, "model": model or {"heads": 6, "score": "linear"},
                         "training": {"steps": 2, "evaluations": 1, "validation_examples": 64, **training}, "seed": seed}) for seed in range(members)]  # fmt: skip


def test_sizes_that_never_fit_are_refused_before_they_start(tmp_path):
    chosen = sized(tokens=2048, model={"heads": 64, "score": "softmax", "attention": "iha"})
    store = planned(tmp_path, chosen)
    with pytest.raises(
        BadInput, match=r"N = 2048 needs about [\d.e+]+ GiB \(data .*activations .*\), and cpu has [\d.]+ GiB"
    ):
        runner.run(chosen, store, Execution("cpu", 1))
    assert set(store.rows()["status"]) == {"planned"}


def test_stacks_are_split_before_they_start_so_that_they_fit():
    chosen = sized(16, tokens=32)
    one, all_of_them = memory.needed(chosen[:1]).total, memory.needed(chosen).total
    assert all_of_them == 16 * one
    assert [len(group) for group in runner.groups(chosen)] == [16]
    assert [len(group) for group in runner.groups(chosen, all_of_them)] == [16]
    assert [len(group) for group in runner.groups(chosen, all_of_them / 3)] == [4] * 4
    assert [len(group) for group in runner.groups(chosen, one / 2)] == [1] * 16


def test_the_estimate_follows_the_sizes():
    small, large = memory.needed(sized(tokens=32))[:], memory.needed(sized(tokens=64))[:]
    assert 2 < large[2] / small[2] < 8
    more = memory.needed(sized(tokens=32, batch=320, steps=2))
    assert more.data > small[0]
    assert memory.needed(sized(tokens=32, dtype="float64")).total > 1.5 * sum(small)
    assert memory.needed(sized(tokens=32, training_examples=1_000_000)).data > 1_000_000 * 32 * 9 * 4
    assert 0 < memory.free(CPU) <= memory.total(CPU) < math.inf


MEASURED = """
import json, sys
from pathlib import Path
import torch
from headcount.experiments import memory
from headcount.experiments.training import train
from headcount.experiments.trial import Trial
torch.set_num_threads(1)
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
for texts in json.loads(sys.stdin.read()):
    group = [Trial.from_json(text) for text in texts]
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    train(group, torch.device("cpu"))
    print(json.dumps([memory.needed(group).total, status("VmHWM") - before]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="reads peak memory as Linux tells it")
def test_the_estimate_is_what_training_takes_within_a_factor_of_three():
    network = {"network": "transformer", "width": 64, "heads": 4}
    cases = [
        sized(),
        sized(2, tokens=200, test_examples=256),
        sized(2, tokens=32, model={"heads": 6, "score": "softmax", "attention": "iha"}, test_examples=256),
        sized(tokens=16, test_examples=300_000),
        sized(1, "relation", model={**network, "attention": "iha"}, test_examples=256),
        sized(
            1, "retrieval", model={**network, "width": 768, "depth": 3}, batch=8, test_examples=8, validation_examples=8
        ),
        sized(1, "retrieval", model={**network, "attention": "clift"}, batch=64, test_examples=256),
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED],
        input=json.dumps([[trial.to_json() for trial in group] for group in cases]),
        capture_output=True, text=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = [json.loads(line) for line in done.stdout.splitlines()]
    # The first run also loads code.
    for estimate, measured in pairs[1:]:
        assert measured / 3 < estimate < 3 * measured, pairs
