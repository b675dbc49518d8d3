"""Every construction at small, pairwise distinct sizes: one table for checks, mutations and the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from headcount.models import AttentionConfig, Sizes
from headcount.tasks.operators import cyclic_shift, random_gaussian
from headcount.theory.constructions.border import concatenated_border, iha_border, mha_border
from headcount.theory.constructions.construction import Construction
from headcount.theory.constructions.counting import (
    Mechanism,
    histogram_count,
    modulo_count,
    relu_count,
    softmax_of_tokens,
    workspace,
)
from headcount.theory.constructions.folds import FOLDS, folded_mechanism
from headcount.theory.constructions.inclusion import Route, folding, inclusion
from headcount.theory.constructions.polynomial import iha_polynomial, mha_polynomial
from headcount.theory.constructions.strictness import strictness
from headcount.theory.constructions.width import narrow_polynomial


def catalogue() -> Iterator[Construction]:
    """One construction after the other; they are built when asked for."""
    yield from polynomials()
    yield from borders()
    yield from countings()
    yield from inclusions()
    yield strictness(1)
    yield strictness(-1)


def polynomials() -> Iterator[Construction]:
    """Filters: k a square and not, d = 1 and more, H dividing k and not, in all forms."""
    for tokens, features, k in ((5, 1, 1), (7, 2, 3), (11, 2, 4), (13, 3, 5), (17, 1, 7), (13, 2, 6)):
        A = random_gaussian(tokens, seed=k)
        yield mha_polynomial(A, k, features)
        yield mha_polynomial(A, k, features, content="positions", value_content="features")
        yield iha_polynomial(A, k, features)
        yield iha_polynomial(A, k, features, content="positions", value_content="features")
        yield iha_polynomial(A, k, features, output="mixed")
    symmetric = random_gaussian(11, seed=3)
    for features, k in ((1, 3), (2, 5)):
        yield narrow_polynomial(symmetric + symmetric.T, k, features)


def borders() -> Iterator[Construction]:
    """Families below k heads, for invertible and for singular A."""
    singular = random_gaussian(11, seed=0)
    singular[:, 0] = 0.0
    for eps in (1e-1, 1e-3):
        for A, features, k in (
            (random_gaussian(13, seed=1), 2, 5),
            (random_gaussian(7, seed=2), 1, 4),
            (singular, 2, 3),
        ):
            yield mha_border(A, k, features, eps)
            yield iha_border(A, k, features, eps)
        yield concatenated_border(cyclic_shift(7), 5, 1, eps)
        yield concatenated_border(singular, 3, 1, eps)
        yield concatenated_border(singular, 2, 1, eps)


def countings() -> Iterator[Construction]:
    """CPM-3: workspaces, hard and at finite temperature; counting behind them; the two ways around."""
    for tokens in (2, 5, 7, 9):
        for attention in get_args(Mechanism):
            yield workspace(tokens, attention)
            yield workspace(tokens, attention, content="positions", value_content="features")
            yield workspace(tokens, attention, beta=3.0)
            yield workspace(tokens, attention, beta=3.0, output="mixed")
    for tokens, modulus, multiplier, high in ((3, 5, 12, 4), (4, 3, 10, 3), (5, 4, 7, 2)):
        for attention in get_args(Mechanism):
            yield modulo_count(tokens, modulus, multiplier, attention, high=high)
            yield relu_count(tokens, modulus, multiplier, attention, high=high)
        yield histogram_count(tokens, modulus, multiplier)
    yield softmax_of_tokens(11)


def inclusions() -> Iterator[Construction]:
    """One exact route for every score and mask, with and without rotary positions; folds likewise."""
    sizes, heads = Sizes(5, 2, 7), 3
    for score in ("linear", "softmax", "hard"):
        for mask in ("none", "causal", "flat-causal"):
            for rope in ("none", "token"):
                route = Route(score, mask, rope, 2, "full", "last", divided=score == "linear")
                yield inclusion(route, sizes, heads, query_width=4)
                config = AttentionConfig(
                    attention="iha",
                    heads=heads,
                    pseudo_heads=1,
                    score=score,
                    mask=mask,
                    rope=rope,
                    query_width=4,
                )
                yield folding(config, sizes)
    yield from (folded_mechanism(name) for name in FOLDS)
