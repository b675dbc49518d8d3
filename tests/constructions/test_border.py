from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from headcount.models import AttentionConfig, Sizes
from headcount.tasks.operators import (
    cyclic_shift,
    graph_adjacency,
    matrix_powers,
    normalised_adjacency,
    random_gaussian,
    random_orthogonal,
)
from headcount.theory.constructions import (
    NoConstruction,
    concatenated_border,
    content_floor,
    deviation,
    distance_to_limit,
    expand,
    iha_border,
    mha_border,
)
from headcount.theory.constructions.inclusion import random_layer
from headcount.theory.floors import family_floor

NILPOTENT = np.diag(np.ones(6), 1)
UNIT = np.zeros((9, 9))
UNIT[0, 1] = 1.0
ROTATION = np.kron(np.eye(3), np.array([[0.0, -1.0], [1.0, 0.0]]))
"""No real eigenvalue."""

CASES = [
    (mha_border, random_gaussian(19, seed=0), 5, 2),
    (mha_border, cyclic_shift(13), 4, 1),
    (mha_border, normalised_adjacency(graph_adjacency("karate"), "self-loops"), 6, 3),
    (mha_border, NILPOTENT, 3, 2),
    (mha_border, UNIT, 3, 2),
    (mha_border, ROTATION, 3, 1),
    (iha_border, random_gaussian(19, seed=0), 5, 2),
    (iha_border, random_orthogonal(17, seed=1), 10, 1),
    (iha_border, random_gaussian(13, seed=2), 8, 1),
    (iha_border, NILPOTENT, 4, 1),
    (iha_border, ROTATION, 3, 1),
    (concatenated_border, cyclic_shift(16), 5, 1),
    (concatenated_border, random_gaussian(13, seed=3), 7, 1),
    (concatenated_border, NILPOTENT, 4, 1),
    (concatenated_border, UNIT, 2, 5),
]


@pytest.mark.parametrize(("family", "A", "k", "features"), CASES)
def test_error_falls_linearly_while_weights_grow(family, A, k, features) -> None:
    steps = [family(A, k, features, eps) for eps in (1e-1, 1e-2, 1e-3)]
    errors = [distance_to_limit(step) for step in steps]
    largest = [float(step.module.value.positions.detach().abs().max()) for step in steps]
    for step in steps:
        assert deviation(step) <= step.tolerance
    for error, next_error in itertools.pairwise(errors):
        assert next_error == pytest.approx(error / 10, rel=1e-6)
    for weight, next_weight in itertools.pairwise(largest):
        assert next_weight == pytest.approx(10 * weight, rel=1e-9)


@pytest.mark.parametrize(("k", "heads"), [(3, 2), (5, 2), (6, 3), (10, 3), (11, 4)])
def test_heads(k: int, heads: int) -> None:
    A = random_gaussian(23, seed=1)
    assert mha_border(A, k).module.config.heads == k - 1
    assert iha_border(A, k).module.config.heads == heads
    assert concatenated_border(A, k).module.config.heads == k - 1


@pytest.mark.parametrize(
    ("family", "A", "k", "features", "eps", "reason"),
    [
        (mha_border, cyclic_shift(7), 2, 1, 0.1, "k >= 3"),
        (iha_border, cyclic_shift(7), 2, 1, 0.1, "k >= 3"),
        (mha_border, cyclic_shift(7), 4, 1, 0.0, "0 < eps < 1"),
        (iha_border, cyclic_shift(7), 4, 1, 1.0, "0 < eps < 1"),
        (mha_border, np.diag([0.0, 0.0, 1.0]), 3, 3, 0.1, "null vectors"),
        (iha_border, np.diag(np.ones(4), 1), 10, 3, 0.1, "null vectors"),
        (concatenated_border, cyclic_shift(7), 1, 1, 0.1, "none to save"),
        (concatenated_border, cyclic_shift(7), 3, 2, 0.1, "divided evenly"),
        (concatenated_border, ROTATION, 3, 1, 0.1, "no real eigenvalue"),
        (concatenated_border, cyclic_shift(7), 2, 2, 0.1, "no real eigenvalue"),
        (mha_border, cyclic_shift(7), 0, 1, 0.1, "at least one term"),
    ],
)
def test_refusals(family, A, k, features, eps, reason) -> None:
    with pytest.raises(NoConstruction, match=reason):
        family(A, k, features, eps)


