"""Training: the optimiser, stacks against single runs, data against models, NaN as an outcome."""

import json
import math

import pytest
import torch

from headcount.config import BadInput
from headcount.experiments import Execution, Store, gradients, recording, runner, training
from headcount.experiments.optimiser import StackedAdam, schedule
from headcount.experiments.recording import need_compiler
from headcount.experiments.training import CHUNK, resolve_device, train
from headcount.experiments.trial import TrainingConfig, Trial
from headcount.tasks import random_stream

CPU = torch.device("cpu")


def trial(seed=0, task=None, model=None, **training):
    return Trial.build(
        {
            "task": {"name": "polynomial", "k": 3, "tokens": 5, **(task or {})},
            "model": {"heads": 2, "score": "linear", "content": "positions", "value_content": "features", **(model or {})},
            "training": {
                "steps": 40, "batch": 8, "warmup": 5, "validation_examples": 64, "test_examples": 128, **training,
            },
            "seed": seed,
        }
    )  # fmt: skip


def numbers(outcome):
    return (outcome.error, outcome.best_error, outcome.weight_norm, outcome.curve)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_stacked_adam_is_torch_adamw_with_a_rate_for_every_row(decay):
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    blocks = [whole[:, :4].clone().requires_grad_(), whole[:, 4:].clone().requires_grad_()]
    rates = [0.1, 0.02, 0.003]
    alone = [row.clone().requires_grad_() for row in whole]
    theirs = [torch.optim.AdamW([row], lr=rate, weight_decay=decay) for row, rate in zip(alone, rates, strict=True)]
    ours = StackedAdam(blocks, rates, [decay] * 3)
    for _ in range(20):
        gradient = torch.autograd.grad(sum((block - 1).pow(4).sum() for block in blocks), blocks)
        for members in (slice(0, 2), slice(2, 3)):
            ours.step([block[members] for block in gradient], 1.0, members)
        for row, optimiser in zip(alone, theirs, strict=True):
            optimiser.zero_grad()
            (row - 1).pow(4).sum().backward()
            optimiser.step()
    assert torch.allclose(torch.cat(blocks, 1), torch.stack(alone), atol=1e-12)


def test_clipping_is_per_model():
    optimiser = StackedAdam([torch.zeros(2, 1), torch.zeros(2, 2)], [1.0, 1.0], [0.0, 0.0], clip=1.0)
    optimiser.step([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0, 0.0], [0.4, 0.0]])], 1.0)
    assert torch.allclose(torch.cat(optimiser.means, 1) / 0.1, torch.tensor([[0.6, 0.8, 0.0], [0.3, 0.4, 0.0]]))


def test_schedule_warms_up_falls_and_restarts():
    config = TrainingConfig(steps=110, warmup=10, restarts=1)
    assert schedule(0, config) == pytest.approx(0.1)
    assert schedule(9, config) == 1.0
    assert schedule(10, config) == 1.0
    assert schedule(59, config) < 0.01
    assert schedule(60, config) == 1.0
    assert schedule(99, TrainingConfig(steps=100, schedule="constant")) == 1.0


@pytest.mark.parametrize("attention", ["mha", "iha"])
@pytest.mark.parametrize("content", ["positions", "full"])
def test_a_member_of_a_stack_equals_the_same_trial_alone(attention, content):
    trials = [
        trial(seed, model={"attention": attention, "content": content}, dtype="float64", learning_rate=rate)
        for seed in (3, 1)
        for rate in (0.01, 0.03)
    ]
    together = train(trials, CPU)
    for one, outcome in zip(trials, together, strict=True):
        alone = train([one], CPU)[0]
        assert outcome.error == pytest.approx(alone.error, rel=1e-8)
        assert outcome.best_error == pytest.approx(alone.best_error, rel=1e-8)
        assert outcome.best_step == alone.best_step
        assert [p[1] for p in outcome.curve] == pytest.approx([p[1] for p in alone.curve], rel=1e-8)


def test_same_trial_gives_the_same_bits():
    assert numbers(train([trial(2)], CPU)[0]) == numbers(train([trial(2)], CPU)[0])


