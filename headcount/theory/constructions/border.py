"""Below k heads: heads that read content get the identity power for free, in a limit (not in the paper).

The printed lower bound argues through rank(target) = k d. It holds for patterns that do not read X. For
linear heads on X_hat = [X, I_N] the pattern of a head is a quadratic polynomial in X,

    pattern_h = S_h + X B_h + C_h X^T + X M_h X^T,        values times output block: V_h = v_h + X a_h
    S_h (N,N), B_h (d,N), C_h (N,d), M_h (d,d);           v_h (N, k d), a_h (d, k d)                 (1)

and the layer is sum_h pattern_h V_h. (Interleaved: the same sum over the H^2 pairs (h, m), pattern M[h,m] and
values V_m W_O^h. Concatenated: the columns of V_h outside block h are zero.)

Four results; the tests check the families, the expansion (1), (2) and the floor:

1. LIMIT (`mha_border`, `iha_border`, `concatenated_border`). k - 1 patterns come arbitrarily close, by a
   family with weights of size 1/eps and an error that is exactly eps times a fixed function: a border-rank
   effect. The term X B_h v_h is a multiple of X, whatever S_h is; eps in B and 1/eps in v make it X, if the
   constant S_h v_h / eps is cancelled.

2. NEVER EXACT. Let N > d, and let no nonzero polynomial of degree < k in A have rank <= (k-1) d. (If A has N
   distinct eigenvalues every such polynomial has rank >= N - k + 1, so N >= (k-1)(d+1) + 1 is enough.) Then
   no finite weights with k - 1 patterns, mixed or concatenated, of any width, equal the target at every X.
   Proof. Both sides are polynomials in X, so they agree degree by degree:
     degree 3:  sum_h X M_h X^T X a_h = 0
     degree 2:  sum_h X B_h X a_h + C_h X^T X a_h + X M_h X^T v_h = 0
     degree 1:  sum_h a_h[e,o] S_h + (sum_h B_h v_h)[e,o] I + sum_h C_h[:,e] v_h[:,o]^T  =  [e = f] A^t
                for each input column e and output o = (t, f): column f of A^t X.                    (2)
   Let L be the linear space of matrices whose columns lie in the span of all columns of all C_h; they have
   rank <= (k-1) d. Modulo L the powers A^0 .. A^(k-1) are independent, by assumption, and by (2) with e = f
   they lie in span{S_1 .. S_(k-1), I}: k independent vectors in a space spanned by k. So S_1 .. S_(k-1), I
   are independent modulo L. Hence (2) with e != f gives a_h[e,(t,f)] = 0, and with e = f the k x (k-1) matrix
   (a_h[f,(t,f)])_(t,h) has full column rank, being a part of an invertible basis change. Together: the
   (k-1) d rows of all a_h are independent. Therefore
     degree 3, X of full column rank, cancel X:       sum_h M_h G a_h = 0, G = X^T X = I       =>  M_h = 0
     degree 2, G = I:  the columns of sum_h C_h a_h lie in the column space of every such X, hence are 0
                                                                                               =>  C_h = 0
     degree 2, what is left, cancel X:                sum_h B_h X a_h = 0 for every X          =>  B_h = 0.
   Then (2) writes k independent powers as combinations of the k - 1 matrices S_h: contradiction.

3. FLOOR (`content_floor`). Fewer than k - 1 patterns leave a certified error even in the limit. Take X with
   independent N(0,1) entries and keep, of the layer's Hermite expansion, the linear part; it is orthogonal to
   the rest. Degree 3 contributes multiples of I to it (contract two of the three X: N M a + tr(M) a + M^T a),
   degrees 0 and 2 nothing. So for e = f the linear part of output (t, f) is a combination of S_1 .. S_H and I
   plus a matrix whose columns lie in span{C_h[:,f]}, of dimension <= H. With U the projector on that span,
     sum_t ||A^t - part_t||^2  >=  dist^2 of the (1-U) A^t from an (H+1)-dimensional space
                               >=  tail_(H+1) - sum_t ||U A^t||^2,
   where tail_j is the sum of all but the j largest squared singular values of the k x N^2 matrix of vec A^t.
   Values that read no positions (v_h = 0) have no I and no U to gain for d = 1: degree 3 gives (N+2) M_h a_h,
   which merely shifts S_h. The floor is then tail_H, that of `family_floor`, though queries read content.

4. CONCATENATED, d = 1, N >= 3, A no multiple of I plus rank 1. One head carries X and A X in the limit exactly
   if A has a real eigenvalue, invertible or not. `concatenated_border` is the one direction. For the other take
   weights whose error tends to 0; a and b index the columns for A X and X, and V = |v_a|, u = v_a / V.
   By Hermite degrees 3, 2, 0:  M a_o -> 0;  a_o B + M v_o -> 0, a_o C -> 0;  S v_o -> 0;  and the linear part
     (a)  a_a S + beta_a I + C v_a^T -> A,    (b)  a_b S + beta_b I + C v_b^T -> I,    beta_o = B v_o + (N+2) M a_o.
   Scale so that |(a_a, a_b)| = 1. a_b (a) - a_a (b) shows a_b -> 0, else A were a multiple of I plus rank 1; so
   a_a = 1 may be assumed, whence C, M -> 0, B = -M v_a^T + o(1), and S = A' - beta_a I - C v_a^T with A' -> A.
   With w = v_b - a_b v_a, (b) reads (B w) I + C w^T -> I, so B w -> 1 and |C| |w| -> 0; and S w -> 0.
   If A has no real eigenvalue, |(A' - beta) z| >= c max(1, |beta|) |z| for all real beta, with one c > 0.
     V bounded:  B -> 0, and S w = (A' - beta_a) w + o(1) forces w -> 0, against B w -> 1.
     V -> inf:   S v_a -> 0 gives C V = (A' - beta_a) u + o(1/V); as C -> 0, beta_a / V -> 0, and M V -> 0, B -> 0.
                 |C| |w| -> 0 gives |w| max(1, |beta_a|) / V -> 0. Write w = (u.w) u + r. S u = o(1/V), so
                 S r = (A' - beta_a) r -> 0, r -> 0, and B w = (u.w)(beta_a + o(1)) / V + B r -> 0, a contradiction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headcount.models import AttentionConfig, Sizes
from headcount.models.attention import MultiHeadAttention
from headcount.models.attention.heads import Projection
from headcount.tasks.operators import Matrix
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    Semantics,
    ceil_sqrt,
    compile_attention,
    gaussian_inputs,
    identity,
    routers,
)
from headcount.theory.constructions.polynomial import check_filter, filter_semantics, powers_of
from headcount.theory.floors import Family

RANK_TOLERANCE = 1e-10
"""Singular values below this share of the largest count as zero."""


def _check_eps(eps: float) -> None:
    if not 0 < eps < 1:
        raise NoConstruction(f"eps = {eps}: the family is defined for 0 < eps < 1")


def null_space(matrix: Matrix) -> Float[np.ndarray, "tokens nullity"]:
    """Orthonormal basis of the null space, up to RANK_TOLERANCE."""
    _, S, Vh = np.linalg.svd(matrix)
    scale = S[0] if S[0] > 0 else 1.0
    return Vh[S / scale <= RANK_TOLERANCE].T


def cancelling_pair(
    A: Matrix, power: int, features: int
) -> tuple[Float[Tensor, "tokens features"], Float[Tensor, "tokens features"]]:
    """p, c with p^T p = I_d and A^(power+1) c = A p: head A^(power+1) cancels what head A makes of p.

    No inverse of A is needed. If rank(A^power) >= d, with A^power = U S W^T, p = first d columns of U and
    c = W / S give A^power c = p. If not, d null vectors of A serve, with c = 0. One of the two exists unless
    rank(A^power) < d and A has fewer than d null vectors.

    Raises:
        NoConstruction: in that last case.
    """
    U, S, Wh = np.linalg.svd(np.linalg.matrix_power(A, power))
    rank = int((RANK_TOLERANCE * max(S[0], 1e-300) < S).sum())
    if rank >= features:
        p, c = U[:, :features], Wh[:features].T / S[:features]
    else:
        p = null_space(A)[:, :features]
        c = np.zeros_like(p)
        if p.shape[1] < features:
            raise NoConstruction(
                f"A^{power} has rank {rank} and A has {p.shape[1]} null vectors; one of them must reach d = {features}"
            )
    return torch.from_numpy(p.copy()), torch.from_numpy(c.copy())


def _shifted_target(
    A: Matrix, k: int, eps: float, p: Float[Tensor, "tokens features"], first: int, reach: int
) -> Semantics:
    """Target + eps X p^T A^m X in block first + m, m = 0 .. reach - 1: the exact output of the families."""
    target = filter_semantics(A, k)
    operator = torch.from_numpy(A)

    def semantics(x: Tensor) -> Tensor:
        blocks = list(target(x).split(x.shape[-1], -1))
        term = x
        for m in range(min(reach, k - first)):
            blocks[first + m] = blocks[first + m] + eps * x @ (p.T @ term)
            term = operator @ term
        return torch.cat(blocks, -1)

    return semantics


def mha_border(A: Matrix, k: int, features: int = 1, eps: float = 1e-3) -> Construction:
    """H = k - 1 heads, linear score, content full, mixed output; any A with a `cancelling_pair`, k >= 3.

    Head i = 1 .. k-1, K_i = I, with Pi_t the selector of output block t (d x k d):

        Q_1 = A + eps X p^T     V_1 = X Pi_1 + (p / eps) Pi_0
        Q_2 = A^2               V_2 = X Pi_2 - (c / eps) Pi_0
        Q_i = A^i               V_i = X Pi_i

        (A + eps X p^T)(X Pi_1 + (p / eps) Pi_0) = A X Pi_1 + eps X p^T X Pi_1 + (A p / eps) Pi_0 + X Pi_0
        A^2 (X Pi_2 - (c / eps) Pi_0)            = A^2 X Pi_2                  - (A p / eps) Pi_0

    The sum is the target + eps X (p^T X) Pi_1: exactly linear in eps, with weights that grow like 1 / eps.
    As weights: V_i = X_hat [[I_d, 0]; [0, +-p or c / eps]] of width 2 d, and W_O^i = [Pi_i; Pi_0].

    Raises:
        NoConstruction: if k < 3 (no second head to cancel the constant), eps is not in (0, 1), or there is no
            cancelling pair.
    """
    N, d = check_filter(A, k, features)
    _check_eps(eps)
    if k < 3:
        raise NoConstruction(f"k = {k}: a second head must cancel the constant, so k >= 3; see concatenated_border")
    p, c = cancelling_pair(A, 1, d)
    H = k - 1
    Pi = identity(k * d).reshape(k, d, k * d)
    W_Q_features = torch.zeros(H, d, N, dtype=torch.float64)
    W_Q_features[0] = eps * p.T
    W_V_features = torch.zeros(H, d, 2 * d, dtype=torch.float64)
    W_V_features[:, :, :d] = identity(d)
    W_V_positions = torch.zeros(H, N, 2 * d, dtype=torch.float64)
    W_V_positions[0, :, d:] = p / eps
    W_V_positions[1, :, d:] = -c / eps
    W_O = torch.stack([torch.cat([Pi[i], Pi[0] if i <= 2 else 0 * Pi[0]]) for i in range(1, k)])
    weights = {
        "query.features": W_Q_features,
        "query.positions": powers_of(A, k)[1:],
        "key.positions": identity(N).expand(H, N, N),
        "value.features": W_V_features,
        "value.positions": W_V_positions,
        "join.weight": W_O,
    }
    config = AttentionConfig(heads=H, score="linear", value_content="full", value_width=2 * d)
    return Construction(
        name=f"mha-border N={N} d={d} k={k} eps={eps:g}",
        statement="k - 1 heads with an output projection approach a k-term filter",
        source="not in the paper",
        module=compile_attention(config, Sizes(N, d, k * d), weights),
        semantics=_shifted_target(A, k, eps, p, first=1, reach=1),
        inputs=gaussian_inputs(16, N, d),
        tolerance=_rounding(W_V_positions),
        limit=filter_semantics(A, k),
    )


def iha_border(A: Matrix, k: int, features: int = 1, eps: float = 1e-3) -> Construction:
    """H = P = ceil(sqrt(k-1)) interleaved heads, linear score, content full, mixed output; k >= 3.

    Heads h and base heads m count from 0; Pi_t is zero for t >= k; routers as in the paper, so that
    O_h = sum_m Q_h K_m^T V_m.

        Q_h = A^(hH+1) + [h = 0] eps X p^T        K_m = (A^m)^T
        V_m = [X in block m | [m = 0] p / eps | -[m = 0] c / eps]       width d H + 2 d, last two F and F'
        W_O^h: block m -> Pi_(1+hH+m);   [h = 0] F -> Pi_0;   [h = 1] F' -> Pi_0

        head 0:  blocks 1 + m:  A^(1+m) X + eps X p^T A^m X        block 0:  A p / eps + X
        head 1:  blocks 1 + H + m:  A^(H+1+m) X                    block 0:  -A^(H+1) c / eps = -A p / eps
        head h:  blocks 1 + hH + m:  A^(hH+1+m) X

    All heads share the values, but each has its own W_O^h: head 0 reads F only, head 1 reads F' only. The sum
    is the target + eps sum_(m<H) X p^T A^m X Pi_(1+m).

    Raises:
        NoConstruction: if k < 3, eps is not in (0, 1), or there is no cancelling pair for A^H.
    """
    N, d = check_filter(A, k, features)
    _check_eps(eps)
    if k < 3:
        raise NoConstruction(f"k = {k}: a second head must cancel the constant, so k >= 3; see concatenated_border")
    H = ceil_sqrt(k - 1)
    p, c = cancelling_pair(A, H, d)
    A_to = powers_of(A, (H - 1) * H + 2)
    width = d * (H + 2)
    W_Q_features = torch.zeros(H, d, N, dtype=torch.float64)
    W_Q_features[0] = eps * p.T
    W_V_features = torch.zeros(H, d, width, dtype=torch.float64)
    W_O = torch.zeros(H, width, k * d, dtype=torch.float64)
    for m in range(H):
        block = slice(m * d, (m + 1) * d)
        W_V_features[m, :, block] = identity(d)
        for h in range(H):
            if (t := 1 + h * H + m) < k:
                W_O[h, block, t * d : (t + 1) * d] = identity(d)
    F, F_prime = slice(H * d, (H + 1) * d), slice((H + 1) * d, width)
    W_V_positions = torch.zeros(H, N, width, dtype=torch.float64)
    W_V_positions[0, :, F] = p / eps
    W_V_positions[0, :, F_prime] = -c / eps
    W_O[0, F, :d] = W_O[1, F_prime, :d] = identity(d)
    weights = {
        "query.features": W_Q_features,
        "query.positions": A_to[[h * H + 1 for h in range(H)]],
        "key.positions": A_to[:H].mT,
        "value.features": W_V_features,
        "value.positions": W_V_positions,
        "join.weight": W_O,
        **routers(H),
    }
    config = AttentionConfig(attention="iha", heads=H, score="linear", value_content="full", value_width=width)
    return Construction(
        name=f"iha-border N={N} d={d} k={k} eps={eps:g}",
        statement="ceil(sqrt(k-1)) interleaved heads with an output projection approach a k-term filter",
        source="not in the paper",
        module=compile_attention(config, Sizes(N, d, k * d), weights),
        semantics=_shifted_target(A, k, eps, p, first=1, reach=H),
        inputs=gaussian_inputs(16, N, d),
        tolerance=_rounding(W_V_positions),
        limit=filter_semantics(A, k),
    )


def real_eigenspace(A: Matrix, features: int) -> tuple[float, Float[Tensor, "tokens features"]]:
    """mu, p with A p = mu p, p^T p = I_d: the smallest real eigenvalue with d independent eigenvectors.

    Raises:
        NoConstruction: if A has none.
    """
    scale = max(float(np.linalg.norm(A, 2)), 1e-300)
    eigenvalues = np.linalg.eigvals(A)
    real = eigenvalues[np.abs(eigenvalues.imag) <= 1e-12 * scale].real
    for mu in sorted([0.0, *(float(value) for value in real)], key=abs):
        p = null_space(A - mu * np.eye(len(A)))
        if p.shape[1] >= features:
            return mu, torch.from_numpy(p[:, :features].copy())
    raise NoConstruction(f"A has no real eigenvalue with {features} independent eigenvectors")


def concatenated_border(A: Matrix, k: int, features: int = 1, eps: float = 1e-3) -> Construction:
    """H = k - 1 concatenated heads, linear score, content full; A has a real eigenvalue mu, d eigenvectors p.

    One head carries X and A X in the limit, although nothing is summed over heads:

        Q_1 = A - mu I + eps X p^T,  K_1 = I,  V_1 = [p / eps | X + mu p / eps]
        Q_1 p / eps          = (A - mu I) p / eps + X p^T p      = X                                  exactly
        Q_1 (X + mu p / eps) = A X - mu X + eps X p^T X + mu X   = A X + eps X p^T X

    A singular A is the case mu = 0. An invertible A is no obstacle: the pattern of the head is A - mu I,
    which is singular. The cyclic shift has mu = 1; every A with N odd has a real eigenvalue. Without one
    there is no such family (result 4). Only the identity power can be shared: two other powers would make a
    combination of A^i and A^j a multiple of I plus low rank (2).

    Raises:
        NoConstruction: if k < 2, eps is not in (0, 1), A has no such eigenvalue, or d > 1 and k > 2: the k d
            outputs are divided evenly among k - 1 heads, and no head owns blocks 0 and 1.
    """
    N, d = check_filter(A, k, features)
    _check_eps(eps)
    if k < 2:
        raise NoConstruction("k = 1: a layer has at least one head, so there is none to save")
    if d > 1 and k > 2:
        raise NoConstruction(
            f"d = {d}, k = {k}: outputs are divided evenly among the k - 1 concatenated heads, so none owns"
            " both X and A X; d = 1 or k = 2 is needed"
        )
    mu, p = real_eigenspace(A, d)
    H = k - 1
    W_Q_features = torch.zeros(H, d, N, dtype=torch.float64)
    W_Q_features[0] = eps * p.T
    W_Q_positions = powers_of(A, k)[1:].clone()
    W_Q_positions[0] -= mu * identity(N)
    W_V_features = torch.zeros(H, d, 2 * d, dtype=torch.float64)
    W_V_features[0, :, d:] = identity(d)
    W_V_features[1:, :, :d] = identity(d)
    W_V_positions = torch.zeros(H, N, 2 * d, dtype=torch.float64)
    W_V_positions[0] = torch.cat([p, mu * p], -1) / eps
    weights = {
        "query.features": W_Q_features,
        "query.positions": W_Q_positions,
        "key.positions": identity(N).expand(H, N, N),
        "value.features": W_V_features,
        "value.positions": W_V_positions,
    }
    config = AttentionConfig(heads=H, score="linear", value_content="full", output="concat", value_width=2 * d)
    return Construction(
        name=f"concatenated-border N={N} d={d} k={k} mu={mu:.3g} eps={eps:g}",
        statement="k - 1 concatenated heads approach a k-term filter if A has a real eigenvalue",
        source="not in the paper",
        module=compile_attention(config, Sizes(N, d, k * d), weights),
        semantics=_shifted_target(A, k, eps, p, first=1, reach=1),
        inputs=gaussian_inputs(16, N, d),
        tolerance=_rounding(W_V_positions),
        limit=filter_semantics(A, k),
    )


def _rounding(large: Tensor) -> float:
    """Deviation that rounding explains when terms as large as these weights cancel."""
    return 256 * torch.finfo(torch.float64).eps * max(1.0, float(large.abs().max()))


@dataclass(frozen=True)
class Expansion:
    """A linear multi-head layer as the polynomial (1) in X."""

    S: Float[Tensor, "heads tokens tokens"]
    B: Float[Tensor, "heads features tokens"]
    C: Float[Tensor, "heads tokens features"]
    M: Float[Tensor, "heads features features"]
    v: Float[Tensor, "heads tokens outputs"]
    a: Float[Tensor, "heads features outputs"]

    def degrees(self, x: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "degrees batch tokens outputs"]:
        """The parts of degree 0, 1, 2, 3 of the layer's output."""
        X = x[:, None]
        X_T = X.mT
        zero = (self.S @ self.v).sum(0).expand(len(x), -1, -1)
        one = self.S @ X @ self.a + X @ self.B @ self.v + self.C @ X_T @ self.v
        two = X @ self.B @ X @ self.a + self.C @ X_T @ X @ self.a + X @ self.M @ X_T @ self.v
        three = X @ self.M @ X_T @ X @ self.a
        return torch.stack([zero, one.sum(1), two.sum(1), three.sum(1)])

    def linear_part(self) -> Float[Tensor, "features outputs tokens tokens"]:
        """T[e, o] = E[(output column o) (column e of X)^T] over X ~ N(0, I): the linear Hermite part."""
        N = self.S.shape[-1]
        trace = self.M.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
        cubic = N * self.M @ self.a + trace * self.a + self.M.mT @ self.a
        scalar = (self.B @ self.v + cubic).sum(0)
        return (
            torch.einsum("heo,hij->eoij", self.a, self.S)
            + scalar[:, :, None, None] * identity(N)
            + torch.einsum("hie,hjo->eoij", self.C, self.v)
        )


