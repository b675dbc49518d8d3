"""Recall, retrieval, tracking and CPM-3 on tokens: answers against a reader of the tokens, exact statistics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.tasks import Cpm3Tokens, Recall, Retrieval, Tracking, random_stream
from headcount.tasks.cpm3 import pair_counts_brute
from headcount.tasks.task import IGNORED
from headcount.tasks.tokens import distinct
from headcount.tasks.tracking import roots_brute


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 2**32), st.booleans())
def test_distinct_numbers(count, more, seed, forbid):
    size = count + more
    banned = torch.zeros(5, size + 1, dtype=torch.bool)
    banned[:, size] = True
    generator = torch.Generator().manual_seed(seed)
    drawn = distinct(5, count, size + forbid, generator, banned if forbid else None)
    assert drawn.shape == (5, count)
    assert drawn.min() >= 0
    assert drawn.max() < size
    assert all(len(set(row)) == count for row in drawn.tolist())


@pytest.mark.parametrize("size", [4, 5])
def test_distinct_numbers_are_uniform_whichever_way_they_are_drawn(size):
    drawn = distinct(40_000, 2, size, random_stream(0, "train"))
    counts = torch.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=size**2).reshape(size, size).double()
    expected = 40_000 / (size * (size - 1))
    assert counts.diagonal().sum() == 0
    off = counts[~torch.eye(size, dtype=torch.bool)]
    assert (off - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("settings_of", [{}, {"filler": "blank"}, {"passes": 2, "pairs": 5}, {"power": 1.0}])
def test_recall_says_the_value_of_the_key(settings_of):
    task = Recall(alphabet=256, **settings_of)
    inputs, targets = task.sample(200, random_stream(0, "train"))
    for ids, answers in zip(inputs[..., 0].tolist(), targets.tolist(), strict=True):
        told = ids[: task.told]
        pairs = dict(zip(told[::2], told[1::2], strict=True))
        assert len(pairs) == task.pairs
        assert all(0 < key < 128 <= value < 256 for key, value in pairs.items())
        assert len(set(pairs.values())) == task.pairs
        asked = [place for place, answer in enumerate(answers) if answer != IGNORED]
        assert len(asked) == task.pairs
        assert sorted(ids[place] for place in asked) == sorted(pairs)
        assert all(place >= task.told and place % 2 == 0 for place in asked)
        assert all(answers[place] == pairs[ids[place]] for place in asked)
        rest = {ids[place] for place in range(task.told, task.tokens) if place not in asked}
        assert (rest == {256}) == (task.filler == "blank")
        assert 0 not in ids


def test_recall_worked_example():
    task = Recall(tokens=8, alphabet=16, pairs=2, filler="blank")
    keys, values = torch.tensor([[3, 5]]), torch.tensor([[9, 12]])
    inputs, targets = task.encode(keys, values, torch.tensor([[1, 0]]), torch.zeros(1, 8, dtype=torch.long))
    assert inputs[0, :, 0].tolist() == [3, 9, 5, 12, 5, 16, 3, 16]
    off = IGNORED
    assert targets[0].tolist() == [off, off, off, off, 12, off, 9, off]


def test_published_mass_of_query_slots():
    task = Recall()
    weights = task.slot_weights()
    assert len(weights) == 28
    assert weights[0].item() == pytest.approx(0.25, abs=0.005)
    assert weights[:7].sum().item() == pytest.approx(0.66, abs=0.005)
    one = Recall(pairs=1, tokens=64)
    targets = one.sample(20_000, random_stream(0, "train")).targets
    slots = ((targets != IGNORED).nonzero()[:, 1] - one.told) // 2
    seen = torch.bincount(slots, minlength=one.slots) / 20_000
    assert (seen - one.slot_weights()).abs().max() < 0.01


def test_slots_are_drawn_one_after_the_other():
    task = Recall(pairs=2, tokens=12, alphabet=16, power=0.5)
    p = task.slot_weights().tolist()
    inputs, targets = task.sample(40_000, random_stream(0, "train"))
    first, second = inputs[:, 0, 0], inputs[:, 2, 0]
    place = [
        ((inputs[:, task.told :, 0] == key[:, None]) & (targets[:, task.told :] != IGNORED)).long().argmax(-1) // 2
        for key in (first, second)
    ]
    seen = torch.bincount(place[0] * task.slots + place[1], minlength=task.slots**2) / 40_000
    for a in range(task.slots):
        for b in range(task.slots):
            expected = 0 if a == b else p[a] * p[b] / (1 - p[a])
            assert seen[a * task.slots + b].item() == pytest.approx(expected, abs=0.012)


FORMS = [
    {"form": form, **layout}
    for form in ("multi-key-1", "multi-key-2", "multi-value", "multi-query")
    for layout in ({}, {"layout": "fused"}, {"layout": "split", "pieces": 2, "alphabet": 5, "filler": 7})
] + [{"form": "multi-key-3"}, {"form": "multi-key-1", "filler_words": 3}]


@pytest.mark.parametrize("data", FORMS, ids=str)
def test_retrieval_is_what_a_reader_finds(data):
    """Reads the tokens as text and answers every question from what was told."""
    task = Retrieval.parse(data)
    inputs, targets = task.sample(60, random_stream(0, "train"))
    filler = range(1 + task._answers, task._first_key)
    for ids, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        context, rest = ids[: task.context], ids[task.context :]
        told = [token for token in context if token[0] not in filler]
        step = task._asked
        if task.layout == "fused":
            pairs = [([key], [value]) for key, value in told]
            questions = [(mark, [key]) for key, mark in rest]
        else:
            words = [token[0] for token in told]
            pieces = [words[at : at + task.pieces] for at in range(0, len(words), task.pieces)]
            pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
            asked = [token[0] for token in rest]
            questions = [(asked[at], asked[at + 1 : at + step]) for at in range(0, len(asked), step)]
        places = range(task.context + step - 1, task.length, step)
        known: dict = {}
        for key, value in pairs:
            known.setdefault(tuple(key), []).append([piece - task._first_key - task.alphabet for piece in value])
        assert len(known) == task.pairs
        assert all(len(values) == task.values_per_key for values in known.values())
        assert sum(token[0] in filler for token in context) == task.filler
        assert len({tuple(key) for _, key in questions}) == task.queries
        for (mark, key), place in zip(questions, places, strict=True):
            said = [piece for value in known[tuple(key)] for piece in value]
            assert answers[place] == said[mark - 1]
        assert sum(answer != IGNORED for answer in answers) == len(questions)


@pytest.mark.parametrize("data", FORMS, ids=str)
def test_depth_is_where_the_asked_key_is_told(data):
    task = Retrieval.parse(data)
    inputs, _ = task.sample(50, random_stream(0, "train"))
    ids = inputs[..., 0].tolist()
    for row, depth in zip(ids, task.depth(inputs).tolist(), strict=True):
        start = task.context + (task.layout != "fused")
        key = row[start : start + task.pieces]
        place = next(at for at in range(task.context) if row[at : at + task.pieces] == key)
        assert depth == pytest.approx(place / (task.context - task._told))


def test_needles_lie_at_every_depth_alike():
    depths = Retrieval(filler=200).sample(5000, random_stream(0, "train"))
    shares = torch.histc(Retrieval(filler=200).depth(depths.inputs), 10, 0, 1) / 5000
    assert (shares - 0.1).abs().max() < 0.02


def test_near_keys_differ_in_one_piece():
    task = Retrieval.parse({"form": "multi-key-3", "near": 5})
    keys = task._keys(200, random_stream(0, "train"))
    digits = (keys[..., None] // 16 ** torch.arange(3)) % 16
    differ = (digits != digits[:, :1]).sum(-1)
    assert ((differ == 1).sum(-1) == 5).all()
    assert ((differ == 0).sum(-1) == 1).all()
    crowded = Retrieval(layout="split", pairs=4, alphabet=2, pieces=2, near=1, filler=0)
    keys = crowded._keys(50, random_stream(0, "train"))
    assert (keys.sort(-1).values == torch.arange(4)).all()


def test_every_place_of_the_needle_is_as_likely():
    task = Retrieval(pairs=4, filler=0, layout="fused")
    inputs, _ = task.sample(8000, random_stream(0, "train"))
    place = (inputs[:, :4, 0] == inputs[:, 4:, 0]).long().argmax(-1)
    assert (torch.bincount(place) / 8000 - 0.25).abs().max() < 0.02


def test_retrieval_floors_are_those_of_the_specification():
    found = Retrieval(form="multi-key-2", pairs=16, filler=0, alphabet=256).floors(6000, random_stream(0, "validation"))
    assert found["majority"] < 0.01
    assert found["some value: first"] == pytest.approx(1 / 16, abs=0.012)
    assert found["some value: last"] == pytest.approx(1 / 16, abs=0.012)


@pytest.mark.parametrize("layout", ["fused", "triples"])
@pytest.mark.parametrize("order", ["kept", "shuffled"])
@pytest.mark.parametrize("asks_for", ["value", "members"])
def test_variables_are_followed_to_their_value(layout, order, asks_for):
    task = Tracking(layout=layout, order=order, asks_for=asks_for, chains=3, hops=2, variables=11, values=5)
    inputs, targets = task.sample(100, random_stream(0, "train"))
    early = 0
    for ids, answers in zip(inputs, targets.tolist(), strict=True):
        told = task._told(ids[None])[0].tolist()
        roots = roots_brute([tuple(statement) for statement in told], task.variables)
        assert len(roots) == task.statements
        asked = int(ids[-1, 1]) - 3
        if asks_for == "value":
            assert answers[-1] == roots[asked]
            assert asked not in [source for _, source in told]
        else:
            members = answers[task._width - 1 : -1 : task._width]
            assert members == [roots[variable] == asked - task.variables for variable, _ in told]
        place = {variable: number for number, (variable, _) in enumerate(told)}
        early += sum(place[source] > place[variable] for variable, source in told if source < task.variables)
    assert (early > 0) == (order == "shuffled")


def test_tracking_worked_example():
    task = Tracking(chains=2, hops=1, variables=4, values=6, layout="fused")
    names, numbers = torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[5, 3]])
    inputs, targets = task.encode(names, numbers, torch.tensor([[0, 2, 1, 3]]), torch.tensor([0]))
    assert (inputs[0] - 3).tolist() == [[0, 4 + 5], [2, 4 + 3], [1, 0], [3, 2], [-2, 1]]
    assert targets[0].tolist() == [*[IGNORED] * 4, 5]


def test_cpm3_tokens_count_as_the_definition_does():
    for encoding in ("value", "residue"):
        task = Cpm3Tokens(encoding=encoding, low=3, high=40, tokens=7)
        values = torch.randint(3, 41, (30, 7), generator=random_stream(0, "train"))
        inputs, targets = task.encode(values)
        for row, answer in zip(values.numpy(), targets.tolist(), strict=True):
            assert answer == pair_counts_brute(row, 12, 5)
        assert torch.equal(task._residues(inputs), values % 5)
        capped = Cpm3Tokens(encoding=encoding, low=3, high=40, tokens=7, cap=4).encode(values).targets
        assert torch.equal(capped, targets.clamp_max(4))


def test_order_matters_unless_the_multiplier_is_one():
    plain = Cpm3Tokens(multiplier=11, modulus=5).floors(500)
    assert plain["without order"] == 1
    assert Cpm3Tokens(multiplier=12, modulus=5).floors(500)["without order"] < 0.5