def test_data_do_not_depend_on_the_model(monkeypatch):
    seen = {}

    def record(name, model):
        from headcount.tasks import Polynomial

        original, batches = Polynomial.sample, []
        monkeypatch.setattr(
            Polynomial, "sample", lambda self, n, g: batches.append(original(self, n, g)) or batches[-1]
        )
        torch.manual_seed(len(name))
        train([trial(5, model=model)], CPU)
        monkeypatch.setattr(Polynomial, "sample", original)
        seen[name] = batches

    record("a", {"attention": "mha", "heads": 2})
    record("bcd", {"attention": "iha", "heads": 3, "mlp_width": 4})
    assert len(seen["a"]) == len(seen["bcd"]) == math.ceil(40 / CHUNK) + 2
    for one, other in zip(seen["a"], seen["bcd"], strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_nan_is_an_outcome_and_leaves_other_members_alone():
    trials = [trial(0, learning_rate=0.01), trial(0, learning_rate=1e30)]
    lost = train(trials, CPU)
    assert lost[1].status == "nan"
    assert math.isnan(lost[1].error)
    assert lost[0].status == "done"
    assert lost[0].error == pytest.approx(train(trials[:1], CPU)[0].error, rel=1e-5)


def test_best_weights_are_kept():
    outcome = train([trial(0, steps=60, schedule="constant", learning_rate=0.3)], CPU)[0]
    errors = {point.step: point.error for point in outcome.curve}
    assert outcome.best_step == min(errors, key=errors.get)
    assert outcome.best_error <= outcome.error + 1e-3


def test_training_solves_the_smallest_polynomial():
    outcome = train([trial(0, model={"heads": 3}, steps=300, learning_rate=0.05, warmup=20)], CPU)[0]
    assert outcome.best_error < 0.05
    assert outcome.parameters == Trial.build(trial(model={"heads": 3}).model_dump()).model.parameters(trial().sizes)


def test_float64_is_float64():
    wide, narrow = train([trial(0, dtype="float64")], CPU)[0], train([trial(0)], CPU)[0]
    assert wide.error == pytest.approx(narrow.error, rel=1e-3)
    assert wide.error != narrow.error


def test_run_id_covers_every_field():
    base = trial()
    others = [
        trial(1), trial(task={"k": 4}), trial(task={"operator_seed": 1}), trial(model={"start_noise": 0.06}),
        trial(clip=1.0), trial(learning_rate=0.051), trial(test_examples=129),
    ]  # fmt: skip
    assert len({one.id for one in [base, *others]}) == len(others) + 1
    assert Trial.from_json(base.to_json()).id == base.id
    assert {one.group for one in (base, others[0], others[5])} == {base.group}
    assert len({one.group for one in [base, *others]}) == len(others) - 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"modle": {}}, "did you mean 'model'"),
        ({"task": {"name": "polynomial"}, "training": {"stesp": 3}}, "did you mean 'steps'"),
        ({"task": {"name": "polynomial"}, "model": {"score": "hard"}}, "has no gradient"),
        ({"task": {"name": "polynomial"}, "seed": -1}, "seed = -1"),
        ({"task": {"name": "polynomial"}, "training": {"weight_decay": 0.1}}, "belongs to optimiser 'adamw'"),
        ({"task": {"name": "polynomial"}, "training": {"learning_rate": float("nan")}}, "finite"),
        ({"task": {"name": "polynomial"}, "model": {"output": "concat", "value_width": 1}}, "must be at least"),
    ],
)
def test_bad_trials_are_refused(data, words):
    with pytest.raises(BadInput, match=words):
        Trial.build(data)


