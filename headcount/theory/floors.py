"""Certified floors: errors that no model of a stated class can go below, with a certificate to re-check."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from headcount.models import AttentionConfig, ModelConfig, NetworkConfig
from headcount.tasks import Cpm3, Filter, Polynomial, Task
from headcount.tasks.operators import cyclic_shift, matrix_powers

Family = Float[np.ndarray, "terms tokens tokens"]


@dataclass(frozen=True)
class Certificate:
    """A lower bound on the relative error together with what proves it: the rows of a matrix cannot all lie
    near a space of `operators` dimensions, and the least squared distance is the tail of its squared singular
    values (Eckart-Young-Mirsky). What the rows are, and which models the space stands for, is said by the
    function that makes the certificate: `family_floor`, `concatenated_floor`, `rank_floor`, `span_floor`.

    Attributes:
        family: the rows, (rows, a, b), flattened to (rows, a b).
        operators: dimension of the space.
        singular_values: of the matrix of rows, largest first.
        floor: sqrt(sum_(i > operators) s_i^2 / sum_i s_i^2).
    """

    family: Family
    operators: int
    singular_values: Float[np.ndarray, " terms"]
    floor: float


def operator_dimension(config: AttentionConfig) -> int:
    """How many input-independent operators a position-only layer can combine.

    Multi-head: one pattern a head, H. Interleaved: the output of head h is sum_m M[h,m] V_m, hence
    H^2 matrices M[h,m]; they are combinations of the blocks A_g[p,q], of which there are H P^2. With a
    collapse per head, M[h,m] combines only the P matrices sum_p R[h,p] A_h[p,q]: H P in all.
    """
    if config.attention == "mha":
        return config.heads
    blocks = config.pseudo**2 if config.collapse == "full" else config.pseudo
    return min(config.heads**2, config.heads * blocks)


def operators_of_one_head(config: AttentionConfig) -> int:
    """The same for the output of a single head: M[h,1] .. M[h,H], of which P differ with a collapse per head."""
    if config.attention == "mha":
        return 1
    return config.heads if config.collapse == "full" else min(config.heads, config.pseudo)


def family_floor(family: Family, operators: int) -> Certificate:
    """Floor of layers whose x-dependent output is sum_t M_t X C_t with at most `operators` matrices M_t that do
    not depend on X: patterns from positions only; any values, widths, output projection, additive constant.

    For X with independent, zero-mean, unit-variance entries the best output block i is the projection of
    A^i X on span{M_t}, so the squared error is at least the squared distance of the rows vec(A^i) from a space
    of that dimension.
    """
    values = np.linalg.svd(family.reshape(len(family), -1), compute_uv=False)
    tail, total = float((values[operators:] ** 2).sum()), float((values**2).sum())
    return Certificate(family, operators, values, float(np.sqrt(tail / total)))


def concatenated_floor(family: Family, heads: int, operators: int) -> list[Certificate]:
    """Floors of the parts of a target that is divided among concatenated heads, one feature a block (d = 1).

    Class: patterns from positions only, no output projection; head h alone answers its share of the powers, in
    order and as evenly as possible (`Join`), from `operators` matrices: 1 for multi-head, H for interleaved.
    The parts add: the squared error is at least the sum of the tails. See `total_floor`.
    """
    owner = np.arange(len(family)) * heads // len(family)
    return [family_floor(family[owner == head], operators) for head in np.unique(owner)]


def total_floor(parts: list[Certificate]) -> float:
    """Floor of a target whose parts have certificates of their own."""
    energies = [float((part.singular_values**2).sum()) for part in parts]
    tails = [part.floor**2 * energy for part, energy in zip(parts, energies, strict=True)]
    return float(np.sqrt(sum(tails) / sum(energies)))


def rank_floor(matrix: Float[np.ndarray, "tokens tokens"], rank: int) -> Certificate:
    """Floor of one concatenated head of query width `rank` that must be `matrix`: its pattern has rank at most
    the query width, so the squared error is at least the tail of the matrix's own squared singular values."""
    return family_floor(matrix[:, None, :], rank)


def span_floor(tokens: int, directions: int) -> Certificate:
    """Floor of layers that answer N independent, zero-mean, unit-variance numbers at a position by a vector in a
    space of `directions` fixed directions, plus a constant.

    On the CPM-3 workspace: heads that move scalars, whatever attention reads, as long as values read no
    positions. Multi-head: H directions W_V^h W_O^h. Interleaved: the H^2 directions W_V^m W_O^h.
    """
    return family_floor(np.eye(tokens)[:, None, :], directions)


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
    if isinstance(task, Filter):
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


def floor(task: Task, config: AttentionConfig | NetworkConfig) -> float | None:
    """The certified floor of a layer on a task, or None where none of ours applies.

    Covers position-only attention. For the workspace it also covers attention that reads the
    scalars, as long as values do not read positions: then every head moves one scalar, the output
    lies in a span of at most H (interleaved: H^2) fixed directions, and projecting N independent
    tokens on it loses the same share.
    """
    values = _singular_values(task)
    if (
        values is None
        or not isinstance(config, AttentionConfig)
        or (isinstance(config, ModelConfig) and config.mlp_width)
    ):
        return None
    if config.content == "positions" and config.output == "concat" and task.input_width == 1:
        family = operator_family(task)
        assert family is not None
        parts = concatenated_floor(family, config.heads, operators_of_one_head(config))
        return max(total_floor(parts), _tail(values, operator_dimension(config)))
    scalar_transport = isinstance(task, Cpm3) and config.value_content == "features"
    if config.content == "positions":
        operators = operator_dimension(config)
    elif scalar_transport:
        operators = config.heads if config.attention == "mha" else config.heads**2
    else:
        return None
    return _tail(values, operators)


def _tail(values: Float[np.ndarray, " terms"], operators: int) -> float:
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
