"""What holds for every task: shapes, ids, determinism, loss, measure, descriptions, refusals."""

import pytest
import torch

from headcount.config import BadInput
from headcount.experiments.trial import parse_task
from headcount.tasks import TASKS, describe, random_stream
from headcount.tasks.described import Described, discrete_floors, labels_of, table_accuracy
from headcount.tasks.task import IGNORED, relative_error

VARIANTS = [
    {"name": "polynomial"},
    {"name": "filter"},
    {"name": "filter", "target": "signal", "weights": "random", "features": 2, "basis": "bernstein"},
    {"name": "cpm3"},
    {"name": "cpm3", "target": "count", "encoding": "residue"},
    {"name": "cpm3_tokens"},
    {"name": "cpm3_tokens", "encoding": "residue", "cap": 3, "tokens": 5, "low": 3, "high": 40},
    {"name": "relation"},
    {"name": "relation", "hops": 3, "coordinates": False},
    {"name": "relation", "hops": 2, "relations": "different", "smallest": 3, "largest": 5},
    {"name": "quotient"},
    {"name": "quotient", "colours": 2, "diagonal": "kept", "coordinates": False},
    {"name": "function"},
    {"name": "function", "coordinates": False, "smallest": 2, "largest": 3},
    {"name": "function", "form": "value", "largest": 7},
    {"name": "function", "form": "value", "smallest": 3, "largest": 7, "coordinates": False},
    {"name": "match"},
    {"name": "match", "order": 2, "smallest": 5, "largest": 11},
    {"name": "match", "construction": "independent"},
    {"name": "hops", "sequence": 31},
    {"name": "hops", "sequence": 31, "hops": 2, "blank": "ignored"},
    {"name": "recall", "alphabet": 128},
    {"name": "recall", "alphabet": 128, "filler": "blank", "passes": 2, "pairs": 3, "power": 1.0},
    {"name": "retrieval"},
    {"name": "retrieval", "form": "multi-key-2", "layout": "fused"},
    {"name": "retrieval", "form": "multi-key-3"},
    {"name": "retrieval", "form": "multi-value", "layout": "fused", "filler_words": 3},
    {"name": "retrieval", "form": "multi-query", "layout": "split", "pieces": 2, "alphabet": 7},
    {"name": "tracking"},
    {"name": "tracking", "asks_for": "members", "order": "shuffled", "layout": "fused"},
    {"name": "tracking", "asks_for": "members", "hops": 0, "chains": 2},
    {"name": "babi"},
    {"name": "babi", "story_type": 4, "layout": "words"},
    {"name": "babi", "story_type": 17, "hops": 3, "last": 7},
]


@pytest.fixture(params=VARIANTS, ids=lambda data: "-".join(str(value) for value in data.values()))
def task(request):
    return parse_task(request.param)


def test_every_registered_task_is_here():
    assert {data["name"] for data in VARIANTS} == set(TASKS)
    assert all(TASKS[name].model_fields["name"].default == name for name in TASKS)


def test_configurations_survive_being_stored(task):
    assert parse_task(task.model_dump(mode="json")) == task


def test_shapes_types_and_ids(task):
    inputs, targets = task.sample(13, random_stream(0, "train"))
    assert inputs.shape == (13, task.length, task.input_width)
    if task.vocabulary:
        assert inputs.dtype == torch.int64
        assert inputs.min() >= 0
        assert inputs.max() < task.vocabulary
    else:
        assert inputs.dtype == torch.float32
    if task.kind == "classes":
        assert targets.shape == (13, task.length)
        asked = targets[targets != IGNORED]
        assert asked.min() >= 0
        assert asked.max() < task.output_width
    elif task.kind == "binary":
        assert targets.shape == (13, task.length, task.output_width)
        assert set(targets.unique().tolist()) <= {IGNORED, 0, 1}
    else:
        assert targets.shape == (13, task.length, task.output_width)
        assert targets.dtype == torch.float32
    if task.kind != "real":
        assert targets.dtype == torch.int64
        asked = labels_of(task.sample(1, random_stream(0, "train"))) != IGNORED
        assert asked.any()


def test_nothing_is_asked_on_padding_which_stands_at_the_right(task):
    if not task.vocabulary:
        pytest.skip("real features have no padding")
    batch = task.sample(29, random_stream(1, "train"))
    valid = (batch.inputs != 0).any(-1)
    assert not (valid[:, 1:] & ~valid[:, :-1]).any()
    assert (labels_of(batch)[~valid] == IGNORED).all()


