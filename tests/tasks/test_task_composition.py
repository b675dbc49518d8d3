"""Relation, quotient and function composition against enumeration, and their published figures."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.tasks import Function, Quotient, Relation, random_stream
from headcount.tasks.quotient import quotient_compose, quotient_compose_brute
from headcount.tasks.relation import compose, compose_brute, flatten_square, unflatten_square
from headcount.tasks.task import IGNORED


def every_relation(nodes):
    return torch.tensor(list(product([False, True], repeat=nodes**2))).reshape(-1, nodes, nodes)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_composition_of_every_relation_on_two_and_three_nodes(hops):
    for nodes in (2, 3):
        relations = every_relation(nodes)[:, None].expand(-1, hops, -1, -1)
        fast = compose(relations)
        for relation, answer in list(zip(relations, fast, strict=True))[:: 1 if nodes == 2 else 7]:
            assert answer.tolist() == compose_brute(relation.numpy())


def test_composition_of_every_pair_of_relations_on_two_nodes():
    singles = every_relation(2)
    pairs = torch.stack([torch.stack(pair) for pair in product(singles, repeat=2)])
    for pair, answer in zip(pairs, compose(pairs), strict=True):
        assert answer.tolist() == compose_brute(pair.numpy())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**32), st.floats(0.05, 0.6))
def test_composition_of_large_random_relations(nodes, hops, seed, density):
    relations = torch.rand(hops, nodes, nodes, generator=torch.Generator().manual_seed(seed)) < density
    assert compose(relations).tolist() == compose_brute(relations.numpy())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32))
def test_squares_survive_flattening(channels, seed):
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(1, 6, (7,), generator=generator)
    matrices = torch.randint(1, 9, (7, channels, 5, 5), generator=generator)
    inside = torch.arange(5) < nodes[:, None]
    matrices = matrices * (inside[:, None, :, None] & inside[:, None, None, :])
    entries, valid, rows, columns = flatten_square(matrices, nodes)
    back, _, _ = unflatten_square(entries, nodes, 5)
    assert torch.equal(back, matrices)
    assert torch.equal(valid.sum(-1), nodes**2)
    first = entries[0, : int(nodes[0]) ** 2]
    assert torch.equal(first, matrices[0][:, : nodes[0], : nodes[0]].flatten(1).T)
    assert (rows < nodes[:, None]).all()
    assert (columns < nodes[:, None]).all()


def test_relation_worked_example():
    task = Relation(smallest=2, largest=3, coordinates=False)
    relation = torch.tensor([[[[0, 1, 1], [1, 0, 1], [1, 1, 1]]]]).bool()
    inputs, targets = task.encode(relation, torch.tensor([2]))
    assert inputs[0, :, 0].tolist() == [1, 2, 2, 1, 0, 0, 0, 0, 0]
    assert targets[0, :, 0].tolist() == [1, 0, 0, 1, *[IGNORED] * 5]


def test_two_relations_are_composed_in_the_order_of_their_bits():
    task = Relation(relations="different", smallest=2, largest=2)
    first, second = torch.tensor([[0, 1], [0, 0]]).bool(), torch.tensor([[0, 0], [1, 0]]).bool()
    inputs, targets = task.encode(torch.stack([first, second])[None], torch.tensor([2]))
    assert targets[0, :, 0].tolist() == [1, 0, 0, 0]
    assert inputs[0, :, :2].tolist() == [[1, 3], [2, 3], [1, 4], [1, 3]]
    assert inputs[0, :, 2:].tolist() == [[5, 7], [5, 8], [6, 7], [6, 8]]


@pytest.mark.parametrize("hops", [1, 2, 3, 4, 5, 6])
def test_default_densities_balance_the_labels(hops):
    task = Relation.parse({"hops": hops})
    labels = task.sample(3000, random_stream(0, "train")).targets
    positive = (labels == 1).sum() / (labels != IGNORED).sum()
    # The paper's density for two hops balances up to 8 nodes; up to the paper's 10 it gives 61 %.
    assert positive.item() == pytest.approx(0.61 if hops == 2 else 0.5, abs=0.015)


@pytest.mark.parametrize(
    ("sizes", "majority", "own", "degrees"),
    [
        ({"largest": 8}, 0.55, 0.63, 0.79),
        ({}, 0.61, 0.61, 0.79),
        ({"hops": 3}, 0.51, 0.70, 0.82),
    ],
)
def test_published_shortcuts_of_relation_composition(sizes, majority, own, degrees):
    found = Relation.parse(sizes).floors(6000, random_stream(0, "validation"))
    assert found["majority"] == pytest.approx(majority, abs=0.012)
    assert found["own token"] == pytest.approx(own, abs=0.015)
    assert found["degrees"] == pytest.approx(degrees, abs=0.012)


def test_quotient_composition_of_every_relation_on_three_nodes_and_large_random_ones():
    relations = every_relation(3)
    for colours in ((0, 0, 0), (0, 1, 1), (2, 0, 2), (0, 1, 2)):
        fast = quotient_compose(relations, torch.tensor(colours).expand(len(relations), 3))
        for relation, answer in zip(relations[::5], fast[::5], strict=True):
            assert answer.tolist() == quotient_compose_brute(relation.numpy(), np.array(colours))
    generator = torch.Generator().manual_seed(0)
    for nodes in (5, 8, 11):
        relation = torch.rand(nodes, nodes, generator=generator) < 0.4
        colours = torch.randint(nodes, (nodes,), generator=generator)
        assert quotient_compose(relation, colours).tolist() == quotient_compose_brute(relation.numpy(), colours.numpy())


def test_quotient_worked_example():
    task = Quotient(smallest=3, largest=3, coordinates=False)
    relation = torch.tensor([[[0, 1, 0], [0, 0, 1], [0, 0, 0]]]).bool()
    inputs, targets = task.encode(relation, torch.tensor([[1, 2, 2]]), torch.tensor([3]))
    off = IGNORED
    assert targets[0, :, 0].tolist() == [off, 1, 0, 1, off, 0, 0, 0, off]
    assert inputs[0, 1].tolist() == [2, 3 + 1, 3 + 3 + 2]


@pytest.mark.parametrize(("diagonal", "positive"), [("zero", 0.53), ("kept", 0.63)])
def test_published_balance_of_quotient_composition(diagonal, positive):
    labels = Quotient(diagonal=diagonal).sample(6000, random_stream(0, "train")).targets
    assert ((labels == 1).sum() / (labels != IGNORED).sum()).item() == pytest.approx(positive, abs=0.012)


def decoded(task, batch):
    functions, n, x = task._decode(batch.inputs)
    return [
        ([values[: int(size)].tolist() for values in lists], int(start), int(answer))
        for lists, size, start, answer in zip(functions, n, x, batch.targets[:, 0], strict=True)
    ]


@pytest.mark.parametrize("coordinates", [True, False])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (25, 30)])
def test_functions_are_answered_by_looking_up(coordinates, sizes):
    zero = Function(smallest=sizes[0], largest=sizes[1], coordinates=coordinates)
    for (f,), start, answer in decoded(zero, zero.sample(300, random_stream(0, "train"))):
        assert start == 0
        assert max(f) < len(f)
        assert answer == (f[f[0]] == 0)
    value = Function(form="value", smallest=sizes[0], largest=sizes[1], coordinates=coordinates)
    for (g, f), start, answer in decoded(value, value.sample(300, random_stream(0, "train"))):
        assert start < len(g) == len(f)
        assert answer == f[g[start]]


@pytest.mark.parametrize("sizes", [(2, 2), (3, 4), (25, 30)])
def test_half_of_the_answers_are_yes_at_every_size(sizes):
    answers = Function(smallest=sizes[0], largest=sizes[1]).sample(20_000, random_stream(0, "train")).targets[:, 0]
    assert answers.double().mean().item() == pytest.approx(0.5, abs=0.012)


def test_function_worked_examples():
    zero = Function(smallest=3, largest=3, coordinates=False)
    inputs, targets = zero.encode(torch.tensor([[[2, 1, 0]]]), torch.tensor([3]), torch.tensor([0]))
    assert inputs[0, :, 0].tolist() == [4, 3, 2, 1]
    assert targets[0].tolist() == [1, *[IGNORED] * 3]
    value = Function(form="value", smallest=2, largest=2)
    inputs, targets = value.encode(torch.tensor([[[1, 0], [1, 1]]]), torch.tensor([2]), torch.tensor([1]))
    assert inputs[0].tolist() == [[3, 5], [2, 4], [1, 5], [2, 6], [2, 7]]
    assert targets[0, 0].item() == 1


def test_published_shortcut_of_function_composition():
    task = Function()
    found = task.floors(20_000, random_stream(0, "validation"))
    assert found["majority"] == pytest.approx(0.5, abs=0.01)
    assert found["count of zeros"] == pytest.approx(0.688, abs=0.01)


def test_values_of_functions_have_no_such_shortcut():
    found = Function(form="value", smallest=64, largest=64).floors(8000, random_stream(0, "validation"))
    assert found["majority"] == pytest.approx(1 / 64, abs=0.01)
    assert max(found.values()) < 0.1
