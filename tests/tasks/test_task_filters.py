"""Filters: identities of the bases, published coefficients, and answers against recursions on vectors."""

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as numpy_chebyshev
from numpy.polynomial import legendre as numpy_legendre
from scipy.special import eval_jacobi

from headcount.tasks import Filter, operators, random_stream
from headcount.tasks.filters import basis_terms, bernstein, chebyshev, filter_weights, jacobi
from headcount.tasks.operators import matrix_powers

GRAPHS = ("karate", "davis", "florentine")
BASES = ("monomial", "chebyshev", "legendre", "jacobi", "bernstein")


def graph(name, normalisation="plain"):
    return operators.normalised_adjacency(operators.graph_adjacency(name), normalisation)


def on_spectrum(matrix, function):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(function(values)) @ vectors.T


@pytest.mark.parametrize("name", GRAPHS)
def test_terms_are_polynomials_of_the_eigenvalues(name):
    matrix = graph(name)
    unit = np.eye(7)
    for k, term in enumerate(chebyshev(matrix, 7)):
        assert np.allclose(term, on_spectrum(matrix, lambda x, k=k: numpy_chebyshev.chebval(x, unit[k])))
    for k, term in enumerate(basis_terms("legendre", matrix, 7)):
        assert np.allclose(term, on_spectrum(matrix, lambda x, k=k: numpy_legendre.legval(x, unit[k])))
    for a, b in ((1, 1), (0.5, 2), (-0.5, -0.5), (0, 1.5)):
        for k, term in enumerate(jacobi(matrix, 7, a, b)):
            assert np.allclose(term, on_spectrum(matrix, lambda x, k=k, a=a, b=b: eval_jacobi(k, a, b, x)))


def test_chebyshev_of_the_negative_operator_alternates():
    matrix = graph("karate")
    for k, (plus, minus) in enumerate(zip(chebyshev(matrix, 8), chebyshev(-matrix, 8), strict=True)):
        assert np.allclose(minus, (-1) ** k * plus)


def test_jacobi_at_minus_one_half_is_chebyshev_up_to_scale():
    matrix = graph("karate")
    for plain, scaled in zip(chebyshev(matrix, 6), jacobi(matrix, 6, -0.5, -0.5), strict=True):
        factor = scaled.ravel() @ plain.ravel() / (plain.ravel() @ plain.ravel())
        assert np.allclose(scaled, factor * plain)


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_bernstein_terms_sum_to_the_identity_and_pass_their_own_frequency(count):
    matrix = graph("karate")
    terms = bernstein(matrix, count)
    assert np.allclose(terms.sum(0), np.eye(len(matrix)))
    for term in terms:
        assert np.linalg.eigvalsh((term + term.T) / 2).min() > -1e-12


def test_every_basis_spans_the_same_operators():
    matrix = graph("florentine", "self-loops")
    plain = matrix_powers(matrix, 5).reshape(5, -1)
    for basis in BASES:
        terms = basis_terms(basis, matrix, 5, 0.5, 1.0).reshape(5, -1)
        assert np.linalg.matrix_rank(terms, 1e-9) == 5
        assert np.linalg.matrix_rank(np.concatenate([plain, terms]), 1e-9) == 5


def test_published_coefficients():
    ppr = filter_weights("ppr", 11, 0.1)
    assert ppr[:3] == pytest.approx([0.1, 0.09, 0.081])
    assert ppr[-1] == pytest.approx(0.9**10)
    assert ppr.sum() == pytest.approx(1)
    assert filter_weights("nppr", 4, 0.5) == pytest.approx(np.array([8, 4, 2, 1]) / 15)
    assert filter_weights("sgc", 4).tolist() == [0, 0, 0, 1]
    random = filter_weights("random", 11, seed=3)
    assert np.abs(random).sum() == pytest.approx(1)
    assert (random < 0).any()
    assert np.array_equal(random, filter_weights("random", 11, seed=3))
    assert filter_weights("ppr", 1).tolist() == [1]


@pytest.mark.parametrize("name", GRAPHS)
def test_personalised_pagerank_keeps_eigenvalue_one_and_tends_to_the_resolvent(name):
    matrix, alpha = graph(name, "self-loops"), 0.1
    task = Filter(basis="monomial", target="signal", operator=name, tokens=len(matrix), k=11)
    values, vectors = np.linalg.eigh(matrix)
    assert values[-1] == pytest.approx(1)
    top = vectors[:, -1]
    assert np.allclose(task.powers()[0] @ top, top)
    many = np.tensordot(filter_weights("ppr", 400, alpha), matrix_powers(matrix, 400), 1)
    assert np.allclose(many, alpha * np.linalg.inv(np.eye(len(matrix)) - (1 - alpha) * matrix), atol=1e-8)


@pytest.mark.parametrize("basis", BASES)
def test_answers_are_terms_applied_to_each_column(basis):
    task = Filter.parse({"basis": basis, "operator": "davis", "k": 4, "features": 3, "normalisation": "plain"})
    inputs, targets = task.sample(5, random_stream(0, "train"))
    terms = basis_terms(basis, graph("davis"), 4)
    for index in range(4):
        for column in range(3):
            said = targets[..., index * 3 + column].double().numpy()
            assert np.allclose(said, inputs[..., column].double().numpy() @ terms[index].T, atol=1e-4)


def test_a_signal_is_the_weighted_sum_of_its_terms():
    common = {"operator": "karate", "k": 5, "features": 2, "basis": "jacobi", "a": 0.5}
    terms = Filter.parse(common)
    signal = Filter.parse({**common, "target": "signal", "weights": "random", "weights_seed": 4})
    inputs = torch.randn(7, 34, 2, generator=random_stream(0, "train"))
    weights = torch.from_numpy(filter_weights("random", 5, seed=4)).float()
    summed = torch.einsum("k,bikd->bid", weights, terms.answer(inputs).unflatten(-1, (5, 2)))
    assert torch.allclose(signal.answer(inputs), summed, atol=1e-5)


def test_monomials_are_the_polynomial_task():
    task = Filter.parse({"basis": "monomial", "operator": "cyclic", "tokens": 7, "k": 3})
    inputs = torch.randn(4, 7, 1, generator=random_stream(0, "train"))
    assert torch.equal(task.answer(inputs), task.polynomial.answer(inputs))


def test_a_graph_file_fixes_size_and_digest(tmp_path):
    path = tmp_path / "path.edges"
    path.write_text("a b\nb c\nc d\n")
    task = Filter.parse({"graph": str(path), "k": 3, "normalisation": "plain"})
    assert task.operator == "file"
    assert task.tokens == 4
    assert task.graph_digest == operators.file_digest(str(path))
    assert Filter.parse(task.model_dump()) == task
