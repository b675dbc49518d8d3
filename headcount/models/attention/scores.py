"""From queries and keys to attention weights: masks, rotary positions, and the three scores."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Score = Literal["linear", "softmax", "hard"]


def attention_weights(
    queries: Float[Tensor, "*batch query width"],
    keys: Float[Tensor, "*batch key width"],
    score: Score,
    inverse_temperature: float,
    mask: Bool[Tensor, "query key"] | None = None,
) -> Float[Tensor, "*batch query key"]:
    """Weights A[i, j] that token i gives to token j.

    linear:   A = Q K^T (times the inverse temperature), no normalisation (paper Sec. B.2);
    softmax:  A = softmax_j(beta Q K^T);
    hard:     the limit beta -> infinity: equal weight on every maximal key, ties share equally
              (paper Sec. B.3). Scores within 64 rounding units of the maximum count as tied.

    Args:
        mask: True where attention is allowed. A row with no allowed key gives zeros.
    """
    scores = queries @ keys.transpose(-1, -2)
    if score == "linear":
        weights = scores * inverse_temperature
    elif score == "softmax":
        scores = scores * inverse_temperature
        if mask is not None:
            # A finite fill: a row of -inf alone would give NaN, in the gradient even when masked later.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
    else:
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        top = scores.amax(-1, keepdim=True)
        slack = 64 * torch.finfo(scores.dtype).eps * top.abs().clamp_min(1.0)
        weights = (scores >= top - slack).to(scores.dtype)
        weights = weights / weights.sum(-1, keepdim=True)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def causal_mask(length: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """Token i may look at tokens j <= i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def rotary(
    x: Float[Tensor, "*batch token width"], positions: Int[Tensor, " token"], base: float = 10_000.0
) -> Float[Tensor, "*batch token width"]:
    """Rotary position embedding (arXiv 2104.09864): channels (c, c + width/2) turn by
    position * base^(-2c/width). `width` must be even; position 0 is left as it is."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = positions.to(torch.float64)[:, None] * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
