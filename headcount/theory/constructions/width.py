"""Narrow queries and keys: k heads that are mixed need width N - k + 1, not N (corrects Sec. B.2).

Concatenated, head h is A^h itself, and A^h of full rank needs query and key width N: with width n the best
rank-n approximation leaves sqrt(tail of the squared singular values of A^h). With an output projection the
heads need only SPAN the powers, and a polynomial in A loses rank at its roots:

    l_h(x) = prod_(j != h) (x - lambda_j) / (lambda_h - lambda_j),    h = 1 .. k,

for k distinct eigenvalues lambda_1 .. lambda_k of A. Lagrange interpolation of x^i, exact for i < k, gives

    A^i = sum_h lambda_h^i l_h(A),        rank l_h(A) <= N - (k - 1),

since l_h vanishes at k - 1 eigenvalues. No smaller width serves k heads if A is diagonalisable with distinct
eigenvalues and its first k powers are independent: the heads' patterns are then k independent combinations of
the powers, that is nonzero polynomials of degree < k in A, which vanish at k - 1 eigenvalues at most.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from headcount.models import AttentionConfig, Sizes
from headcount.tasks.operators import Matrix
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    compile_attention,
    identity,
    linear_probes,
)
from headcount.theory.constructions.polynomial import check_filter, filter_semantics


def spread_eigenvalues(eigenvalues: Float[np.ndarray, " tokens"], count: int) -> list[int]:
    """Indices of `count` distinct eigenvalues, each as far as possible from those before it (Leja order),
    which keeps the interpolation well conditioned."""
    chosen = [int(np.abs(eigenvalues).argmax())]
    while len(chosen) < count:
        gaps = np.abs(eigenvalues[:, None] - eigenvalues[chosen][None, :]).prod(1)
        if gaps.max() <= 1e-12:
            raise NoConstruction(f"A has fewer than {count} distinct eigenvalues to take as roots")
        chosen.append(int(gaps.argmax()))
    return chosen


def narrow_polynomial(A: Matrix, k: int, features: int = 1) -> Construction:
    """k mixed multi-head heads of query width N - k + 1, patterns from positions; symmetric A.

    With A = U diag(lambda) U^T and U_h its columns where l_h(lambda) != 0:

        Q_h = U_h diag(l_h(lambda)),   K_h = U_h,   V_h = X,   W_O^h block i = lambda_h^i.

    Raises:
        NoConstruction: if A is not symmetric, or has fewer than k distinct eigenvalues.
    """
    N, d = check_filter(A, k, features)
    if not np.allclose(A, A.T, atol=1e-12):
        raise NoConstruction("A is not symmetric: the roots taken here are its real eigenvalues")
    eigenvalues, vectors = np.linalg.eigh(A)
    roots = spread_eigenvalues(eigenvalues, k)
    width = N - k + 1
    W_Q = torch.zeros(k, N, width, dtype=torch.float64)
    W_K = torch.zeros(k, N, width, dtype=torch.float64)
    W_O = torch.zeros(k, d, k * d, dtype=torch.float64)
    for h, own in enumerate(roots):
        others = [j for j in roots if j != own]
        differences = eigenvalues[:, None] - eigenvalues[others][None, :]
        l_h = (differences / (eigenvalues[own] - eigenvalues[others])).prod(1)
        kept = [index for index in range(N) if index not in others]
        W_Q[h] = torch.from_numpy(vectors[:, kept] * l_h[kept])
        W_K[h] = torch.from_numpy(vectors[:, kept])
        for i in range(k):
            W_O[h, :, i * d : (i + 1) * d] = float(eigenvalues[own]) ** i * identity(d)
    weights = {
        "query.positions": W_Q,
        "key.positions": W_K,
        "value.features": identity(d).expand(k, d, d),
        "join.weight": W_O,
    }
    config = AttentionConfig(
        heads=k, score="linear", content="positions", value_content="features", query_width=width, value_width=d
    )
    return Construction(
        name=f"narrow-polynomial N={N} d={d} k={k}",
        statement="k mixed heads of query width N - k + 1 compute a k-term filter",
        source="not in the paper; against Sec. B.2",
        module=compile_attention(config, Sizes(N, d, k * d), weights),
        semantics=filter_semantics(A, k),
        inputs=linear_probes(N, d),
        tolerance=1e-8,
    )