def expand(module: MultiHeadAttention) -> Expansion:
    """Read (1) off the weights of a layer.

    Raises:
        NoConstruction: if the score is not linear, or a mask or rotary positions are in force.
    """
    config = module.config
    if config.score != "linear" or config.mask != "none" or config.rope != "none":
        raise NoConstruction("only a linear score without mask or rotary positions is a polynomial of this form")
    N, d = _extent(module)
    beta, W_O = module.inverse_temperature, module.join.weight.detach()
    q_X, q_I = _rows(module.query, N, d)
    k_X, k_I = _rows(module.key, N, d)
    v_X, v_I = _rows(module.value, N, d)
    return Expansion(
        beta * q_I @ k_I.mT,
        beta * q_X @ k_I.mT,
        beta * q_I @ k_X.mT,
        beta * q_X @ k_X.mT,
        v_I @ W_O,
        v_X @ W_O,
    )


def _extent(module: MultiHeadAttention) -> tuple[int, int]:
    """N and d, from the projections that have rows for them.

    Raises:
        NoConstruction: if nothing in the layer reads positions, so that N is free.
    """
    for projection in (module.query, module.key, module.value):
        if projection.positions is not None and module.value.features is not None:
            return projection.positions.shape[1], module.value.features.shape[1]
    raise NoConstruction("a layer that reads no positions is defined for every N; the expansion needs one")


