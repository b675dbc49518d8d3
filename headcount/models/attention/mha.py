"""Multi-head attention (arXiv 1706.03762) with free score, inputs, widths and output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.heads import Join, Projection, apply_patterns
from headcount.models.attention.masks import over_visible
from headcount.models.attention.mechanism import Attention, GeneralConfig, head_width
from headcount.models.attention.scores import Score, attend, attention_weights, rotary


class FeatureConfig(GeneralConfig, AttentionConfig):
    """Multi-head or interleaved attention that reads features only, as in a network of any length.

    Queries are as wide as values by default: outputs / H rounded up.
    """

    content: Literal["positions", "features", "full"] = "features"
    value_content: Literal["features", "full"] = "features"

    @pydantic.model_validator(mode="after")
    def _features_only(self) -> Self:
        if self.content != "features" or self.value_content != "features":
            raise ValueError("in a network, content and value_content must be 'features'")
        return self

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        _, values = super().widths(sizes)
        return self.query_width or head_width(sizes.outputs, self.heads, self.rope != "none"), values

    def parameters(self, sizes: Sizes) -> int:
        queries, values = self.widths(sizes)
        biases = self.heads * (2 * queries + values) + (sizes.outputs if self.output == "mixed" else 0)
        return super(GeneralConfig, self).parameters(sizes) + self.bias * biases

    @property
    def factors(self) -> bool:
        """Whether scores are linear in queries and keys, and seen by all: (Q K^T) V = Q (K^T V)."""
        seen = self.visibility.mask != "none" or self.window is not None
        return self.score == "linear" and not seen and (self.attention == "mha" or self.rope == "none")

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        heads, pseudo, tokens = self.heads, self.pseudo, sizes.tokens
        joined = heads * w
        per_token = sizes.features * heads * (2 * n + w)
        per_token += joined * sizes.outputs if self.output == "mixed" or joined != sizes.outputs else 0
        if self.factors and self.attention == "mha":
            return 2 * tokens * (per_token + 2 * heads * n * w)
        if self.factors:
            return 2 * tokens * (per_token + 2 * heads**2 * n * (heads + w)) + 4 * heads**3 * pseudo
        if self.attention == "iha":
            per_token += heads**2 * pseudo * (2 * n + w)
            per_token += heads * pseudo * w * (heads if self.collapse == "full" else 1)
        return 2 * tokens * (per_token + pseudo * self.visibility.keys(tokens) * heads * (n + w))


class MultiHeadConfig(FeatureConfig):
    """Multi-head attention in a network: 4 D^2 parameters, 8 N D^2 + 4 N^2 D operations."""

    label: ClassVar[str] = "Multi-head attention"
    source: ClassVar[str] = "arXiv 1706.03762"
    memory: ClassVar[str] = "N D (fused); H N^2 if the weights are held"
    folds: ClassVar[str] = "is MHA"

    attention: Literal["mha"] = "mha"
    score: Score = "softmax"
    collapse: Literal["full"] = "full"
    start: Literal["random"] = "random"


class MultiHeadAttention(Attention):
    """Head h computes A_h V_h with A_h = score(Q_h K_h^T), Q_h = X_hat W_Q^h, K_h = X_hat W_K^h,
    V_h = X_hat W_V^h; the heads are concatenated or mixed by W_O (`Join`).

    Parameters: H (2 n r + w s) + [mixed] H w outputs, with n, w the query and value widths and
    r, s in {d, N, N + d} the rows that queries/keys and values read.
    """

    def __init__(self, config: AttentionConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.options = config.options()
        n, w = config.widths(sizes)
        shape = (config.heads, sizes.tokens, sizes.features)
        scale, bias = config.position_scale(sizes), self.options.bias
        self.query = Projection(*shape, n, config.content, scale, bias)
        self.key = Projection(*shape, n, config.content, scale, bias)
        self.value = Projection(*shape, w, config.value_content, 1.0, bias)
        self.join = Join(config.heads, w, sizes.outputs, config.output, bias)
        self.inverse_temperature = config.beta(n)

    def queries_keys(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> tuple[Float[Tensor, "*batch heads query width"], Float[Tensor, "*batch heads key width"]]:
        """Projected and, with rope, rotated; no batch axis when only positions are read."""
        queries, keys = self.query(x), self.key(x)
        if self.config.rope == "token":
            positions = torch.arange(queries.shape[-2], device=x.device)
            queries = rotary(queries, positions, self.options.rope_base)
            keys = rotary(keys, positions, self.options.rope_base)
        return queries, keys

    def patterns(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "*batch heads query key"]:
        """Attention weights of every head; no batch axis when only positions are read and nothing is padding."""
        queries, keys = self.queries_keys(x)
        mask = self.config.visibility.dense(queries.shape[-2], valid, x.device)
        if mask is not None and valid is None:
            mask = mask[0, 0]
        return attention_weights(queries, keys, self.config.score, self.inverse_temperature, mask)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        if self.config.content == "positions" and valid is None:
            if self.config.score == "linear" and self.config.mask == "none":
                queries, keys = self.queries_keys(x)
                factors = queries if self.inverse_temperature == 1.0 else queries * self.inverse_temperature, keys
                return apply_patterns("hin,hjn", factors, self.value, self.join, x)
            return apply_patterns("hij", [self.patterns(x)], self.value, self.join, x)
        values = self.value(x)
        queries, keys = (part.expand(*values.shape[:-1], -1) for part in self.queries_keys(x))
        visibility, beta, score = self.config.visibility, self.inverse_temperature, self.config.score
        if score == "softmax":
            return self.join(attend(queries, keys, values, beta, visibility, valid))
        if score == "linear" and visibility.mask == "none" and visibility.window is None:
            # (Q K^T) V = Q (K^T V): N x N is never built.
            values = values if valid is None else values.masked_fill(~valid[:, None, :, None], 0.0)
            return self.join(queries @ (keys.transpose(-1, -2) @ values) * beta)

        def core(query_side: Sequence[Tensor], key_side: Sequence[Tensor], mask: Tensor | None) -> Tensor:
            return attention_weights(query_side[0], key_side[0], score, beta, mask) @ key_side[1]

        return self.join(over_visible(core, [queries], [keys, values], visibility, valid))
