"""Differential attention (arXiv 2410.05258): the difference of two softmax maps."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import HeadNorm, Join
from headcount.models.attention.masks import Visibility
from headcount.models.attention.mechanism import Attention, MechanismConfig, head_width, projection, turned
from headcount.models.attention.scores import attend, attention_weights


def initial_share(layer: int) -> float:
    """lambda_init = 0.8 - 0.6 exp(-0.3 (l - 1)) of layer l = 1, 2, .."""
    return 0.8 - 0.6 * math.exp(-0.3 * (layer - 1))


class DifferentialConfig(MechanismConfig):
    """4 D^2 + 6 n parameters, 8 N D^2 + 6 N^2 D operations (two fused maps; 4 N^2 D if they are held).

    Attributes:
        heads: H, of differences; there are 2 H query and key heads of width n = D / (2 H) and H value heads
            of width 2 n.
        norm: whether every head's output passes an RMSNorm and the factor 1 - lambda_init.
        layer: l = 1, 2, .., which sets lambda_init; a network fills it in.
    """

    label: ClassVar[str] = "Differential attention"
    source: ClassVar[str] = "arXiv 2410.05258; microsoft/unilm Diff-Transformer"
    memory: ClassVar[str] = "N D (fused); 2 H N^2 if the weights are held"
    folds: ClassVar[str] = "no; without its norm into Talking-Heads"

    attention: Literal["differential"] = "differential"
    norm: bool = True
    layer: int | None = pydantic.Field(default=None, ge=1)

    def at_layer(self, layer: int) -> Self:
        return self if self.layer is not None else self.changed(layer=layer)

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        _, values = super().widths(sizes)
        return self.query_width or head_width(sizes.outputs, 2 * self.heads, self.rope != "none"), values

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        own = 4 * n + (w if self.norm else 0)
        return self._projections(sizes, 4 * self.heads * n, self.heads * w) + self._output(sizes, self.heads * w) + own

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * (4 * n + w), self.heads * w)
        return linear + 4 * pairs * self.heads * (n + w)


def differential_attention_reference(
    queries: Float[Tensor, "batch 2*heads query width"],
    keys: Float[Tensor, "batch 2*heads key width"],
    values: Float[Tensor, "batch heads key value_width"],
    share: Float[Tensor, ""],
    inverse_temperature: float,
    mask: Bool[Tensor, "#batch 1 query key"] | None = None,
) -> Float[Tensor, "batch heads query value_width"]:
    """(softmax(beta Q_2m K_2m^T) - lambda softmax(beta Q_2m+1 K_2m+1^T)) V_m for every difference m."""
    weights = attention_weights(queries, keys, "softmax", inverse_temperature, mask)
    return (weights[:, ::2] - share * weights[:, 1::2]) @ values


def differential_attention(
    queries: Float[Tensor, "batch 2*heads token width"],
    keys: Float[Tensor, "batch 2*heads token width"],
    values: Float[Tensor, "batch heads token value_width"],
    share: Float[Tensor, ""],
    inverse_temperature: float,
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """`differential_attention_reference` as the difference of two fused attentions, without N x N maps."""
    pairs = attend(queries, keys, values.repeat_interleave(2, 1), inverse_temperature, visibility, valid)
    return pairs[:, ::2] - share * pairs[:, 1::2]


class DifferentialAttention(Attention):
    """`differential_attention`, then (1 - lambda_init) RMSNorm over every head, then W_O, with

    lambda = exp(a_1 . b_1) - exp(a_2 . b_2) + lambda_init, vectors shared by all heads, N(0, 0.1^2) at first.
    """

    def __init__(self, config: DifferentialConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, 2 * config.heads, n)
        self.key = projection(config, sizes, 2 * config.heads, n)
        self.value = projection(config, sizes, config.heads, w)
        self.share_query = nn.Parameter(torch.empty(2, n))
        self.share_key = nn.Parameter(torch.empty(2, n))
        self.norm = HeadNorm(w) if config.norm else None
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)
        self.initial_share = initial_share(config.layer or 1)

    def reset(self, generator: torch.Generator) -> None:
        """Projections at random; lambda near lambda_init."""
        super().reset(generator)
        for vectors in (self.share_query, self.share_key):
            vectors.data.normal_(0.0, 0.1, generator=generator)
        if self.norm is not None:
            self.norm.reset()

    def share(self) -> Float[Tensor, ""]:
        """lambda."""
        first, second = (self.share_query * self.share_key).sum(-1).exp()
        return first - second + self.initial_share

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, keys = turned(self.config, self.query(x), self.key(x))
        heads = differential_attention(
            queries, keys, self.value(x), self.share(), self.inverse_temperature, self.config.visibility, valid
        )
        if self.norm is not None:
            heads = self.norm(heads) * (1 - self.initial_share)
        return self.join(heads)
