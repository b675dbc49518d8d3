"""Talking-heads attention (arXiv 2003.02436): logits and weights are mixed across heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes, value_width
from headcount.models.attention.heads import Join
from headcount.models.attention.masks import over_visible
from headcount.models.attention.mechanism import Attention, MechanismConfig, head_width, projection, turned
from headcount.models.attention.scores import masked_softmax


class TalkingHeadsConfig(MechanismConfig):
    """4 D^2 + 2 H^2 parameters, 8 N D^2 + 4 N^2 D + 4 N^2 H^2 operations.

    Attributes:
        heads: h_k, of queries and keys.
        softmax_heads, value_heads: h and h_v; h_k if not given.
        start_noise: standard deviation around the identity at which the mixings start.
    """

    label: ClassVar[str] = "Talking-heads attention"
    source: ClassVar[str] = "arXiv 2003.02436; mesh-tensorflow TalkingHeadsSelfAttention"
    memory: ClassVar[str] = "2 H N^2"

    attention: Literal["talking-heads"] = "talking-heads"
    softmax_heads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    value_heads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    start_noise: float = pydantic.Field(default=0.0, ge=0)

    @property
    def counts(self) -> tuple[int, int, int]:
        """h_k, h, h_v."""
        return self.heads, self.softmax_heads or self.heads, self.value_heads or self.heads

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        values = value_width(self.counts[2], self.value_width, self.output, sizes)
        return self.query_width or head_width(sizes.outputs, self.heads, self.rope != "none"), values

    def parameters(self, sizes: Sizes) -> int:
        (n, w), (asking, mixed, telling) = self.widths(sizes), self.counts
        mixings = asking * mixed + mixed * telling
        return self._projections(sizes, 2 * asking * n, telling * w) + self._output(sizes, telling * w) + mixings

    def flops(self, sizes: Sizes) -> int:
        (n, w), (asking, mixed, telling) = self.widths(sizes), self.counts
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, 2 * asking * n + telling * w, telling * w)
        return linear + 2 * pairs * (asking * n + telling * w + mixed * (asking + telling))


def talking_heads_attention(
    queries: Float[Tensor, "batch query_heads query width"],
    keys: Float[Tensor, "batch query_heads key width"],
    values: Float[Tensor, "batch value_heads key value_width"],
    mix_logits: Float[Tensor, "query_heads softmax_heads"],
    mix_weights: Float[Tensor, "softmax_heads value_heads"],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch 1 query key"] | None = None,
) -> Float[Tensor, "batch value_heads query value_width"]:
    """J = beta Q K^T;  L_l = sum_g P_l[g,l] J_g;  A = softmax(L);  U_w = sum_l P_w[l,w] A_l;  out_w = U_w V_w.

    The mask acts after the mixing of logits: mixed infinities would be NaN.
    """
    logits = torch.einsum("gl,bgij->blij", mix_logits, queries @ keys.transpose(-1, -2) * inverse_temperature)
    return torch.einsum("lw,blij->bwij", mix_weights, masked_softmax(logits, mask)) @ values


class TalkingHeadsAttention(Attention):
    """`talking_heads_attention` of projected tokens, joined by W_O; mixings start at the identity."""

    def __init__(self, config: TalkingHeadsConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        (n, w), (asking, mixed, telling) = config.widths(sizes), config.counts
        self.query = projection(config, sizes, asking, n)
        self.key = projection(config, sizes, asking, n)
        self.value = projection(config, sizes, telling, w)
        self.mix_logits = nn.Parameter(torch.empty(asking, mixed))
        self.mix_weights = nn.Parameter(torch.empty(mixed, telling))
        self.join = Join(telling, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Mixings start at the identity, repeated where head counts differ, plus `start_noise`."""
        super().reset(generator)
        for mixing in (self.mix_logits, self.mix_weights):
            mixing.data.normal_(0.0, 1.0, generator=generator).mul_(self.config.start_noise)
            rows, columns = mixing.shape
            size = max(rows, columns)
            index = torch.arange(size)
            mixing.data[index % rows, index % columns] += 1.0

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, keys = turned(self.config, self.query(x), self.key(x))

        def core(query_side: Sequence[Tensor], key_side: Sequence[Tensor], mask: Tensor | None) -> Tensor:
            (q,), (k, v), mixings = query_side, key_side, (self.mix_logits, self.mix_weights)
            return talking_heads_attention(q, k, v, *mixings, self.inverse_temperature, mask)

        return self.join(over_visible(core, [queries], [keys, self.value(x)], self.config.visibility, valid))
