from __future__ import annotations

import numpy as np
import pytest
import torch

from headcount.tasks import Polynomial
from headcount.tasks.operators import cyclic_shift, graph_adjacency, normalised_adjacency, random_gaussian
from headcount.theory.constructions import (
    NoConstruction,
    ceil_sqrt,
    deviation,
    iha_parameters,
    iha_polynomial,
    mha_parameters,
    mha_polynomial,
)

OPERATORS = {
    "cyclic": cyclic_shift(23),
    "gaussian": random_gaussian(19, seed=0),
    "karate": normalised_adjacency(graph_adjacency("karate"), "self-loops"),
    "singular": np.diag([0.0] * 9 + [1.0] * 8),
    "nilpotent": np.diag(np.ones(12), 1),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("k", [1, 2, 4, 7, 9, 11])
def test_any_matrix(operator: str, k: int) -> None:
    A = OPERATORS[operator]
    assert deviation(mha_polynomial(A, k, 2)) < 1e-13
    assert deviation(iha_polynomial(A, k, 2)) < 1e-13


@pytest.mark.parametrize("k", range(1, 18))
@pytest.mark.parametrize(("tokens", "features"), [(19, 1), (23, 3)])
def test_counted_parameters_are_the_printed_ones(k: int, tokens: int, features: int) -> None:
    A = cyclic_shift(tokens)
    assert mha_polynomial(A, k, features).parameters == mha_parameters(tokens, features, k)
    assert iha_polynomial(A, k, features).parameters == iha_parameters(tokens, features, k)


def test_heads() -> None:
    assert [ceil_sqrt(k) for k in (1, 2, 4, 5, 9, 10, 16, 17, 10**20 + 1)] == [
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        10**10 + 1,
    ]
    assert iha_polynomial(cyclic_shift(13), 10).module.config.heads == 4


def test_semantics_is_the_task() -> None:
    task = Polynomial(k=5, tokens=11, features=3, operator="gaussian", operator_seed=2)
    x = torch.randn(7, 11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = task.answer(x)
    for construction in (mha_polynomial(task.matrix(), 5, 3), iha_polynomial(task.matrix(), 5, 3)):
        assert torch.allclose(construction.semantics(x), expected, atol=1e-13)
        with torch.no_grad():
            assert torch.allclose(construction.module(x)[..., :15], expected, atol=1e-13)


@pytest.mark.parametrize("build", [mha_polynomial, iha_polynomial])
@pytest.mark.parametrize(
    ("A", "k", "features", "reason"),
    [
        (cyclic_shift(5), 0, 1, "at least one term"),
        (cyclic_shift(5), 3, 0, "at least one column"),
        (np.ones((3, 5)), 2, 1, "square matrix"),
        (np.full((3, 3), np.nan), 2, 1, "not finite"),
    ],
)
def test_refusals(build, A, k, features, reason) -> None:
    with pytest.raises(NoConstruction, match=reason):
        build(A, k, features)
