"""TensorBoard: what is written is what the store holds, once."""

import builtins
import sys

import pytest

from headcount import api, cli
from headcount.config import BadInput
from headcount.experiments import tracking
from headcount.experiments.sweep import Sweep
from headcount.experiments.tracking import SCALARS, TensorBoard

SWEEP = Sweep.parse(
    {
        "name": "../outside",
        "task": {"name": "relation", "smallest": 2, "largest": 2},
        "model": {"network": "transformer", "width": 4, "heads": 1},
        "training": {"steps": 6, "batch": 4, "evaluations": 3, "validation_examples": 8, "test_examples": 8, "curves": "all"},
        "grid": {"model.attention": ["mha", "iha"], "seed": [0, 1]},
    }
)  # fmt: skip


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_curves_are_those_of_the_store_and_written_once(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    monkeypatch.setattr(tracking, "LOOK_SECONDS", 0.0)
    board, results = tmp_path / "board", tmp_path / "results"
    api.run_sweeps([SWEEP], results, api.Execution(workers=1), tensorboard=board)
    curves = api.Results(results).store.curves()
    folders = {folder.name.rsplit("-", 1)[1]: folder for folder in board.iterdir()}
    assert set(folders) == set(curves["id"])
    assert sorted(folder.name.rsplit("-", 1)[0] for folder in folders.values()) == sorted(
        f"relation-{attention}-H1-{seed}" for attention in ("mha", "iha") for seed in (0, 1)
    )
    for key, points in curves.groupby("id"):
        scalars = read(folders[key])
        assert set(scalars) == set(SCALARS.values())
        for column, tag in SCALARS.items():
            assert scalars[tag] == pytest.approx(dict(zip(points["step"], points[column], strict=True)), rel=1e-6)
    before = sorted(path for path in board.rglob("*") if path.is_file())
    api.run_sweeps([SWEEP], results, api.Execution(workers=1), tensorboard=board)
    assert sorted(path for path in board.rglob("*") if path.is_file()) == before


def test_without_tensorboard_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    plain = builtins.__import__

    def missing(name, *rest):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(BadInput, match="pip install tensorboard"):
        TensorBoard(tmp_path, None, [])


def test_a_tasks_preset_can_be_named_by_its_second_half(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headcount", "sweep", "relation", "--preset", "quick", "--dry-run"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert "relation-binary: 30 trials" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["headcount", "sweep", "relation", "--preset", "quik", "--dry-run"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "did you mean 'relation-quick'" in capsys.readouterr().err
