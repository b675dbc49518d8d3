"""Knocking-heads attention (arXiv 2510.23052): head features pass through maps that all heads share."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes
from headcount.models.attention.grouped import grouped_query_attention, require_divisor
from headcount.models.attention.heads import Join
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection, turned


class KnockingHeadsConfig(MechanismConfig):
    """4 D^2 + t d^2 parameters with t = 3 (linear), 1 (linear, values only) or 3 (mlp); 2 N D d operations
    for each map on top of multi-head attention.

    Attributes:
        form: linear, or a gated mlp of the values.
        on: all (linear maps of queries, keys and values) or values (only; the mlp knows no other). All if not
            given and the form is linear.
        groups: G key and value heads; H if not given.
    """

    label: ClassVar[str] = "Knocking-heads attention"
    source: ClassVar[str] = "arXiv 2510.23052"
    memory: ClassVar[str] = "N D (fused); H N^2 if the weights are held"
    folds: ClassVar[str] = "linear: into W_Q, W_K, W_V of MHA; mlp: no"

    attention: Literal["knocking-heads"] = "knocking-heads"
    form: Literal["linear", "mlp"] = "linear"
    on: Literal["all", "values"] | None = None
    groups: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.form == "mlp" and self.on == "all":
            raise ValueError("form 'mlp' acts on values only")
        require_divisor(self.key_heads, self.heads)
        return self

    @property
    def key_heads(self) -> int:
        """G."""
        return self.groups or self.heads

    @property
    def mixes_queries(self) -> bool:
        """Whether queries and keys are mapped too."""
        return self.form == "linear" and self.on != "values"

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        maps = (3 if self.form == "mlp" else 1) * w * w + (2 * n * n if self.mixes_queries else 0)
        projections = self._projections(sizes, self.heads * n, self.key_heads * (n + w))
        return projections + self._output(sizes, self.heads * w) + maps

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * n + self.key_heads * (n + w), self.heads * w)
        maps = (3 if self.form == "mlp" else 1) * self.key_heads * w * w
        maps += (self.heads + self.key_heads) * n * n if self.mixes_queries else 0
        return linear + 2 * sizes.tokens * maps + 2 * pairs * self.heads * (n + w)


def knocked_values(
    values: Float[Tensor, "batch heads token width"],
    up: Float[Tensor, "width width"],
    gate: Float[Tensor, "width width"],
    down: Float[Tensor, "width width"],
) -> Float[Tensor, "batch heads token width"]:
    """V~ = 2 ((V W_up) o sigmoid(V W_gate)) W_down."""
    return 2 * ((values @ up) * (values @ gate).sigmoid()) @ down


class KnockingHeadsAttention(Attention):
    """Linear: Q~_h = Q_h T_Q, K~_h = K_h T_K, V~_h = V_h T_V; mlp: `knocked_values`. Then ordinary attention.

    Every T, W_up and W_down starts at the identity and W_gate at zero: multi-head attention at first. The
    maps come before rotary positions, with which they do not commute.
    """

    def __init__(self, config: KnockingHeadsConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.key = projection(config, sizes, config.key_heads, n)
        self.value = projection(config, sizes, config.key_heads, w)
        self.knock_query = nn.Parameter(torch.empty(n, n)) if config.mixes_queries else None
        self.knock_key = nn.Parameter(torch.empty(n, n)) if config.mixes_queries else None
        self.knock_value = nn.Parameter(torch.empty(w, w))
        self.gate = nn.Parameter(torch.empty(w, w)) if config.form == "mlp" else None
        self.down = nn.Parameter(torch.empty(w, w)) if config.form == "mlp" else None
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Projections at random, the shared maps where they change nothing."""
        super().reset(generator)
        for parameter in (self.knock_query, self.knock_key, self.knock_value, self.down):
            if parameter is not None:
                parameter.data.copy_(torch.eye(len(parameter)))
        if self.gate is not None:
            self.gate.data.zero_()

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, keys, values = self.query(x), self.key(x), self.value(x)
        if self.knock_query is not None and self.knock_key is not None:
            queries, keys = queries @ self.knock_query, keys @ self.knock_key
        if self.gate is not None and self.down is not None:
            values = knocked_values(values, self.knock_value, self.gate, self.down)
        else:
            values = values @ self.knock_value
        queries, keys = turned(self.config, queries, keys)
        heads = grouped_query_attention(queries, keys, values, self.inverse_temperature, self.config.visibility, valid)
        return self.join(heads)
