"""Multi-head attention (arXiv 1706.03762) with free score, inputs, widths and output."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.heads import Join, Projection, apply_patterns
from headcount.models.attention.scores import attention_weights, causal_mask, rotary


class MultiHeadAttention(nn.Module):
    """Head h computes A_h V_h with A_h = score(Q_h K_h^T), Q_h = X_hat W_Q^h, K_h = X_hat W_K^h,
    V_h = X_hat W_V^h; the heads are concatenated or mixed by W_O (`Join`).

    Parameters: H (2 n r + w s) + [mixed] H w outputs, with n, w the query and value widths and
    r, s in {d, N, N + d} the rows that queries/keys and values read.
    """

    def __init__(self, config: AttentionConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        shape = (config.heads, sizes.tokens, sizes.features)
        scale = config.position_scale(sizes)
        self.query = Projection(*shape, n, config.content, scale)
        self.key = Projection(*shape, n, config.content, scale)
        self.value = Projection(*shape, w, config.value_content, 1.0)
        self.join = Join(config.heads, w, sizes.outputs, config.output)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew."""
        for part in (self.query, self.key, self.value, self.join):
            part.reset(generator)

    def queries_keys(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> tuple[Float[Tensor, "*batch heads query width"], Float[Tensor, "*batch heads key width"]]:
        """Projected and, with rope, rotated; no batch axis when only positions are read."""
        queries, keys = self.query(x), self.key(x)
        if self.config.rope == "token":
            positions = torch.arange(queries.shape[-2], device=x.device)
            queries, keys = rotary(queries, positions), rotary(keys, positions)
        return queries, keys

    def patterns(self, x: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "*batch heads query key"]:
        """Attention weights of every head; no batch axis when only positions are read."""
        queries, keys = self.queries_keys(x)
        mask = causal_mask(queries.shape[-2], x.device) if self.config.mask == "causal" else None
        return attention_weights(queries, keys, self.config.score, self.inverse_temperature, mask)

    def forward(self, x: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch tokens outputs"]:
        if self.config.content == "positions":
            return apply_patterns(self.patterns(x), self.value, self.join, x)
        if self.config.score == "linear" and self.config.mask == "none":
            # (Q K^T) V = Q (K^T V): N x N is never built.
            queries, keys = self.queries_keys(x)
            heads = queries @ (keys.transpose(-1, -2) @ self.value(x)) * self.inverse_temperature
        else:
            heads = self.patterns(x) @ self.value(x)
        return self.join(heads)
