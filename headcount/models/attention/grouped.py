"""Queries that share keys and values: grouped-query (arXiv 2305.13245) and multi-query attention (1911.02150)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from jaxtyping import Bool, Float
from torch import Tensor

from headcount.config import BadInput
from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import Join
from headcount.models.attention.masks import Visibility
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection, turned
from headcount.models.attention.mha import MultiHeadAttention
from headcount.models.attention.scores import attend


class SharedKeysConfig(MechanismConfig):
    """Fewer key and value heads than query heads."""

    @property
    def key_heads(self) -> int:
        """G."""
        raise NotImplementedError

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        shared = self.key_heads * (n + w)
        return self._projections(sizes, self.heads * n, shared) + self._output(sizes, self.heads * w)

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        pairs = sizes.tokens * self.visibility.keys(sizes.tokens)
        linear = self._linear_flops(sizes, self.heads * n + self.key_heads * (n + w), self.heads * w)
        return linear + 2 * pairs * self.heads * (n + w)


class MultiQueryConfig(SharedKeysConfig):
    """One key and one value head: 2 D^2 + 2 D d parameters, 4 N D^2 + 4 N D d + 4 N^2 D operations."""

    label: ClassVar[str] = "Multi-query attention"
    source: ClassVar[str] = "arXiv 1911.02150"
    memory: ClassVar[str] = "N D (fused); H N^2 if the weights are held; cache 2 d a token"
    folds: ClassVar[str] = "into MHA with H equal key and value heads"

    attention: Literal["mqa"] = "mqa"

    @property
    def key_heads(self) -> int:
        return 1


class GroupedQueryConfig(SharedKeysConfig):
    """G key and value heads, each read by H / G query heads: 2 D^2 + 2 D G d parameters,
    4 N D^2 + 4 N D G d + 4 N^2 D operations.

    Attributes:
        groups: G, which divides H.
    """

    label: ClassVar[str] = "Grouped-query attention"
    source: ClassVar[str] = "arXiv 2305.13245"
    memory: ClassVar[str] = "N D (fused); H N^2 if the weights are held; cache 2 G d a token"
    folds: ClassVar[str] = "into MHA with key and value heads tied in groups"

    attention: Literal["gqa"] = "gqa"
    groups: int = pydantic.Field(default=1, ge=1)

    @pydantic.model_validator(mode="after")
    def _divides(self) -> Self:
        require_divisor(self.groups, self.heads)
        return self

    @property
    def key_heads(self) -> int:
        return self.groups


def require_divisor(groups: int, heads: int) -> None:
    """Refuse a number of groups that does not divide the heads.

    Raises:
        ValueError: then.
    """
    if heads % groups:
        raise ValueError(f"groups = {groups} must divide heads = {heads}")


def grouped_query_attention(
    queries: Float[Tensor, "batch heads token width"],
    keys: Float[Tensor, "batch groups token width"],
    values: Float[Tensor, "batch groups token value_width"],
    inverse_temperature: float,
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """Query head h attends with key and value head floor(h G / H)."""
    repeats = queries.shape[1] // keys.shape[1]
    if repeats > 1:
        keys, values = (x.repeat_interleave(repeats, 1) for x in (keys, values))
    return attend(queries, keys, values, inverse_temperature, visibility, valid)


class GroupedQueryAttention(Attention):
    """Head h: softmax(beta Q_h K_g^T) V_g with g = floor(h G / H); heads joined by W_O."""

    def __init__(self, config: SharedKeysConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.key = projection(config, sizes, config.key_heads, n)
        self.value = projection(config, sizes, config.key_heads, w)
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, keys = turned(self.config, self.query(x), self.key(x))
        heads = grouped_query_attention(
            queries, keys, self.value(x), self.inverse_temperature, self.config.visibility, valid
        )
        return self.join(heads)


def pool_heads(weights: Float[Tensor, "heads features width"], groups: int) -> Float[Tensor, "groups features width"]:
    """The mean of the H / G consecutive heads of every group."""
    return weights.unflatten(0, (groups, -1)).mean(1)


def convert_to_groups(source: MultiHeadAttention, groups: int, sizes: Sizes) -> GroupedQueryAttention:
    """Grouped-query attention with the mean key and value heads of a multi-head layer (arXiv 2305.13245, Sec. 2.1).

    Exact if the heads of every group agree already; else a start for further training.

    Raises:
        BadInput: if the layer reads positions or has no softmax, or groups do not divide the heads.
    """
    old = source.config
    if old.content != "features" or old.value_content != "features" or old.score != "softmax":
        raise BadInput("only softmax attention on features can be converted to groups")
    queries, values = old.widths(sizes)
    options = source.options
    config = GroupedQueryConfig.parse({
        "heads": old.heads, "groups": groups, "query_width": queries, "value_width": values, "output": old.output,
        "mask": old.mask, "rope": old.rope, "inverse_temperature": source.inverse_temperature,
        "window": options.window, "rope_base": options.rope_base, "bias": options.bias,
    })  # fmt: skip
    result = GroupedQueryAttention(config, sizes).to(next(source.parameters()).dtype)
    state = dict(source.state_dict())
    for name, weight in state.items():
        if name.startswith(("key.", "value.")):
            state[name] = pool_heads(weight, groups)
    result.load_state_dict(state)
    return result
