"""The trained model of the theory tasks: one attention layer, and an optional MLP behind it."""

from __future__ import annotations

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention import AttentionConfig, Sizes, build_attention

CONTENT_START = 0.2
"""Linear scores start with feature rows of this scale, relative to position rows."""


class ModelConfig(AttentionConfig):
    """An attention layer and, if mlp_width > 0, an MLP that reads [x, attention output].

    Attributes:
        mlp_width: hidden width of the two-layer ReLU MLP; 0 for none.
        workspace: outputs of the attention layer when an MLP follows; N if not given.
    """

    mlp_width: int = pydantic.Field(default=0, ge=0, le=65536)
    workspace: int | None = pydantic.Field(default=None, ge=1)

    def attention_sizes(self, sizes: Sizes) -> Sizes:
        """What the attention layer itself reads and writes."""
        return sizes._replace(outputs=self.workspace or sizes.tokens) if self.mlp_width else sizes

    def parameters(self, sizes: Sizes) -> int:
        inner = self.attention_sizes(sizes)
        total = super().parameters(inner)
        if self.mlp_width:
            total += self.mlp_width * (sizes.features + inner.outputs + 1)
            total += sizes.outputs * (self.mlp_width + 1)
        return total


class Layer(nn.Module):
    """y = attention(x), or y = W_2 relu(W_1 [x, attention(x)] + b_1) + b_2 with an MLP."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        inner = config.attention_sizes(sizes)
        self.attention = build_attention(config, inner)
        self.linear_score = config.score == "linear"
        self.hidden: nn.Linear | None = None
        self.out: nn.Linear | None = None
        if config.mlp_width:
            self.hidden = nn.Linear(sizes.features + inner.outputs, config.mlp_width)
            self.out = nn.Linear(config.mlp_width, sizes.outputs)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew: He initialisation for the MLP, zero biases.

        Linear scores are the pattern itself, and with content of variance 1 a pattern that reads it
        makes the output cubic in X. Queries and keys therefore start with small feature rows.
        """
        self.attention.reset(generator)
        if self.linear_score:
            for projection in (self.attention.query, self.attention.key):
                if projection.features is not None:
                    projection.features.data.mul_(CONTENT_START * projection.position_scale)
        for linear in (self.hidden, self.out):
            if linear is not None:
                scale = (2.0 if linear is self.hidden else 1.0) / linear.in_features
                linear.weight.data.normal_(0.0, scale**0.5, generator=generator)
                linear.bias.data.zero_()

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        y: Tensor = self.attention(x, valid)
        if self.hidden is None or self.out is None:
            return y
        hidden: Tensor = self.hidden(torch.cat([x, y], -1)).relu()
        result: Tensor = self.out(hidden)
        return result
