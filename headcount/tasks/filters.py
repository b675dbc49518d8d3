"""Graph filters: polynomials of an operator in other bases than monomials, and filtered signals."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any, Literal, Self

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from headcount.config import BadInput
from headcount.tasks.described import Described, real_floors
from headcount.tasks.operators import LARGEST_GRAPH, Matrix, matrix_powers
from headcount.tasks.polynomial import Operator, Polynomial
from headcount.tasks.task import Batch

Basis = Literal["monomial", "chebyshev", "legendre", "jacobi", "bernstein"]
Weights = Literal["ones", "ppr", "nppr", "sgc", "random"]
Terms = Float[np.ndarray, "k tokens tokens"]

_OPERATOR_FIELDS = ("k", "tokens", "features", "operator", "operator_seed", "normalisation", "graph", "graph_digest")


def chebyshev(matrix: Matrix, count: int) -> Terms:
    """[T_0(A), .., T_(count-1)(A)]: T_k = 2 A T_(k-1) - T_(k-2)."""
    terms = matrix_powers(matrix, min(count, 2))
    for _ in range(count - 2):
        terms = np.concatenate([terms, [2 * matrix @ terms[-1] - terms[-2]]])
    return terms


def jacobi(matrix: Matrix, count: int, a: float, b: float) -> Terms:
    """[P_0(A), .., P_(count-1)(A)] for the weight (1-x)^a (1+x)^b: a = b = 0 is Legendre's, and
    a = b = -1/2 Chebyshev's up to scale."""
    terms = matrix_powers(matrix, min(count, 2))
    if count > 1:
        terms[1] = (a - b) / 2 * terms[0] + (a + b + 2) / 2 * matrix
    for k in range(2, count):
        s = 2 * k + a + b
        forward = (s - 1) * (s * (s - 2) * matrix @ terms[-1] + (a * a - b * b) * terms[-1])
        backward = 2 * (k + a - 1) * (k + b - 1) * s * terms[-2]
        terms = np.concatenate([terms, [(forward - backward) / (2 * k * (k + a + b) * (s - 2))]])
    return terms


def bernstein(matrix: Matrix, count: int) -> Terms:
    """[C(K,i) 2^-K (2I - L)^(K-i) L^i], i = 0 .. K = count - 1, with L = I - A; they sum to the identity."""
    eye, degree = np.eye(len(matrix)), count - 1
    low, high = matrix_powers((eye + matrix) / 2, count), matrix_powers((eye - matrix) / 2, count)
    return np.stack([comb(degree, i) * low[degree - i] @ high[i] for i in range(count)])


def basis_terms(basis: Basis, matrix: Matrix, count: int, a: float = 1.0, b: float = 1.0) -> Terms:
    """The first `count` polynomials of a basis at a matrix; a and b are Jacobi's."""
    if basis == "monomial":
        return matrix_powers(matrix, count)
    if basis == "chebyshev":
        return chebyshev(matrix, count)
    if basis == "bernstein":
        return bernstein(matrix, count)
    return jacobi(matrix, count, *((0.0, 0.0) if basis == "legendre" else (a, b)))


def filter_weights(weights: Weights, count: int, alpha: float = 0.1, seed: int = 0) -> Float[np.ndarray, " count"]:
    """Coefficients g_0 .. g_K, K = count - 1, as generalised PageRank networks start from.

    ones: all 1. ppr: a (1-a)^k, the last (1-a)^K, which sum to 1. nppr: a^k over their sum.
    sgc: 1 for k = K, else 0. random: uniform within sqrt(3 / (K+1)), over the sum of absolute values.
    """
    k = np.arange(count)
    if weights == "ppr":
        return np.append(alpha * (1 - alpha) ** k[:-1], (1 - alpha) ** (count - 1))
    if weights == "nppr":
        return alpha**k / (alpha**k).sum()
    if weights == "sgc":
        return (k == count - 1).astype(float)
    if weights == "random":
        bound = (3 / count) ** 0.5
        drawn = np.random.default_rng(seed).uniform(-bound, bound, count)
        return drawn / np.abs(drawn).sum()
    return np.ones(count)


