"""Match-2 and Match-3: answers against enumeration, the balanced construction, splits without overlap."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.config import BadInput
from headcount.tasks import Match, random_stream
from headcount.tasks.match import BINS, matches, matches_brute
from headcount.tasks.task import IGNORED


@pytest.mark.parametrize("order", [2, 3])
def test_every_short_sequence(order):
    for modulus in (3, 5, 6):
        values = torch.tensor(list(product(range(1, modulus), repeat=4)))
        fast = matches(values, torch.ones_like(values, dtype=torch.bool), order, modulus)
        for row, answer in zip(values.tolist(), fast.tolist(), strict=True):
            assert answer == matches_brute(row, order, modulus)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.sampled_from([2, 3]), st.integers(3, 61))
def test_long_random_sequences(values, order, modulus):
    padded = torch.tensor([*values, 0, 0])
    answer = matches(padded, padded > 0, order, modulus)
    assert answer[: len(values)].tolist() == matches_brute(values, order, modulus)
    assert not answer[len(values) :].any()


def test_worked_examples():
    answer = Match(smallest=2, largest=5).encode(torch.tensor([[1, 10, 26, 4, 0]])).targets[0, :, 0]
    assert answer.tolist() == [1, 1, 1, 0, IGNORED]
    answer = Match(order=2, smallest=2, largest=3).encode(torch.tensor([[1, 36, 5]])).targets[0, :, 0]
    assert answer.tolist() == [1, 1, 0]


@pytest.mark.parametrize("order", [2, 3])
def test_bins_are_equally_full_and_values_allowed(order):
    batch = Match(order=order).sample(4000, random_stream(0, "train"))
    values, labels = batch.inputs[..., 0], batch.targets[..., 0]
    sizes = (values > 0).sum(-1)
    assert sizes.min() >= 30
    assert sizes.max() <= 35
    assert values.max() <= 36
    percent = 100 * (labels == 1).sum(-1) // sizes
    assert torch.bincount((percent * BINS // 100).clamp_max(BINS - 1)).tolist() == [1000] * BINS
    assert ((labels == 1).sum() / sizes.sum()).item() == pytest.approx(0.5, abs=0.03)


def test_each_sequence_appears_about_ten_times_and_in_one_split_only():
    task = Match()
    multisets = {}
    for split in ("train", "validation", "test"):
        rows = task.sample(4000, random_stream(0, split)).inputs[..., 0]
        multisets[split] = [tuple(row) for row in rows.sort(-1).values.tolist()]
        assert len(set(map(tuple, rows.tolist()))) > 3990
        counts = [multisets[split].count(one) for one in list(set(multisets[split]))[:50]]
        assert set(counts) == {10}
    splits = [set(rows) for rows in multisets.values()]
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]


def test_overlap_is_measured_on_multisets():
    task = Match()
    inputs = task.sample(8, random_stream(0, "train")).inputs
    turned = inputs.flip(1)
    assert torch.equal(task.comparable(inputs), task.comparable(turned))
    found = task.statistics(400, 0)
    assert found["overlap"] == 0
    assert found["duplicates"] == pytest.approx(0.9)


def test_without_repetition():
    found = Match(permutations=1).statistics(400, 0)
    assert found["duplicates"] == 0


def test_independent_values_are_uniform_and_match_3_is_then_trivial():
    batch = Match(construction="independent").sample(500, random_stream(0, "train"))
    values = batch.inputs[batch.inputs > 0]
    assert torch.bincount(values, minlength=37)[1:].double().std() / (len(values) / 36) < 0.1
    assert (batch.targets[batch.targets != IGNORED] == 1).double().mean() > 0.99


def test_impossible_balance_is_refused_with_what_to_do():
    with pytest.raises(BadInput, match="use construction 'independent'"):
        Match(modulus=3, smallest=30, largest=30).sample(8, random_stream(0, "train"))
