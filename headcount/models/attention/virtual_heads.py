"""Virtual head attention (arXiv 2610.17959, after the PaddleFleet code): few query heads become many."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes, value_width
from headcount.models.attention.grouped import grouped_query_attention
from headcount.models.attention.heads import Join
from headcount.models.attention.mechanism import Attention, MechanismConfig, head_width, projection, turned


class VirtualHeadConfig(MechanismConfig):
    """D h d + 2 D G d + H d D + G d^2 + 2 H r parameters with H = h G virtual heads, and
    2 N (D (h + 2 G + H) d + H d^2 + 2 H d r) + 4 N^2 H d operations.

    Attributes:
        heads: h, projected query heads.
        groups: G, key and value heads.
        rank: r of the mixing of outputs across virtual heads.
        start_noise: standard deviation of the two factors of that mixing. The code has 0 for the second, which
            makes the mixing the identity at first and leaves the first without a gradient until a step is made.
    """

    label: ClassVar[str] = "Virtual head attention"
    source: ClassVar[str] = "arXiv 2610.17959 (after public code): PaddleFleet, D-URing/PaddleFleet"
    memory: ClassVar[str] = "N h G d (fused); h G N^2 if the weights are held; cache 2 G d a token"
    folds: ClassVar[str] = "into W_Q and W_O of GQA with h G query heads"

    attention: Literal["virtual-heads"] = "virtual-heads"
    groups: int = pydantic.Field(default=2, ge=1, le=1024)
    rank: int = pydantic.Field(default=4, ge=1)
    start_noise: float = pydantic.Field(default=0.01, ge=0)

    @property
    def virtual_heads(self) -> int:
        """H = h G."""
        return self.heads * self.groups

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        least = head_width(sizes.outputs, self.heads)
        values = value_width(self.virtual_heads, self.value_width or least, self.output, sizes)
        return self.query_width or head_width(sizes.outputs, self.heads, self.rope != "none"), values

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        total = self._projections(sizes, self.heads * n, self.groups * (n + w))
        total += self._output(sizes, self.virtual_heads * w)
        return total + self.groups * n * n + 2 * self.virtual_heads * self.rank

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        virtual = self.virtual_heads
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * n + self.groups * (n + w), virtual * w)
        return linear + 2 * sizes.tokens * virtual * (n * n + 2 * w * self.rank) + 2 * pairs * virtual * (n + w)


def expand_queries(
    queries: Float[Tensor, "batch heads token width"], maps: Float[Tensor, "groups width target"]
) -> Float[Tensor, "batch groups*heads token target"]:
    """Every query head once for every group, q_h W_g, groups first."""
    return torch.einsum("bhnw,gwv->bghnv", queries, maps).flatten(1, 2)


def mix_outputs(
    heads: Float[Tensor, "batch heads token width"],
    down: Float[Tensor, "heads rank"],
    up: Float[Tensor, "heads rank"],
) -> Float[Tensor, "batch heads token width"]:
    """o + V (U^T o) along the axis of heads, U = down, V = up."""
    return heads + torch.einsum("hr,brnw->bhnw", up, torch.einsum("gr,bgnw->brnw", down, heads))


class VirtualHeadAttention(Attention):
    """Virtual head (g, h) attends with query q_h W_g and key and value head g; outputs pass `mix_outputs`, W_O."""

    def __init__(self, config: VirtualHeadConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.key = projection(config, sizes, config.groups, n)
        self.value = projection(config, sizes, config.groups, w)
        self.premix = nn.Parameter(torch.empty(config.groups, n, n))
        self.down = nn.Parameter(torch.empty(config.virtual_heads, config.rank))
        self.up = nn.Parameter(torch.empty(config.virtual_heads, config.rank))
        self.join = Join(config.virtual_heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """W_g = I + N(0, 0.01 / width), so that groups differ from the start; outputs hardly mixed."""
        super().reset(generator)
        width = self.premix.shape[-1]
        self.premix.data.normal_(0.0, 0.1 * width**-0.5, generator=generator).add_(torch.eye(width))
        self.down.data.normal_(0.0, self.config.start_noise or 0.01, generator=generator)
        self.up.data.normal_(0.0, 1.0, generator=generator).mul_(self.config.start_noise)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, keys = turned(self.config, expand_queries(self.query(x), self.premix), self.key(x))
        heads = grouped_query_attention(
            queries, keys, self.value(x), self.inverse_temperature, self.config.visibility, valid
        )
        return self.join(mix_outputs(heads, self.down, self.up))
