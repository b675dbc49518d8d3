"""Certified floors: errors that no model of a stated class can go below, with a certificate to re-check."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from headcount.models import AttentionConfig, ModelConfig
from headcount.tasks import Cpm3, Polynomial, Task
from headcount.tasks.operators import cyclic_shift, matrix_powers

Family = Float[np.ndarray, "terms tokens tokens"]


@dataclass(frozen=True)
class Certificate:
    """A lower bound on the relative error together with what proves it.

    Class of models: the x-dependent part of the output is sum_t M_t X C_t with at most `operators`
    matrices M_t that do not depend on X (patterns from positions only; any values, widths, output
    projection and additive constant).

    Claim: for X with independent, zero-mean, unit-variance entries, output block i is at best the
    projection of A^i X on span{M_t}, so the squared error is at least the squared distance of the
    rows vec(A^i) from an `operators`-dimensional space, which is the tail of squared singular
    values of the matrix of these rows (Eckart-Young-Mirsky).
    """

    family: Family
    operators: int
    singular_values: Float[np.ndarray, " terms"]
    floor: float


def operator_dimension(config: AttentionConfig) -> int:
    """How many input-independent operators a position-only layer can combine.

    Multi-head: one pattern a head, H. Interleaved: the output of head h is sum_m M[h,m] V_m, hence
    H^2 matrices M[h,m]; they are combinations of the blocks A_g[p,q], of which there are H P^2; and
    with P = 1 a head has a single block, which leaves H.
    """
    if config.attention == "mha":
        return config.heads
    return min(config.heads**2, config.heads * config.pseudo**2)


def family_floor(family: Family, operators: int) -> Certificate:
    """Certificate that at most `operators` operators leave a relative error of at least `floor`."""
    values = np.linalg.svd(family.reshape(len(family), -1), compute_uv=False)
    tail, total = float((values[operators:] ** 2).sum()), float((values**2).sum())
    return Certificate(family, operators, values, float(np.sqrt(tail / total)))


def recheck(certificate: Certificate, tolerance: float = 1e-9) -> bool:
    """Check a certificate without a singular value decomposition.

    The squared singular values are the eigenvalues of the Gram matrix G of the family; they must be
    the roots that G's own power sums demand (trace of G and of G^2), be sorted and nonnegative, and
    give the stated floor; and G's best `operators`-dimensional subspace, found by eigh, must leave
    exactly the stated tail.
    """
    rows = certificate.family.reshape(len(certificate.family), -1)
    gram = rows @ rows.T
    squares = certificate.singular_values**2
    total = float(np.trace(gram))
    sums_match = abs(squares.sum() - total) <= tolerance * total
    squares_match = abs((squares**2).sum() - (gram * gram).sum()) <= tolerance * total**2
    sorted_down = bool((np.diff(certificate.singular_values) <= tolerance * total).all())
    _, vectors = np.linalg.eigh(gram)
    best = vectors[:, ::-1][:, : certificate.operators]
    tail = max(total - float(np.trace(best.T @ gram @ best)), 0.0)
    # Square roots turn a rounding error e in the tail into sqrt(e) in the floor.
    floor_matches = abs(certificate.floor**2 - tail / total) <= tolerance
    return bool(sums_match and squares_match and sorted_down and floor_matches)


def operator_family(task: Task) -> Family | None:
    """The operators a task asks for, where its target is a family of fixed linear maps of the tokens.

    The CPM-3 workspace asks for the N cyclic shifts of the token values: the powers of the shift.
    """
    if isinstance(task, Polynomial):
        return task.powers()
    if isinstance(task, Cpm3) and task.target == "workspace":
        return matrix_powers(cyclic_shift(task.tokens), task.tokens)
    return None


@lru_cache(maxsize=256)
def _singular_values(task: Task) -> Float[np.ndarray, " terms"] | None:
    family = operator_family(task)
    if family is None:
        return None
    return np.linalg.svd(family.reshape(len(family), -1), compute_uv=False)


def floor(task: Task, config: AttentionConfig) -> float | None:
    """The certified floor of a layer on a task, or None where none of ours applies.

    Covers position-only attention. For the workspace it also covers attention that reads the
    scalars, as long as values do not read positions: then every head moves one scalar, the output
    lies in a span of at most H (interleaved: H^2) fixed directions, and projecting N independent
    tokens on it loses the same share.
    """
    values = _singular_values(task)
    if values is None or (isinstance(config, ModelConfig) and config.mlp_width):
        return None
    scalar_transport = isinstance(task, Cpm3) and config.value_content == "features"
    if config.content == "positions":
        operators = operator_dimension(config)
    elif scalar_transport:
        operators = config.heads if config.attention == "mha" else config.heads**2
    else:
        return None
    return float(np.sqrt((values[operators:] ** 2).sum() / (values**2).sum()))


def epsilon_rank(task: Task, tolerance: float) -> int:
    """Fewest operators whose floor is at most `tolerance`: the eps-rank of the family of powers.

    Raises:
        ValueError: if the task asks for no family of operators.
    """
    values = _singular_values(task)
    if values is None:
        raise ValueError(f"{task.name} asks for no family of linear operators")
    squares = values**2
    tails = np.sqrt(np.append(np.cumsum(squares[::-1])[::-1], 0.0) / squares.sum())
    return int(np.argmax(tails <= tolerance))


def predicted_heads(task: Task, attention: str, tolerance: float) -> int:
    """Fewest heads that position-only attention needs for a relative error of `tolerance`:
    the eps-rank for multi-head attention, the square root of it, rounded up, for interleaved (P = H)."""
    rank = epsilon_rank(task, tolerance)
    return rank if attention == "mha" else int(np.ceil(np.sqrt(rank)))
