"""Explicit multi-head attention (arXiv 2601.19611): keys and values are mixed across heads before attention."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import HeadNorm, Join
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection, turned
from headcount.models.attention.scores import attend


class ExplicitConfig(MechanismConfig):
    """2 D^2 + 2 D h' d + 2 h' H + d parameters, 4 N D^2 + 4 N D h' d + 4 N h' H d + 4 N^2 D operations.

    Attributes:
        base_heads: h', projected key and value heads; H if not given.
        norm: whether every head's output passes an RMSNorm.
        start_noise: standard deviation around the identity at which the mixings start.
    """

    label: ClassVar[str] = "Explicit multi-head attention"
    source: ClassVar[str] = "arXiv 2601.19611"
    memory: ClassVar[str] = "N D (fused); H N^2 if the weights are held; cache 2 h' d a token"
    folds: ClassVar[str] = "into W_K, W_V of MHA (of MHA with head RMSNorm, if norm is on)"

    attention: Literal["explicit"] = "explicit"
    base_heads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    norm: bool = True
    start_noise: float = pydantic.Field(default=0.0, ge=0)

    @property
    def key_heads(self) -> int:
        """h'."""
        return self.base_heads or self.heads

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        base = self.key_heads
        own = 2 * base * self.heads + (w if self.norm else 0)
        return self._projections(sizes, self.heads * n, base * (n + w)) + self._output(sizes, self.heads * w) + own

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * n + self.key_heads * (n + w), self.heads * w)
        return linear + 2 * (sizes.tokens * self.key_heads + pairs) * self.heads * (n + w)


def combine_heads(
    mixing: Float[Tensor, "base heads"], tokens: Float[Tensor, "batch base token width"]
) -> Float[Tensor, "batch heads token width"]:
    """Head-level linear combination: out_h = sum_g mixing[g, h] tokens_g."""
    return torch.einsum("gh,bgnw->bhnw", mixing, tokens)


class ExplicitMultiHeadAttention(Attention):
    """K_h = sum_g W_K[g,h] K'_g, V_h = sum_g W_V[g,h] V'_g; then RMSNorm(softmax(beta Q_h K_h^T) V_h), then W_O."""

    def __init__(self, config: ExplicitConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.key = projection(config, sizes, config.key_heads, n)
        self.value = projection(config, sizes, config.key_heads, w)
        self.mix_key = nn.Parameter(torch.empty(config.key_heads, config.heads))
        self.mix_value = nn.Parameter(torch.empty(config.key_heads, config.heads))
        self.norm = HeadNorm(w) if config.norm else None
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Mixings start at the identity (head h reads base head floor(h h' / H)), plus `start_noise`."""
        super().reset(generator)
        base, heads = self.mix_key.shape
        index = torch.arange(heads)
        for mixing in (self.mix_key, self.mix_value):
            mixing.data.normal_(0.0, 1.0, generator=generator).mul_(self.config.start_noise)
            mixing.data[index * base // heads, index] += 1.0
        if self.norm is not None:
            self.norm.reset()

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        keys = combine_heads(self.mix_key, self.key(x))
        values = combine_heads(self.mix_value, self.value(x))
        queries, keys = turned(self.config, self.query(x), keys)
        heads = attend(queries, keys, values, self.inverse_temperature, self.config.visibility, valid)
        return self.join(heads if self.norm is None else self.norm(heads))
