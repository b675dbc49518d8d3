"""Polynomial filters X -> [X, A X, .., A^(k-1) X]: k heads, or ceil(sqrt k) interleaved (paper Sec. B.2)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.models import AttentionConfig, Sizes
from headcount.tasks.operators import Matrix, matrix_powers
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    Semantics,
    ceil_sqrt,
    compile_attention,
    identity,
    linear_probes,
    owned_outputs,
    routers,
)

Content = Literal["positions", "full"]
ValueContent = Literal["features", "full"]


def powers_of(A: Matrix, count: int) -> Float[Tensor, "count tokens tokens"]:
    """A^0 .. A^(count-1) as one tensor."""
    return torch.from_numpy(matrix_powers(A, count))


def filter_semantics(A: Matrix, k: int) -> Semantics:
    """X -> [Y_0, .., Y_(k-1)] with Y_0 = X and Y_i = A Y_(i-1): no power of A is formed."""
    operator = torch.from_numpy(A)

    def semantics(x: Tensor) -> Tensor:
        terms = [x]
        for _ in range(k - 1):
            terms.append(operator @ terms[-1])
        return torch.cat(terms, -1)

    return semantics


def check_filter(A: Matrix, k: int, features: int) -> tuple[int, int]:
    """N and d of a filter.

    Raises:
        NoConstruction: if there is no term, no feature, or A is no square matrix of finite numbers.
    """
    if k < 1:
        raise NoConstruction(f"k = {k}: a polynomial filter has at least one term")
    if features < 1:
        raise NoConstruction(f"features = {features}: X needs at least one column")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise NoConstruction(f"A has shape {A.shape}: powers need a square matrix")
    if not bool(torch.from_numpy(A).isfinite().all()):
        raise NoConstruction("A holds values that are not finite")
    return len(A), features


def mha_parameters(tokens: int, features: int, k: int, query_width: int | None = None) -> int:
    """Printed count, Sec. B.2: 2n(N+d)k + d(N+d)k; n = N if not given."""
    n, rows = query_width or tokens, tokens + features
    return 2 * n * rows * k + features * rows * k


def iha_parameters(tokens: int, features: int, k: int, query_width: int | None = None) -> int:
    """Printed count, Sec. B.2: 2n(N+d)H + d(d+N)H^2 + 4H^3 with H = ceil(sqrt k); n = N if not given."""
    n, rows, H = query_width or tokens, tokens + features, ceil_sqrt(k)
    return 2 * n * rows * H + features * rows * H**2 + 4 * H**3


def mha_polynomial(
    A: Matrix, k: int, features: int = 1, *, content: Content = "full", value_content: ValueContent = "full"
) -> Construction:
    """k heads, linear score, concatenated.

        W_Q^h = [0; A^(h-1)],  W_K^h = [0; I],  W_V^h = [I_d; 0]
        out_h = (X_hat W_Q W_K^T X_hat^T) X_hat W_V = A^(h-1) X

    Args:
        A: (N, N), any matrix.
        content, value_content: "full" is the paper's form; with "positions" and "features" the rows that
            are zero do not exist.

    Raises:
        NoConstruction: see `check_filter`.
    """
    N, d = check_filter(A, k, features)
    config = AttentionConfig(
        heads=k, score="linear", content=content, value_content=value_content, output="concat", value_width=d
    )
    weights = {
        "query.positions": powers_of(A, k),
        "key.positions": identity(N).expand(k, N, N),
        "value.features": identity(d).expand(k, d, d),
    }
    return Construction(
        name=f"mha-polynomial N={N} d={d} k={k} {content}/{value_content}",
        statement="k heads compute a k-term polynomial filter of any matrix",
        source="Sec. 4.2, B.2",
        module=compile_attention(config, Sizes(N, d, k * d), weights),
        semantics=filter_semantics(A, k),
        inputs=linear_probes(N, d),
    )


def iha_polynomial(
    A: Matrix,
    k: int,
    features: int = 1,
    *,
    content: Content = "full",
    value_content: ValueContent = "full",
    output: Literal["concat", "mixed"] = "concat",
) -> Construction:
    """H = P = ceil(sqrt k) interleaved heads, linear score.

        W_Q^m = [0; A^(s_m)],  W_K^m = [0; (A^(m-1))^T],  W_V^m = X into block m of d columns (width d H)
        O_h = sum_j Q_h K_j^T V_j = sum_j A^(s_h) A^(j-1) X E_j = [A^(s_h) X, .., A^(s_h + H - 1) X]

    and head h starts at the first power whose columns it owns. The paper has k = H^2 and s_h = (h-1) H. Where
    k is no square, concatenated heads share k d outputs as evenly as possible, and

        d = 1, or H divides k:  a head's outputs begin with a whole power, s_h = first output / d.
        otherwise:              a split inside a power would need every W_V^m shifted by a head's own offset,
                                and values are shared by all heads. The layer gets d H^2 outputs,
                                s_h = (h-1) H, and the first k d of them are read.

    With output "mixed" s_h = (h-1) H, the layer has k d outputs and W_O^h drops the powers from k on.
    The count is the printed one in every concatenated case, since the value width is d H.

    Raises:
        NoConstruction: see `check_filter`.
    """
    N, d = check_filter(A, k, features)
    H = ceil_sqrt(k)
    whole_powers = output == "mixed" or d == 1 or k % H == 0
    outputs = k * d if whole_powers else d * H * H
    config = AttentionConfig(
        attention="iha",
        heads=H,
        score="linear",
        content=content,
        value_content=value_content,
        output=output,
        value_width=d * H,
    )
    if output == "concat":
        starts = [first // d for _, column, first in owned_outputs(outputs, H) if column == 0]
    else:
        starts = [h * H for h in range(H)]
    A_to = powers_of(A, max(starts[-1], H - 1) + 1)
    blocks = identity(d * H).reshape(H, d, d * H)
    weights = {
        "query.positions": A_to[starts],
        "key.positions": A_to[:H].mT,
        "value.features": blocks,
        **routers(H),
    }
    if output == "mixed":
        # W_O^h sends block j of head h, which holds A^((h-1)H + j - 1) X, to output block (h-1)H + j - 1.
        weights["join.weight"] = identity(d * H * H)[:, : k * d].reshape(H, d * H, k * d)
    return Construction(
        name=f"iha-polynomial N={N} d={d} k={k} {content}/{value_content} {output}",
        statement="ceil(sqrt k) interleaved heads compute a k-term polynomial filter of any matrix",
        source="Sec. 4.2, B.2",
        module=compile_attention(config, Sizes(N, d, outputs), weights),
        semantics=filter_semantics(A, k),
        inputs=linear_probes(N, d),
        read=k * d,
    )