class Filter(Described):
    """X ~ N(0, 1) of shape (N, d); the target is either all terms [p_0(A) X, .., p_(k-1)(A) X] of a basis,
    or the filtered signal sum_i g_i p_i(A) X.

    Example, Chebyshev, k = 3: the terms are X, A X and 2 A^2 X - X.

    Attributes:
        basis: of the polynomials p_i. All but "monomial" need eigenvalues within -1 .. 1, hence a graph.
        a, b: parameters of "jacobi".
        target: "terms" or "signal".
        weights, alpha, weights_seed: the coefficients g of "signal", see `filter_weights`.
        k, tokens, features, operator, operator_seed, normalisation, graph, graph_digest: see `Polynomial`.
    """

    name: Literal["filter"] = "filter"
    basis: Basis = "chebyshev"
    a: float = pydantic.Field(default=1.0, gt=-1)
    b: float = pydantic.Field(default=1.0, gt=-1)
    target: Literal["terms", "signal"] = "terms"
    weights: Weights = "ppr"
    alpha: float = pydantic.Field(default=0.1, gt=0, lt=1)
    weights_seed: int = pydantic.Field(default=0, ge=0)
    k: int = pydantic.Field(default=4, ge=1, le=4096)
    tokens: int = pydantic.Field(default=34, ge=2, le=LARGEST_GRAPH)
    features: int = pydantic.Field(default=1, ge=1, le=1024)
    operator: Operator = "karate"
    operator_seed: int = pydantic.Field(default=0, ge=0)
    normalisation: Literal["self-loops", "plain", "none"] = "self-loops"
    graph: str | None = None
    graph_digest: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _operator_of(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {field: data[field] for field in _OPERATOR_FIELDS if field in data}
        if given.get("graph") is None:
            given.setdefault("operator", "karate")
        return data | Polynomial.parse(given).model_dump(include=set(_OPERATOR_FIELDS))

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        synthetic = self.operator in ("cyclic", "orthogonal", "gaussian") or self.normalisation == "none"
        if self.basis != "monomial" and synthetic:
            raise ValueError(f"basis '{self.basis}' needs a graph with normalisation 'self-loops' or 'plain'")
        if self.weights != "ppr" and self.target == "terms":
            raise ValueError("weights belong to target 'signal'")
        return self

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def input_width(self) -> int:
        return self.features

    @property
    def output_width(self) -> int:
        return self.features * (self.k if self.target == "terms" else 1)

    @property
    def polynomial(self) -> Polynomial:
        """The task of the same size and operator with monomial terms."""
        return Polynomial.parse({field: getattr(self, field) for field in _OPERATOR_FIELDS})

    @property
    def asks(self) -> str:
        what = f"{self.k} {self.basis} polynomials of A applied to X"
        return what if self.target == "terms" else f"the sum of {what}, weighted by '{self.weights}'"

    @property
    def theory(self) -> str:
        if self.target == "signal":
            return "the filter is one N x N matrix: one position-only head of full width, without softmax, can"
        return (
            f"every basis spans the same {self.k} operators, so heads are needed as for monomials: {self.k} standard "
            f"or ceil(sqrt k) = {int(np.ceil(self.k**0.5))} interleaved ones; only errors are weighted differently"
        )

    def powers(self) -> Terms:
        """The matrices that X is multiplied with, float64: all terms, or the one filter."""
        return _family(self)

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        inputs = torch.randn(examples, self.tokens, self.features, generator=generator)
        return Batch(inputs, self.answer(inputs))

    def answer(self, inputs: Float[Tensor, "examples tokens features"]) -> Float[Tensor, "examples tokens outputs"]:
        """The target; output column i d + c is column c of term i."""
        family = torch.from_numpy(self.powers()).to(inputs.dtype)
        return torch.einsum("kij,bjd->bikd", family, inputs).flatten(2)

    def floors(self, examples: int = 4096, generator: torch.Generator | None = None) -> dict[str, float]:
        """Relative error that shortcuts reach; see `real_floors`."""
        return real_floors(self, examples, generator)

    def picture(self, inputs: Tensor, targets: Tensor) -> str:
        return rows_picture(inputs, targets)


def rows_picture(inputs: Tensor, targets: Tensor) -> str:
    """Real features and targets, one token a line."""
    rows = zip(inputs.tolist(), targets.tolist(), strict=True)
    return "\n".join(
        f"{place:3d}: {' '.join(f'{x:7.3f}' for x in seen)}  ->  {' '.join(f'{y:7.3f}' for y in said)}"
        for place, (seen, said) in enumerate(rows)
    )


@lru_cache(maxsize=16)
def _family(task: Filter) -> Terms:
    terms = basis_terms(task.basis, task.polynomial.matrix(), task.k, task.a, task.b)
    if task.target == "signal":
        weights = filter_weights(task.weights, task.k, task.alpha, task.weights_seed)
        terms = np.tensordot(weights, terms, 1)[None]
    if not np.isfinite(terms).all():
        raise BadInput(f"filter: {task.k} terms of operator '{task.operator}' are too large for numbers")
    return terms
