"""Interleaved head attention computes what multi-head attention cannot (paper Sec. 4.1, B.1): on repeated
tokens X = 1 x^T without positions every multi-head layer is linear in x."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.models import AttentionConfig, Sizes
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    compile_attention,
    gaussian_inputs,
)


def repeated(x: Float[Tensor, "examples features"], tokens: int) -> Float[Tensor, "examples tokens features"]:
    """X = 1 x^T for every example."""
    return x[:, None, :].repeat(1, tokens, 1)


def strictness(
    sign: Literal[-1, 1],
    *,
    tokens: int = 5,
    features: int = 3,
    query_width: int = 2,
    value_width: int = 7,
    seed: int = 0,
) -> Construction:
    """H = 1, P = 2, softmax at beta = 1, alphaK = (1, -1), alphaV = (1, sign), R = pseudo-head 1.

    On X = 1 x^T with q = x W_Q, k = x W_K, v = x W_V, s = <q, k>, every token has virtual keys k, -k and
    values v, sign v. Virtual query (n, 1) weighs N of each kind:

        out = (N e^s v + sign N e^-s v) / (N e^s + N e^-s)
            = v               for sign +1, as printed: every value row is v, so the layer is linear after all;
            = v tanh(s)       for sign -1: cubic in x to leading order, which no multi-head layer is.

    alphaQ = (1, 1); only its first entry is read.

    Raises:
        NoConstruction: if sign is neither 1 nor -1.
    """
    if sign not in (-1, 1):
        raise NoConstruction(f"sign = {sign}: the pair has alphaV[., 2] = +1 (printed) and -1 (corrected)")
    generator = torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V = (
        torch.randn(1, features, width, generator=generator, dtype=torch.float64)
        for width in (query_width, query_width, value_width)
    )
    weights = {
        "query.features": W_Q,
        "key.features": W_K,
        "value.features": W_V,
        "mix_query": torch.tensor([[[1.0, 1.0]]]),
        "mix_key": torch.tensor([[[1.0, -1.0]]]),
        "mix_value": torch.tensor([[[1.0, sign]]]),
        "collapse": torch.tensor([[[1.0, 0.0]]]),
    }
    config = AttentionConfig(
        attention="iha",
        heads=1,
        pseudo_heads=2,
        content="features",
        value_content="features",
        output="concat",
        query_width=query_width,
        value_width=value_width,
        inverse_temperature=1.0,
    )

    def semantics(x: Tensor) -> Tensor:
        q, k, v = x @ W_Q[0], x @ W_K[0], x @ W_V[0]
        return v if sign == 1 else v * (q * k).sum(-1, keepdim=True).tanh()

    return Construction(
        name=f"strictness alphaV=(1, {sign})",
        statement="as printed, linear on repeated tokens" if sign == 1 else "v tanh(<q, k>) on repeated tokens",
        source="Sec. B.1" if sign == 1 else "Sec. B.1, with the sign of alphaV[., 2] corrected",
        module=compile_attention(config, Sizes(tokens, features, value_width), weights),
        semantics=semantics,
        inputs=repeated(0.5 * gaussian_inputs(11, 1, features, seed)[:, 0], tokens),
    )


def nonlinearity(module: nn.Module, x: Float[Tensor, "examples features"], tokens: int) -> float:
    """max |f(2x) - 2 f(x)|, |f(x + y) - f(x) - f(y)| over max |f|, f the layer on repeated tokens, y = x of
    the next example: 0 for every multi-head layer that reads features only."""
    y = x.roll(1, 0)
    with torch.no_grad():
        of_x, of_y, of_sum, of_double = (module(repeated(z, tokens)) for z in (x, y, x + y, 2 * x))
    gap = max(float((of_double - 2 * of_x).abs().max()), float((of_sum - of_x - of_y).abs().max()))
    return gap / float(of_x.abs().max())
