"""k-hop induction heads against the definition, and the published shares of unanswerable letters."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.tasks import Hops, random_stream
from headcount.tasks.hops import find, hop_targets, hop_targets_brute
from headcount.tasks.task import IGNORED


def test_the_papers_example():
    word = torch.tensor([[ord(letter) - 97 for letter in "baebcabebdea"]])
    assert hop_targets(word, torch.tensor([1]), 5)[0, -1].item() == ord("b") - 97
    assert hop_targets(word, torch.tensor([2]), 5)[0, -1].item() == ord("c") - 97
    assert find(word, 5)[0].tolist() == [0, 0, 0, 2, 0, 3, 5, 4, 8, 0, 9, 7]


def test_every_word_of_six_letters_from_three():
    words = torch.tensor([word for word in product(range(3), repeat=6) if all(a != b for a, b in pairwise(word))])
    for hops in range(4):
        fast = hop_targets(words, torch.full((len(words),), hops), 3)
        for word, answer in zip(words.tolist(), fast.tolist(), strict=True):
            assert answer == hop_targets_brute(word, hops, 3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9))
def test_long_words_equal_neighbours_included(word, hops):
    answer = hop_targets(torch.tensor([word]), torch.tensor([hops]), 4)[0].tolist()
    assert answer == hop_targets_brute(word, hops, 4)


def test_published_form():
    task = Hops()
    assert task.length == 99
    inputs, targets = task.sample(200, random_stream(0, "train"))
    letters = inputs[:, 1:, 0] - 1
    assert letters.min() == 0
    assert letters.max() == 3
    assert (letters[:, 1:] != letters[:, :-1]).all()
    assert (targets[:, 0] == task.alphabet + 1).all()
    hops = inputs[:, 0, 0] - 5
    assert set(hops.tolist()) == set(range(17))
    for row in range(0, 200, 20):
        assert targets[row, 1:].tolist() == hop_targets_brute(letters[row].tolist(), int(hops[row]), 4)
    assert (task.answerable(task.encode(letters, hops)).targets[:, 0] == IGNORED).all()


@pytest.mark.parametrize(("hops", "share"), [(0, 0.0), (1, 0.04), (2, 0.07), (3, 0.10), (4, 0.13), (16, 0.50)])
def test_published_share_of_unanswerable_letters(hops, share):
    targets = Hops(hops=hops).sample(500, random_stream(0, "train")).targets[:, 1:]
    assert (targets == 4).double().mean().item() == pytest.approx(share, abs=0.006)


def test_the_look_alike_agrees_for_one_hop_only():
    one = Hops(hops=1).floors(200, random_stream(0, "validation"))
    assert one["searching before i"] == one["one hop"] == 1
    two = Hops(hops=2).floors(200, random_stream(0, "validation"))
    assert two["searching before i"] < 0.9
    assert two["one hop, answerable"] < two["searching before i, answerable"] < 0.9
    assert two["one hop too few"] == two["one hop"] < 0.6


def test_no_neighbours_are_equal_even_with_two_letters():
    letters = Hops(alphabet=2, sequence=20).sample(50, random_stream(0, "train")).inputs[:, 1:, 0]
    assert (letters[:, 1:] != letters[:, :-1]).all()
