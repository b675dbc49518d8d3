"""From queries and keys to attention weights and outputs: rotary positions, the three scores, the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcount.models.attention.masks import Visibility, over_visible

Score = Literal["linear", "softmax", "hard"]


SHORT = 16
"""Keys below which, on a CPU, torch's softmax takes several times as long as its parts: it works row by row."""


def masked_softmax(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*#batch query key"] | None
) -> Float[Tensor, "*batch query key"]:
    """softmax over allowed keys, in float32 at least; a row with no allowed key gives zeros."""
    wide = _hidden(scores, mask)
    if wide.shape[-1] < SHORT and wide.device.type == "cpu":
        weights: Tensor = _ByParts.apply(wide, None if mask is None else _blind(mask))
        return weights.to(scores.dtype)
    return _without_blind(wide.softmax(-1).to(scores.dtype), mask)


class _ByParts(torch.autograd.Function):
    """softmax over the last axis, with zeros in blind rows, as a handful of operations that each go through all rows at
    once."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, blind: Tensor | None) -> Tensor:
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        share = powers.sum(-1, keepdim=True).reciprocal()
        return powers * (share if blind is None else share.masked_fill(blind, 0.0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return (gradient - (gradient * weights).sum(-1, keepdim=True)) * weights, None


def _hidden(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The scores, in float32 at least, pushed out of reach where the mask forbids. By a finite addition: it costs the
    backward pass nothing, and a row of -inf alone would give NaN, in the gradient even when masked later."""
    wide = scores.float() if scores.dtype.itemsize < 4 else scores
    if mask is None:
        return wide
    low, zero = (
        torch.full((), value, dtype=wide.dtype, device=wide.device) for value in (torch.finfo(wide.dtype).min / 2, 0.0)
    )
    return wide + torch.where(mask, zero, low)


def _blind(mask: Tensor) -> Tensor:
    """Queries that may look at nothing."""
    return ~mask.any(-1, keepdim=True)


def _without_blind(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros in rows of queries that may look at nothing."""
    return rows if mask is None else rows.masked_fill(_blind(mask), 0.0)


def attention_weights(
    queries: Float[Tensor, "*batch query width"],
    keys: Float[Tensor, "*batch key width"],
    score: Score,
    inverse_temperature: float,
    mask: Bool[Tensor, "*#batch query key"] | None = None,
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
    if score == "softmax":
        return masked_softmax(scores * inverse_temperature, mask)
    if score == "linear":
        weights = scores * inverse_temperature
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


def softmax_attention_reference(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch heads key width"],
    values: Float[Tensor, "batch heads key value_width"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch #heads query key"] | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """softmax_j(beta Q K^T) V with every weight in memory."""
    return attention_weights(queries, keys, "softmax", inverse_temperature, mask) @ values


HELD = 32
"""Keys up to which, on a CPU, holding the N x N weights takes less time than the fused kernel."""


def softmax_attention(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch heads key width"],
    values: Float[Tensor, "batch heads key value_width"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch #heads query key"] | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """`softmax_attention_reference`, by the fused kernel, which never holds the weights, where that is faster."""
    if keys.shape[-2] <= HELD and keys.device.type == "cpu":
        # What is small is scaled.
        return masked_softmax((queries * inverse_temperature) @ keys.transpose(-1, -2), mask).to(values.dtype) @ values
    if mask is None:
        return _fused(queries, keys, values, None, inverse_temperature)
    return _without_blind(_fused(queries, keys, values, mask | _blind(mask), inverse_temperature), mask)


def attend(
    queries: Float[Tensor, "batch heads token width"],
    keys: Float[Tensor, "batch heads token width"],
    values: Float[Tensor, "batch heads token value_width"],
    inverse_temperature: float,
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """softmax(beta Q K^T) V over what every token may see; N x N is built for no score and no window."""

    def core(query_side: Sequence[Tensor], key_side: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        return softmax_attention(query_side[0], key_side[0], key_side[1], inverse_temperature, mask)

    return over_visible(core, [queries], [keys, values], visibility, valid)


def _fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    result: Tensor = _Fused.apply(queries, keys, values, mask, scale)
    return result


class _Fused(torch.autograd.Function):
    """scaled_dot_product_attention with the rule for `torch.func.vmap` that its CPU kernel lacks: stacked
    models are further examples."""

    @staticmethod
    def forward(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        return scaled_dot_product_attention(queries, keys, values, mask, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, mask = ctx.saved_tensors
        with torch.enable_grad():
            queries, keys, values = leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            output = scaled_dot_product_attention(queries, keys, values, mask, scale=ctx.scale)
        return (*torch.autograd.grad(output, leaves, gradient), None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, int]:
        members = info.batch_size

        def merged(tensor: Tensor, dim: int | None) -> Tensor:
            stacked = tensor.expand(members, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return stacked.flatten(0, 1)

        tensors = zip((queries, keys, values), in_dims, strict=False)
        queries, keys, values = (merged(tensor, dim) for tensor, dim in tensors)
        if mask is not None and not (in_dims[3] is None and mask.shape[0] == 1):
            batch = len(queries) // members
            mask = mask if in_dims[3] is None else mask.movedim(in_dims[3], 0)
            shape = (members, batch, *mask.shape[-3:])
            mask = mask.expand(shape).flatten(0, 1)
        outputs = scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
        return outputs.unflatten(0, (members, -1)), 0
