"""The same configuration and seed give the same row, whatever it is trained beside, in which order, by how many
processes, and after which interruptions.

Training a stack is one batched matrix product after the other. Most give every member the bits it gets alone. Where
a member's matrices do not begin at a multiple of 64 bytes, the product of MKL rounds otherwise, by its place in the
stack: in the modular MLP of cpm3. And attention weights of positions alone, with softmax, are contracted otherwise
for one model than for several. Those rows agree within TOLERANCE. MKL_CBWR=AVX2,STRICT takes the first away.
"""

import os
import subprocess
import sys

import pandas as pd
import pytest
import torch

from headcount.experiments import Execution, Store, gradients, runner, training
from headcount.experiments.training import train
from headcount.experiments.trial import Trial
from headcount.models import ATTENTION

CPU = torch.device("cpu")
TOLERANCE = 1e-4
"""Relative. Measured over 310 steps: 4e-6 at most, of the error of one trial."""

SMALL = {"steps": 20, "batch": 16, "warmup": 5, "validation_examples": 64, "test_examples": 128}
POLYNOMIAL = {"name": "polynomial", "k": 4, "tokens": 8}
CPM3 = {"name": "cpm3", "tokens": 5}


def layer(attention, score, content):
    return {"attention": attention, "heads": 3, "score": score, "content": content, "value_content": "features"}


def network(attention):
    return {"network": "transformer", "width": 16, "depth": 1, "heads": 2, "attention": attention}


RETRIEVAL = {"name": "retrieval", "layout": "fused", "pairs": 3, "filler": 0, "alphabet": 6}
LAYERS = [layer(a, s, c) for a in ("mha", "iha") for s in ("linear", "softmax") for c in ("positions", "full")]
ROUNDED = layer("mha", "softmax", "positions")
EQUAL = [(POLYNOMIAL, model) for model in LAYERS if model != ROUNDED] + [
    (RETRIEVAL, network(name)) for name in ATTENTION
]
CLOSE = [(POLYNOMIAL, ROUNDED)] + [(CPM3, model) for model in LAYERS]


def stack(task, model, seeds=range(8), **training):
    return [
        Trial.build({"task": task, "model": model, "training": {**SMALL, **training}, "seed": seed}) for seed in seeds
    ]


def numbers(outcomes):
    return [(one.error, one.best_error, one.best_step, one.weight_norm, one.curve) for one in outcomes]


def in_stacks_of(size, trials):
    return [outcome for start in range(0, len(trials), size) for outcome in train(trials[start : start + size], CPU)]


def name(value):
    return " ".join(str(value.get(key, "")) for key in ("name", "attention", "score", "content")).strip()


@pytest.fixture(params=["plain", "in parts"])
def steps(request, monkeypatch):
    """Steps as they are written, or recorded, model by model."""
    if request.param == "in parts":
        monkeypatch.setattr(training, "RECORDED_FROM", 1)
        monkeypatch.setattr(gradients, "CACHE", 1)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(("task", "model"), EQUAL, ids=name)
def test_a_row_has_the_same_bits_whatever_it_is_trained_beside(task, model):
    trials = stack(task, model)
    together = numbers(train(trials, CPU))
    assert numbers(in_stacks_of(1, trials[:3])) == together[:3]
    assert numbers(in_stacks_of(2, trials)) == together
    assert numbers(train(trials[::-1], CPU))[::-1] == together


@pytest.mark.parametrize(("task", "model"), EQUAL[::5], ids=name)
def test_recorded_steps_have_the_same_bits_in_parts_or_whole(monkeypatch, task, model):
    monkeypatch.setattr(training, "RECORDED_FROM", 1)
    trials = stack(task, model)
    whole = numbers(train(trials, CPU))
    assert numbers(in_stacks_of(3, trials)) == whole
    monkeypatch.setattr(gradients, "CACHE", 1)
    assert numbers(train(trials, CPU)) == whole


@pytest.mark.parametrize(("task", "model"), CLOSE, ids=name)
def test_rows_that_depend_on_their_place_in_the_stack_agree_within_the_tolerance(task, model):
    trials = stack(task, model)
    together = train(trials, CPU)
    for others in (in_stacks_of(1, trials), in_stacks_of(2, trials), train(trials[::-1], CPU)[::-1]):
        for one, other in zip(together, others, strict=True):
            assert one.error == pytest.approx(other.error, rel=TOLERANCE)
            assert one.weight_norm == pytest.approx(other.weight_norm, rel=TOLERANCE)
    assert numbers(train(trials, CPU)) == numbers(together), "the same stack has the same bits"


PLACES = """
import sys
sys.path.insert(0, "tests")
from test_determinism import *
torch.set_num_threads(1)
for model in LAYERS:
    trials = stack(CPM3, model)
    together = numbers(train(trials, CPU))
    assert numbers(in_stacks_of(1, trials)) == together, model
    assert numbers(train(trials[::-1], CPU))[::-1] == together, model
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="needs MKL")
def test_with_strict_mkl_no_row_of_cpm3_depends_on_its_place():
    done = subprocess.run(
        [sys.executable, "-c", PLACES], capture_output=True, text=True, env={**os.environ, "MKL_CBWR": "AVX2,STRICT"}
    )
    assert done.returncode == 0, done.stderr


def rows(folder, *calls, trials, workers=1):
    store = Store(folder)
    store.plan(trials, "s")
    for call in calls:
        runner.run(call, store, Execution("cpu", workers))
    kept = store.rows().sort_values("id").reset_index(drop=True)
    return kept[["id", "status", "error", "best_error", "best_step", "weight_norm", "parameters"]], store.curves()


def test_order_workers_and_history_change_no_row(tmp_path):
    model = layer("iha", "linear", "positions")
    trials = [trial for k in (1, 2, 3) for trial in stack({**POLYNOMIAL, "k": k}, model, range(4))]
    once = rows(tmp_path / "once", trials, trials=trials)
    histories = {
        "backwards": ([trials[::-1]], 1),
        "two processes": ([trials], 2),
        "one by one": ([[trial] for trial in trials], 1),
        "a part, then the rest": ([trials[1::3], trials], 1),
    }
    for history, (calls, workers) in histories.items():
        again = rows(tmp_path / history, *calls, trials=trials, workers=workers)
        for one, other in zip(once, again, strict=True):
            pd.testing.assert_frame_equal(one, other, check_exact=True)