def _rows(
    projection: Projection, tokens: int, features: int
) -> tuple[Float[Tensor, "heads features width"], Float[Tensor, "heads tokens width"]]:
    """The rows of W for X and for I_N, zeros where there are none."""
    some = projection.features if projection.features is not None else projection.positions
    assert some is not None
    heads, _, width = some.shape
    empty_X, empty_I = some.new_zeros(heads, features, width), some.new_zeros(heads, tokens, width)
    of_X = empty_X if projection.features is None else projection.features.detach()
    of_I = empty_I if projection.positions is None else projection.positions.detach()
    return of_X, of_I


def content_floor(family: Family, patterns: int) -> float:
    """Relative error that no linear layer with `patterns` patterns goes below, whatever it reads (result 3).

    Args:
        family: (k, N, N), the powers A^0 .. A^(k-1).
        patterns: H, or H^2 for interleaved heads.

    Returns:
        sqrt(max(0, tail_(patterns+1) - largest `patterns` eigenvalues of sum_t A^t A^tT) / sum_t ||A^t||^2);
        0 says nothing. For the cyclic shift it is sqrt(((k - H - 1) N - H k) / (k N)).
    """
    squares = np.linalg.svd(family.reshape(len(family), -1), compute_uv=False) ** 2
    energies = np.linalg.eigvalsh(np.einsum("tij,tlj->il", family, family))[::-1]
    tail = squares[patterns + 1 :].sum() - energies[:patterns].sum()
    return float(np.sqrt(max(0.0, tail) / squares.sum()))
