"""The benchmark suite: contenders compute the same, counts are right, and a quick run writes its tables."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bookkeeping, iha, matmul, report
from benchmarks.__main__ import main
from benchmarks.measure import Options, alternate, times
from benchmarks.stacks import BATCHES, Crew, Loop, Stacked, Worker, check_agreement, trials

ROOT = Path(__file__).parents[1]
NETWORK = "network D=16 MHA"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax, extra bench")
def test_jax_and_a_plain_loop_train_as_the_stack_does():
    with Worker(1) as worker:
        for model in ("polynomial k=9 IHA H=3", NETWORK):
            members = trials(model, 2)
            ours = Stacked(members).train(1)
            _, theirs = Crew("jax", [worker]).build(model, 2)
            assert ours.shape == (BATCHES, 2)
            assert not np.allclose(ours[0], ours[-1])
            check_agreement({"stacked": ours, "JAX": theirs, "loop": Loop(members).train(1)})


def test_losses_that_differ_are_not_timed():
    losses = np.ones((BATCHES, 2))
    for wrong in (losses * 1.001, losses * np.nan):
        with pytest.raises(RuntimeError, match="'other' differ"):
            check_agreement({"ours": losses, "other": wrong})


def test_contenders_take_turns():
    seen = []
    found = alternate({name: times(lambda name=name: seen.append(name)) for name in "ab"}, Options(quick=True))
    assert {name: len(values) for name, values in found.items()} == {"a": 2, "b": 2}
    assert [name for i, name in enumerate(seen) if not i or seen[i - 1] != name] == ["a", "b", "a", "b", "a"]


def test_counted_operations_are_those_of_the_closed_form():
    members = trials(NETWORK, 3)
    counted, shapes = matmul.step_flops(Stacked(members))
    trial = members[0]
    forward = trial.model.flops(trial.sizes, trial.task.vocabulary)
    assert counted == 3 * len(members) * trial.training.batch * forward
    assert counted == sum(matmul.flops(shape) * count for shape, count in shapes.items())


def test_the_naive_layer_is_the_same_layer():
    attention, x = iha.layer(13, 3), torch.randn(2, 13, iha.WIDTH, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(iha.naive(attention, x), attention(x))


def test_bookkeeping_follows_a_trial_to_its_end(tmp_path):
    seconds, size = bookkeeping.once(70, tmp_path)
    assert list(seconds) == ["configure", "hash", "plan", "claim", "finish", "resume"]
    assert size > 0


def test_quick_run_writes_json_and_tables(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "labels", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-cpu-quick.json")
    piece = json.loads(path.read_text())["labels"]
    assert piece["quick"]
    assert piece["machine"]["cores"] >= 1
    assert [row["N"] for row in piece["rows"]] == [16, 64]
    assert all(len(turns) == 2 for row in piece["rows"] for turns in row["seconds"].values())
    page = (tmp_path / "README.md").read_text()
    assert "## labels" in page
    assert "| N | histogram s | enumeration s | ratio |" in page
    assert "No figure of a GPU has been measured" in page
    assert str(tmp_path) not in page


def test_the_page_shows_the_latest_measurement_that_is_not_quick(tmp_path):
    def write(name, date, quick, device="cpu"):
        piece = {"date": date, "quick": quick, "machine": {"device": device}, "rows": [{"rate": 1234.5, "raw": [1]}]}
        (tmp_path / name).write_text(json.dumps({"labels": piece}))

    write("1.json", "2026-01-02", False)
    write("2.json", "2026-01-01", False)
    write("3.json", "2026-01-03", True)
    write("4.json", "2026-01-01", True, "some GPU")
    found = report.newest(tmp_path)
    assert {key: piece["date"] for key, piece in found.items()} == {
        ("labels", "cpu"): "2026-01-02", ("labels", "gpu"): "2026-01-01",
    }  # fmt: skip
    report.render(tmp_path, {"labels": report.newest})
    page = (tmp_path / "README.md").read_text()
    assert "| 1,235 |" in page or "| 1,234 |" in page
    assert "raw" not in page
    assert "No figure of a GPU" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stakcs"], "did you mean 'stacks'"),
        (["gpu-agreement", "--device", "tpu"], "unknown device"),
        (["labels", "--device", "cuda"], "measures the CPU"),
    ],
)
def test_bad_use_is_one_sentence(arguments, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