def test_device_names():
    assert resolve_device("cpu") == CPU
    with pytest.raises(BadInput, match="unknown device"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == CPU
        with pytest.raises(BadInput, match="not available"):
            resolve_device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cpu_and_cuda_agree():
    trials = [trial(seed, dtype="float64", model={"attention": "iha", "content": "full"}) for seed in (0, 1)]
    here, there = train(trials, CPU), train(trials, torch.device("cuda"))
    for one, other in zip(here, there, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-6)


def relation(seed=0, **training):
    return Trial.build(
        {
            "task": {"name": "relation", "smallest": 3, "largest": 3},
            "model": {"network": "transformer", "width": 8, "heads": 2, "attention": "iha"},
            "training": {
                "steps": 24, "batch": 8, "warmup": 2, "evaluations": 6, "validation_examples": 16, "test_examples": 32,
                "optimiser": "adamw", **training,
            },
            "seed": seed,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    "one",
    [
        trial(0, model={"attention": "iha"}, dtype="float64"),
        relation(0, dtype="float64"),
        relation(0, dtype="float64", clip=0.5),
    ],
)
@pytest.mark.parametrize("size", [gradients.CACHE, 1])
def test_the_recorded_step_agrees_with_the_plain_one_in_parts_or_whole(monkeypatch, one, size):
    monkeypatch.setattr(gradients, "CACHE", size)
    monkeypatch.setattr(training, "RECORDED_FROM", 1)
    recorded = train([one, one.changed(seed=1)], CPU)
    monkeypatch.setattr(training, "RECORDED_FROM", 10**9)
    for ours, plain in zip(recorded, train([one, one.changed(seed=1)], CPU), strict=True):
        assert [point.loss for point in ours.curve] == pytest.approx([point.loss for point in plain.curve], rel=1e-9)
        assert ours.weight_norm == pytest.approx(plain.weight_norm, rel=1e-9)
        assert ours.error == pytest.approx(plain.error, rel=1e-9)


def test_parts_are_equal_if_they_can_be():
    def lengths(members, size):
        return [part.stop - part.start for part in gradients._split(members, int(size * gradients.CACHE))]

    assert lengths(16, 1) == [16]
    assert lengths(16, 2.5) == [4, 4, 4, 4]
    assert lengths(7, 2.5) == [2, 2, 3]
    assert lengths(5, 100) == [1] * 5
    assert lengths(3, 0) == [3]


def test_a_fixed_training_set_is_gone_through_in_epochs_of_another_order_each():
    config = TrainingConfig(steps=9, batch=5, training_examples=17)
    task = trial().task
    data = training._Data(task, [3, 4], CPU, torch.float32)
    batches = [inputs for inputs, _ in data.batches(config)][: config.steps]
    everything = torch.stack([task.draw("train", 17, random_stream(seed, "train")).inputs for seed in (3, 4)])
    epochs = [torch.cat(batches[start : start + 3], 1) for start in (0, 3, 6)]
    for epoch in epochs:
        for seen, all_of_seed in zip(epoch, everything, strict=True):
            places = [int((all_of_seed == example).flatten(1).all(1).nonzero()) for example in seen]
            assert len(set(places)) == 15
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(everything[0], everything[1])


def test_fresh_examples_never_repeat_and_a_set_does():
    fresh, fixed = train([relation()], CPU)[0], train([relation(training_examples=16)], CPU)[0]
    assert fresh.curve != fixed.curve
    assert fresh.last_step == fixed.last_step == 24


def test_patience_lets_a_member_go_where_it_would_stop_alone():
    # A rate this small improves hardly anything: validation accuracy stands still and patience runs out.
    still, moving = (
        relation(0, patience=2, learning_rate=1e-12, schedule="constant", validation_examples=64),
        relation(0, patience=2, learning_rate=0.003, schedule="constant", validation_examples=64),
    )
    together = train([still, moving, still.changed(seed=1)], CPU)
    assert together[0].last_step == 12
    assert together[0].curve[-1].step == 12
    assert together[0].best_step == 4
    assert together[1].last_step > 12
    alone = train([moving], CPU)[0]
    assert together[1].last_step == alone.last_step
    assert together[1].error == pytest.approx(alone.error, rel=1e-5)
    assert [point.error for point in together[1].curve] == pytest.approx([point.error for point in alone.curve])
    assert train([relation(0, learning_rate=1e-12)], CPU)[0].last_step == 24


def test_curves_of_every_split_on_request():
    plain, full = train([relation()], CPU)[0], train([relation(curves="all")], CPU)[0]
    assert all(point.train_error is None and point.test_error is None for point in plain.curve)
    assert [point[:3] for point in full.curve] == [point[:3] for point in plain.curve]
    wide = train([relation(curves="all", validation_examples=32)], CPU)[0]
    assert wide.curve[-1].test_error == wide.error
    assert all(0 < point.train_error <= 1 for point in full.curve)


def test_training_set_must_fill_a_batch():
    with pytest.raises(BadInput, match="do not fill a batch of 8"):
        relation(training_examples=7)


@pytest.fixture
def compiler():
    try:
        need_compiler(CPU)
    except BadInput as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_step_agrees_with_the_plain_one_and_is_noted(tmp_path, monkeypatch):
    made = [trial(seed, steps=60) for seed in (0, 1)]
    calls = []
    monkeypatch.setattr(gradients, "fused", lambda *given: calls.append(1) or recording.fused(*given))
    for plain, compiled in zip(train(made, CPU), train(made, CPU, compiled=True), strict=True):
        for one, other in zip(plain.curve, compiled.curve, strict=True):
            assert other[:3] == pytest.approx(one[:3], rel=1e-3)
        assert compiled.error == pytest.approx(plain.error, rel=1e-3)
    assert calls == [1]
    store = Store(tmp_path)
    store.plan(made, "compiled")
    runner.run(made, store, Execution("cpu", 1, compiled=True))
    assert calls == [1, 1]
    assert all(json.loads(text)["compiled"] == 1 for text in store.rows()["environment"])


def test_a_stack_is_compiled_anew_only_when_half_have_left(monkeypatch):
    compiled = []

    def noted(function, *inputs):
        compiled.append(len(inputs[0]))
        return recording.record(function, *inputs)

    monkeypatch.setattr(gradients, "fused", noted)
    stack = training._Stack([trial(seed, steps=1000) for seed in range(8)], CPU, True)
    for staying in (8, 7, 4, 3, 2, 1):
        stack._keep(torch.arange(len(stack.members)) < staying, 0)
        stack.step(0, *next(stack.data.batches(stack.config)))
    assert compiled == [8, 4, 2, 1]


def test_compiling_without_a_compiler_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(recording.shutil, "which", lambda name: None)
    store = Store(tmp_path)
    store.plan([trial()], "compiled")
    with pytest.raises(BadInput, match=r"C\+\+ compiler"):
        runner.run([trial()], store, Execution("cpu", 2, compiled=True))
    monkeypatch.setattr(recording.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="triton"):
        need_compiler(torch.device("cuda"))