def random_linear_layer(tokens: int, features: int, **fields: object):
    config = AttentionConfig.parse({"heads": 3, "score": "linear", **fields})
    return random_layer(config, Sizes(tokens, features, 7), seed=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"value_content": "full"},
        {"value_content": "full", "output": "concat", "inverse_temperature": 0.3},
        {"content": "features", "value_content": "full", "query_width": 2},
        {"content": "positions"},
    ],
)
def test_expansion_is_the_layer(fields: dict[str, object]) -> None:
    layer = random_linear_layer(5, 2, **fields)
    x = torch.randn(11, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    degrees = expand(layer).degrees(x)
    assert torch.allclose(degrees.sum(0), layer(x), atol=1e-11)
    scales = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    assert torch.allclose(torch.einsum("t,tbno->bno", scales, degrees), layer(2 * x), atol=1e-11)


def test_linear_hermite_part_by_exact_cubature() -> None:
    """Nodes 0, +-sqrt 3 integrate degree 5 exactly; the layer times an entry of X has degree 4."""
    layer = random_linear_layer(3, 2, value_content="full")
    nodes, weights = torch.tensor([-(3.0**0.5), 0.0, 3.0**0.5]), torch.tensor([1.0, 4.0, 1.0]) / 6
    grid = torch.cartesian_prod(*[nodes.double()] * 6).reshape(-1, 3, 2)
    mass = torch.cartesian_prod(*[weights.double()] * 6).prod(-1)
    expected = torch.einsum("b,bio,bje->eoij", mass, layer(grid), grid)
    assert torch.allclose(expand(layer).linear_part(), expected, atol=1e-6)


def test_expansion_of_the_family_shows_the_mechanism() -> None:
    """sum_h S_h v_h = 0, B v = I for the identity block, and nothing of degree 3."""
    construction = mha_border(random_gaussian(11, seed=0), 4, 2, eps=1e-2)
    parts = expand(construction.module)
    assert float((parts.S @ parts.v).sum(0).abs().max()) < 1e-12
    identity_block = (parts.B @ parts.v).sum(0)[:, :2]
    assert torch.allclose(identity_block, torch.eye(2, dtype=torch.float64))
    assert not parts.M.any()
    assert not parts.C.any()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"score": "softmax"}, "linear score"),
        ({"mask": "causal"}, "linear score"),
        ({"content": "features", "value_content": "features"}, "defined for every N"),
    ],
)
def test_expansion_refuses(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(NoConstruction, match=reason):
        expand(random_linear_layer(5, 2, **fields))


@pytest.mark.parametrize(("tokens", "k", "heads"), [(53, 5, 3), (61, 7, 2), (47, 4, 1)])
def test_content_floor_of_the_cyclic_shift(tokens: int, k: int, heads: int) -> None:
    family = matrix_powers(cyclic_shift(tokens), k)
    expected = ((k - heads - 1) * tokens - heads * k) / (k * tokens)
    assert content_floor(family, heads) == pytest.approx(expected**0.5, rel=1e-9)
    assert content_floor(family, heads) < family_floor(family, heads).floor
    assert content_floor(family, k - 1) == 0.0


@pytest.mark.parametrize("heads", [1, 2])
def test_random_layers_stay_above_the_content_floor(heads: int) -> None:
    """The best linear combination of a random layer's outputs is a layer, too: it must not beat the floor."""
    tokens, k = 41, 6
    family = matrix_powers(cyclic_shift(tokens), k)
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(tokens, tokens, generator=generator, dtype=torch.float64) for _ in range(heads)]
    basis = torch.stack([*parts, torch.eye(tokens, dtype=torch.float64)]).flatten(1)
    target = torch.from_numpy(family).flatten(1)
    fit = torch.linalg.lstsq(basis.T, target.T).solution
    error = float((basis.T @ fit - target.T).norm() / target.norm())
    assert error > content_floor(family, heads) > 0
