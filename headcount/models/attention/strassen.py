"""Strassen attention (arXiv 2501.19215): attention to pairs of tokens with pairwise logits, by matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import Join
from headcount.models.attention.masks import over_visible
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection, turned
from headcount.models.attention.scores import masked_softmax, softmax_attention

LONGEST_COMPOSITE = 64
"""Tokens up to which composite keys are the faster form (and as small); measured on one CPU core."""


class StrassenConfig(MechanismConfig):
    """6 D^2 parameters (5 D^2 without W_O), 12 N D^2 + 6 N^2 D + 2 N^3 (D + H) operations by matrix products,
    about 12 N D^2 + 4 N^3 D by composite keys.

    Attributes:
        method: products (`strassen_attention`) or composite (`composite_strassen_attention`), the same function;
            composite up to 64 tokens if not given.
        arithmetic: of exponentials and sums in products: float64, or that of the input.
    """

    label: ClassVar[str] = "Strassen attention"
    source: ClassVar[str] = "arXiv 2501.19215"
    memory: ClassVar[str] = "N^2 D; H N^3 if the weights are held"

    attention: Literal["strassen"] = "strassen"
    method: Literal["products", "composite"] | None = None
    arithmetic: Literal["float64", "input"] = "float64"

    def composite(self, sizes: Sizes) -> bool:
        """Whether composite keys are used."""
        return sizes.tokens <= LONGEST_COMPOSITE if self.method is None else self.method == "composite"

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        return self._projections(sizes, self.heads * (3 * n + 2 * w)) + self._output(sizes, self.heads * w)

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        seen = self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * (3 * n + 2 * w), self.heads * w)
        if self.composite(sizes):
            return linear + 2 * sizes.tokens * seen * self.heads * (n + 2 * seen * max(n + 1, w))
        return linear + 2 * sizes.tokens * seen * self.heads * (3 * n + seen * (w + 1))


def strassen_attention_reference(
    queries: Float[Tensor, "batch heads query width"],
    first_keys: Float[Tensor, "batch heads key width"],
    second_keys: Float[Tensor, "batch heads key width"],
    first_values: Float[Tensor, "batch heads key value_width"],
    second_values: Float[Tensor, "batch heads key value_width"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch 1 query key"] | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """a_i = sum_{j,k} A[i,j,k] v_j o v'_k with A = softmax over pairs (j,k) of
    beta (f_i . g_j + g_j . h_k + h_k . f_i), all N^3 held; f queries, g and h first and second keys."""
    fg = torch.einsum("bhic,bhjc->bhij", queries, first_keys)
    gh = torch.einsum("bhjc,bhkc->bhjk", first_keys, second_keys)
    fh = torch.einsum("bhic,bhkc->bhik", queries, second_keys)
    logits = (fg[..., :, :, None] + gh[..., None, :, :] + fh[..., :, None, :]) * inverse_temperature
    weights = masked_softmax(logits.flatten(-2), _pairs(mask)).unflatten(-1, logits.shape[-2:])
    return torch.einsum("bhijk,bhjw,bhkw->bhiw", weights, first_values, second_values)


def strassen_attention(
    queries: Float[Tensor, "batch heads query width"],
    first_keys: Float[Tensor, "batch heads key width"],
    second_keys: Float[Tensor, "batch heads key width"],
    first_values: Float[Tensor, "batch heads key value_width"],
    second_values: Float[Tensor, "batch heads key value_width"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch 1 query key"] | None = None,
    arithmetic: torch.dtype | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """`strassen_attention_reference` with N^2 d memory. With

        X_ij = exp(beta f_i.g_j),  Y_jk = exp(beta g_j.h_k),  Z_ik = exp(beta f_i.h_k),

    numerator and denominator are sum_k Z_ik v'_kc sum_j X_ij v_jc Y_jk, for the denominator with v = v' = 1,
    which is carried as one more channel. X and Z vanish where i may not see; Y needs no mask.

    The softmax is unchanged if the logits of Y lose r_j, its maximum over k, and those of X gain it, and X and
    Z then lose their maxima over what i sees. Then some j has X_ij = 1 and some k has Y_jk = 1, so without a mask
    a row underflows only if beta f_i.h_k spans more than about 670 over k in float64, and 71 in float32. (One
    maximum of all Y, the obvious choice, underflows several times sooner.) Such a row gives NaN, never a wrong
    number; a row that may see nothing gives zeros.

    Args:
        arithmetic: of exponentials and sums; that of the queries if not given.
    """
    dtype = queries.dtype
    f, g, h, v, u = (x.to(arithmetic or dtype) for x in (queries, first_keys, second_keys, first_values, second_values))
    x, y, z = (a @ b.transpose(-1, -2) * inverse_temperature for a, b in ((f, g), (g, h), (f, h)))
    if mask is not None:
        # Keys that nobody sees must not decide how Y is scaled.
        y = y.masked_fill(~mask.any(-2)[..., None, :], torch.finfo(y.dtype).min)
    lifted = y.detach().amax(-1)
    x, y = x + lifted[..., None, :], y - lifted[..., None]
    x, z = _row_exponential(x, mask), _row_exponential(z, mask)
    first, second = (pad(values, (0, 1), value=1.0) for values in (v, u))
    # (query, channel, second token) = sum over the first token.
    sums = ((x[..., :, None, :] * first.transpose(-1, -2)[..., None, :, :]).flatten(-3, -2) @ y.exp()).unflatten(
        -2, (x.shape[-2], first.shape[-1])
    )
    totals = (sums * z[..., :, None, :] * second.transpose(-1, -2)[..., None, :, :]).sum(-1)
    numerator, denominator = totals[..., :-1], totals[..., -1:]
    smallest = torch.finfo(denominator.dtype).tiny / torch.finfo(denominator.dtype).eps
    denominator = denominator.masked_fill(denominator < smallest, float("nan"))
    if mask is not None:
        nothing = ~mask.any(-1, keepdim=True)
        denominator = denominator.masked_fill(nothing, 1.0)
    return (numerator / denominator).to(dtype)


def composite_strassen_attention(
    queries: Float[Tensor, "batch heads query width"],
    first_keys: Float[Tensor, "batch heads key width"],
    second_keys: Float[Tensor, "batch heads key width"],
    first_values: Float[Tensor, "batch heads key value_width"],
    second_values: Float[Tensor, "batch heads key value_width"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch 1 query key"] | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """`strassen_attention_reference` as ordinary attention to N^2 composite keys:

        f_i.g_j + g_j.h_k + h_k.f_i = [f_i, 1] . [g_j + h_k, g_j.h_k],

    so the fused kernel does it: N^2 d memory, an ordinary softmax that never underflows, no float64; twice the
    operations of the matrix products.
    """
    width, values_width = queries.shape[-1] + 1, first_values.shape[-1]
    # The fused kernel wants keys and values of one width.
    extra = max(values_width - width, 0)
    sums = first_keys[..., :, None, :] + second_keys[..., None, :, :]
    products = first_keys @ second_keys.transpose(-1, -2)
    keys = pad(torch.cat([sums, products[..., None]], -1), (0, extra)).flatten(-3, -2)
    values = first_values[..., :, None, :] * second_values[..., None, :, :]
    values = pad(values, (0, width + extra - values_width)).flatten(-3, -2)
    asking = pad(pad(queries, (0, 1), value=1.0), (0, extra))
    return softmax_attention(asking, keys, values, inverse_temperature, _pairs(mask))[..., :values_width]


def _pairs(mask: Bool[Tensor, "#batch 1 query key"] | None) -> Bool[Tensor, "#batch 1 query pair"] | None:
    """Pairs of which both tokens may be seen."""
    return None if mask is None else (mask[..., :, None] & mask[..., None, :]).flatten(-2)


def _row_exponential(logits: Tensor, mask: Tensor | None) -> Tensor:
    """exp, scaled to a largest entry of 1 in every row, 0 where masked."""
    if mask is None:
        return (logits - logits.detach().amax(-1, keepdim=True)).exp()
    filled = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    # A row without any allowed entry is exp(0) before it is masked, so its gradient is finite.
    return (filled - filled.detach().amax(-1, keepdim=True)).exp().masked_fill(~mask, 0.0)


class StrassenAttention(Attention):
    """`strassen_attention` of five projections, joined by W_O. Rotary positions turn f, g and h alike."""

    def __init__(self, config: StrassenConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.first_key = projection(config, sizes, config.heads, n)
        self.second_key = projection(config, sizes, config.heads, n)
        self.first_value = projection(config, sizes, config.heads, w)
        self.second_value = projection(config, sizes, config.heads, w)
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)
        self.composite = config.composite(sizes)
        self.arithmetic = torch.float64 if config.arithmetic == "float64" else None

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, first, second = turned(self.config, self.query(x), self.first_key(x), self.second_key(x))

        def core(query_side: Sequence[Tensor], key_side: Sequence[Tensor], mask: Tensor | None) -> Tensor:
            (f,), (g, h, v, u) = query_side, key_side
            if self.composite:
                return composite_strassen_attention(f, g, h, v, u, self.inverse_temperature, mask)
            return strassen_attention(f, g, h, v, u, self.inverse_temperature, mask, self.arithmetic)

        keys = [first, second, self.first_value(x), self.second_value(x)]
        return self.join(over_visible(core, [queries], keys, self.config.visibility, valid))