def test_data_depend_on_the_generator_alone(task):
    state = torch.random.get_rng_state()
    first, again = (task.sample(11, random_stream(3, "train", 2)) for _ in range(2))
    other = task.sample(11, random_stream(3, "test", 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(state, torch.random.get_rng_state())


def test_loss_and_measure_of_a_stack(task):
    inputs, targets = task.sample(17, random_stream(0, "test"))
    outputs = torch.randn(2, len(inputs), task.length, task.output_width, generator=random_stream(1, "test"))
    stacked = targets.expand(2, *targets.shape)
    loss, measure = task.loss(outputs, stacked), task.measure(outputs, stacked)
    assert loss.shape == measure.error.shape == measure.stderr.shape == (2,)
    assert loss.isfinite().all()
    assert measure.error.isfinite().all()
    assert measure.stderr.isfinite().all()
    assert (measure.error > 0).all()


def test_perfect_answers_have_no_error(task):
    _, targets = task.sample(17, random_stream(0, "test"))
    if task.kind == "classes":
        outputs = torch.nn.functional.one_hot(targets.clamp_min(0), task.output_width) * 100.0
    elif task.kind == "binary":
        outputs = targets * 200.0 - 100.0
    else:
        outputs = targets
    measure = task.measure(outputs[None].double(), targets[None])
    assert measure.error.item() == 0
    if task.kind != "real":
        assert measure.accuracy.item() == 1
        assert task.loss(outputs[None], targets[None]).item() < 1e-6


def test_descriptions(task):
    for line in (describe.asks(task), describe.theory(task)):
        assert line
        assert "\n" not in line
        assert not line.endswith(".")
    found = describe.statistics(task, 64, 5)
    assert found["examples"] == 64
    assert 0 < found["length"][0] <= found["length"][1] <= found["length"][2] <= task.length
    assert 0 <= found["duplicates"] < 1
    assert 0 <= found["overlap"] <= 1
    if "labels" in found:
        assert 0.1 < sum(found["labels"].values()) <= 1 + 1e-9
    assert describe.statistics(task, 64, 5) == found
    shown = describe.show(task, 2, 3)
    assert shown == describe.show(task, 2, 3)
    assert shown != describe.show(task, 4, 3)


def test_floors_are_shares_of_the_same_answers(task):
    found = describe.floors(task, 128, random_stream(7, "validation"))
    assert found == describe.floors(task, 128, random_stream(7, "validation"))
    if task.kind == "real":
        assert found["constant"] == pytest.approx(1, abs=0.1)
        assert all(error > 0 for error in found.values())
    else:
        assert "majority" in found
        assert all(0 <= accuracy <= 1 for accuracy in found.values())


def test_pictures_of_encoded_examples_name_the_answer(task):
    if not isinstance(task, Described):
        pytest.skip("described by describe.py")
    batch = task.sample(20, random_stream(0, "train"))
    assert all(task.picture(*example) for example in zip(*batch, strict=True))


def test_tables_are_not_flattered_by_rare_entries():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(1_000_000, (2, 5000, 2), generator=generator)
    labels = torch.randint(2, (2, 5000), generator=generator)
    assert table_accuracy(keys[0], labels[0], keys[1], labels[1]) == pytest.approx(0.5, abs=0.03)
    parity = keys.sum(-1) % 2
    assert table_accuracy(keys[0] % 7, parity[0], keys[0] % 7, parity[0]) < 0.7
    assert table_accuracy(keys[0] % 2, parity[0], keys[1] % 2, parity[1]) == 1
    mostly = (torch.rand(2, 5000, generator=generator) < 0.8).long()
    assert table_accuracy(keys[0], mostly[0], keys[1], mostly[1]) == pytest.approx(0.8, abs=0.03)
    assert table_accuracy(keys[0, :, :0], labels[0], keys[1, :, :0], labels[1]) == pytest.approx(0.5, abs=0.03)


def test_real_floors_are_what_least_squares_allows():
    task = parse_task({"name": "polynomial", "k": 5, "tokens": 11})
    found = describe.floors(task, 3000)
    assert found["constant"] == pytest.approx(1, abs=0.01)
    # One of five orthogonal terms is the token itself.
    assert found["own token"] == pytest.approx((4 / 5) ** 0.5, abs=0.01)
    inputs, targets = task.sample(500, random_stream(0, "test"))
    error, _ = relative_error(torch.cat([inputs, torch.zeros(500, 11, 4)], -1), targets)
    assert error.item() == pytest.approx(found["own token"], abs=0.02)


def test_floors_of_discrete_tasks_take_any_generator():
    task = parse_task({"name": "cpm3_tokens", "tokens": 5})
    assert discrete_floors(task, 100) == discrete_floors(task, 100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "relation", "hops": 9}, "hops = 9 needs a density"),
        ({"name": "relation", "hops": "2"}, "valid integer"),
        ({"name": "relation", "smallest": 7, "largest": 5}, "largest = 5 is below smallest = 7"),
        ({"name": "relation", "density": 1.0}, "density = 1.0"),
        ({"name": "relation", "relations": "two"}, "allowed: same, different"),
        ({"name": "relation", "hop": 2}, "did you mean 'hops'"),
        ({"name": "quotient", "colours": 0}, "colours = 0"),
        ({"name": "quotient", "largest": 3}, "below smallest"),
        ({"name": "function", "form": "zeros"}, "did you mean 'zero'"),
        ({"name": "function", "smallest": 31}, "below smallest"),
        ({"name": "match", "order": 4}, "order"),
        ({"name": "match", "largest": 3}, "below smallest"),
        ({"name": "match", "construction": "independent", "permutations": 3}, "belong to construction 'binned'"),
        ({"name": "hops", "hops": 17}, "hops = 17 is above most_hops = 16"),
        ({"name": "hops", "alphabet": 1}, "alphabet = 1"),
        ({"name": "recall", "tokens": 63}, "must both be even"),
        ({"name": "recall", "alphabet": 64}, "must be above tokens"),
        ({"name": "recall", "pairs": 17}, "68 are needed"),
        ({"name": "recall", "power": 0.0}, "power = 0.0"),
        ({"name": "retrieval", "pieces": 2}, "belong to layout 'split'"),
        ({"name": "retrieval", "pairs": 33}, "only 32 different keys exist"),
        ({"name": "retrieval", "queries": 5}, "only 4 keys are told"),
        ({"name": "retrieval", "form": "multi-key-3", "near": 16}, "at most 15"),
        ({"name": "retrieval", "layout": "split", "pieces": 9}, "different keys"),
        ({"name": "retrieval", "form": "mk-1"}, "unknown value 'mk-1'"),
        ({"name": "tracking", "variables": 10}, "have 20 different ones"),
        ({"name": "tracking", "values": 3}, "have different ones"),
        ({"name": "cpm3_tokens", "high": 0}, "must be above"),
        ({"name": "cpm3_tokens", "cap": 82}, "above the largest count, 81"),
        ({"name": "filter", "operator": "cyclic"}, "needs a graph"),
        ({"name": "filter", "operator": "karat"}, "did you mean 'karate'"),
        ({"name": "filter", "tokens": 5}, "has 34 nodes"),
        ({"name": "filter", "weights": "sgc"}, "belong to target 'signal'"),
        ({"name": "filter", "graph": "no-such-file"}, "cannot be read"),
        ({"name": "babi", "story_type": 21}, "story_type = 21"),
        ({"name": "babi", "story_type": 1, "hops": 3}, "has no setting 'hops'"),
        ({"name": "babi", "people": 99}, "people = 99 is impossible"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(data, words):
    with pytest.raises(BadInput, match=words) as caught:
        parse_task(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"polynomial", "cpm3"}))
@pytest.mark.parametrize("junk", [-1, 0, 2**40, 0.5, True, None, "", "x", [], [3], {"a": 1}], ids=str)
def test_junk_in_any_field_is_refused_or_usable(name, junk):
    refusals = []
    for field in TASKS[name].model_fields:
        try:
            task = parse_task({"name": name} | {field: junk})
        except BadInput as error:
            refusals.append(str(error))
        else:
            assert parse_task(task.model_dump(mode="json")) == task
    assert not any("\n" in refusal for refusal in refusals)


def test_statistics_of_nothing_are_refused():
    with pytest.raises(BadInput, match="at least 1"):
        describe.statistics(parse_task({"name": "relation"}), 0)
