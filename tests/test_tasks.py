"""Tasks: exact answers against brute force, worked examples, and data that depend on nothing else."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.config import BadInput
from headcount.experiments.trial import parse_task
from headcount.tasks import Cpm3, Polynomial, operators, random_stream, relative_error
from headcount.tasks.cpm3 import order_sensitive, pair_counts, pair_counts_brute


def test_polynomial_worked_example():
    task = Polynomial.parse({"k": 2, "tokens": 3})
    answer = task.answer(torch.tensor([[[5.0], [7.0], [9.0]]]))
    assert answer.tolist() == [[[5.0, 7.0], [7.0, 9.0], [9.0, 5.0]]]


@pytest.mark.parametrize("operator", ["cyclic", "orthogonal", "gaussian", "karate", "davis"])
def test_targets_are_powers_applied_one_after_the_other(operator):
    size = {} if operator in operators.GRAPHS else {"tokens": 11}
    task = Polynomial.parse({"operator": operator, "k": 5, "features": 3, **size})
    inputs, targets = task.sample(7, random_stream(0, "train"))
    matrix = torch.from_numpy(task.matrix())
    step = inputs.double()
    for index in range(task.k):
        block = targets[..., index * 3 : (index + 1) * 3].double()
        assert torch.allclose(block, step, atol=1e-5)
        step = matrix @ step


def test_operators_are_what_they_say():
    orthogonal = operators.random_orthogonal(13, seed=3)
    assert np.allclose(orthogonal @ orthogonal.T, np.eye(13))
    assert np.isclose(np.linalg.norm(operators.random_gaussian(13, seed=3), 2), 1)
    shift = operators.cyclic_shift(5)
    assert np.array_equal(np.linalg.matrix_power(shift, 5), np.eye(5))
    assert (shift @ np.arange(5)).tolist() == [1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("name", "nodes", "lowest_plain", "second_self_loops"),
    [
        ("karate", 34, -0.715, 0.896),
        ("davis", 32, -1.0, 0.828),
        ("florentine", 15, -0.893, 0.871),
        ("les-miserables", 77, -0.865, 0.936),
    ],
)
def test_graph_operators_have_the_published_spectra(name, nodes, lowest_plain, second_self_loops):
    adjacency = operators.graph_adjacency(name)
    assert adjacency.shape == (nodes, nodes)
    assert set(np.unique(adjacency)) == {0.0, 1.0}
    plain = np.linalg.eigvalsh(operators.normalised_adjacency(adjacency, "plain"))
    loops = np.linalg.eigvalsh(operators.normalised_adjacency(adjacency, "self-loops"))
    assert plain[0] == pytest.approx(lowest_plain, abs=1e-3)
    assert loops[-2] == pytest.approx(second_self_loops, abs=1e-3)
    assert plain[-1] == pytest.approx(1)
    assert loops[-1] == pytest.approx(1)


def test_isolated_node_gets_a_zero_row():
    matrix = operators.normalised_adjacency(np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]), "plain")
    assert matrix.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("suffix", ["edges", "graphml", "npy"])
def test_users_graph_from_a_file(tmp_path, suffix):
    graph = nx.florentine_families_graph()
    path = tmp_path / f"mine.{suffix}"
    if suffix == "npy":
        np.save(path, nx.to_numpy_array(graph))
    elif suffix == "graphml":
        nx.write_graphml(graph, path)
    else:
        path.write_text("\n".join(f"{a} {b}" for a, b in graph.edges))
    task = Polynomial.parse({"graph": str(path), "k": 3})
    own = Polynomial.parse({"operator": "florentine", "k": 3})
    assert task.tokens == own.tokens == 15
    assert np.allclose(np.linalg.eigvalsh(task.matrix()), np.linalg.eigvalsh(own.matrix()))
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(BadInput, match="changed since"):
        task.matrix()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    st.integers(1, 50),
    st.integers(1, 12),
)
def test_pair_counts_match_brute_force(values, multiplier, modulus):
    fast = pair_counts(torch.tensor(values), multiplier, modulus)
    assert fast.tolist() == pair_counts_brute(np.array(values), multiplier, modulus)


def test_pair_counts_exhaustively_on_all_small_sequences():
    grid = torch.cartesian_prod(*[torch.arange(4)] * 4)
    for multiplier, modulus in ((2, 3), (7, 3), (9, 4), (11, 5)):
        fast = pair_counts(grid, multiplier, modulus)
        for row, counts in zip(grid, fast, strict=True):
            assert counts.tolist() == pair_counts_brute(row.numpy(), multiplier, modulus)


def test_the_papers_worked_example_is_symmetric():
    assert pair_counts(torch.tensor([1, 2, 3]), 10, 3).tolist() == [3, 3, 3]
    assert not order_sensitive(10, 3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(2, 12))
def test_order_sensitivity_is_decided_exactly(multiplier, modulus):
    changes = any(
        (x + multiplier * a + b) % modulus == 0 and (x + multiplier * b + a) % modulus != 0
        for x in range(modulus)
        for a in range(modulus + 1)
        for b in range(modulus + 1)
    )
    assert order_sensitive(multiplier, modulus) == changes


def test_workspace_holds_every_cyclic_shift():
    task = Cpm3.parse({"tokens": 3, "low": 1, "high": 3})
    inputs, targets = task.encode(torch.tensor([[1, 2, 3]]))
    scale = ((3**2 - 1) / 12) ** 0.5
    assert torch.allclose(inputs[0, :, 0] * scale + 2, torch.tensor([1.0, 2, 3]))
    assert torch.allclose(targets[0] * scale + 2, torch.tensor([[1.0, 2, 3], [2, 3, 1], [3, 1, 2]]))


def test_standardised_values_have_mean_zero_and_variance_one():
    task = Cpm3.parse({"low": 3, "high": 17})
    scalars = task.standardise(torch.arange(3, 18)).double()
    assert scalars.mean().item() == pytest.approx(0, abs=1e-6)
    assert scalars.square().mean().item() == pytest.approx(1, abs=1e-6)


def test_count_target_and_its_accuracy():
    task = Cpm3.parse({"target": "count", "encoding": "residue", "tokens": 7, "modulus": 5, "multiplier": 12})
    values = torch.randint(0, 100, (11, 7), generator=random_stream(1, "test"))
    inputs, targets = task.encode(values)
    assert torch.equal(inputs.argmax(-1), values % 5)
    labels = pair_counts(values, 12, 5)
    assert torch.equal((targets[..., 0] * task.count_unit).round().long(), labels)
    assert task.accuracy(targets, targets).item() == 1.0
    assert task.accuracy(targets + 1, targets).item() == 0.0


def test_streams_are_distinct_and_reproducible():
    draws = {
        torch.randint(0, 2**60, (1,), generator=random_stream(seed, split, chunk)).item()
        for seed in range(3)
        for split in ("train", "validation", "test")
        for chunk in range(3)
    }
    assert len(draws) == 27
    again = torch.randint(0, 2**60, (1,), generator=random_stream(2, "test", 2)).item()
    assert again in draws


def test_relative_error_of_the_mean_is_one_and_its_error_bar_is_honest():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(200, 400, 3, 2, generator=generator) + 5
    outputs = targets + 0.3 * torch.randn(200, 400, 3, 2, generator=generator)
    error, deviation = relative_error(outputs, targets)
    assert error.mean().item() == pytest.approx(0.3, abs=2e-3)
    assert error.std().item() == pytest.approx(deviation.mean().item(), rel=0.2)
    constant, _ = relative_error(targets.mean(1, keepdim=True).expand_as(targets), targets)
    assert torch.allclose(constant, torch.ones_like(constant))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "polynomal"}, "did you mean 'polynomial'"),
        ({"name": "polynomial", "k": 0}, "k = 0: input should be greater than or equal to 1"),
        ({"name": "polynomial", "operater": "cyclic"}, "did you mean 'operator'"),
        ({"name": "polynomial", "operator": "cylic"}, "did you mean 'cyclic'"),
        ({"name": "polynomial", "k": "4"}, "valid integer"),
        ({"name": "polynomial", "operator": "karate", "tokens": 5}, "has 34 nodes"),
        ({"name": "polynomial", "graph": "no-such-file"}, "cannot be read"),
        ({"name": "polynomial", "operator": "file"}, "go together"),
        ({"name": "cpm3", "modulus": 1}, "modulus = 1"),
        ({"name": "cpm3", "low": 5, "high": 5}, "must be above"),
        ({"name": "cpm3", "k": 3}, "has no key 'k'"),
        ({}, "needs a name"),
    ],
)
def test_bad_tasks_are_refused_in_one_sentence(data, words):
    with pytest.raises(BadInput, match=words) as caught:
        parse_task(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"nonsense", "not a readable"),
        ("a.graphml", b"<graph", "not a readable"),
        ("a.edges", b"\xff\xfe\x00", "graph file"),
        ("a.edges", b"", "0 nodes"),
    ],
)
def test_unreadable_graphs(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        Polynomial.parse({"graph": str(path)})


def test_pickled_arrays_are_not_unpickled(tmp_path):
    path = tmp_path / "evil.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="not a readable"):
        Polynomial.parse({"graph": str(path)})
