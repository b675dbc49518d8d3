"""The 2-simplicial attention of Clift, Doryn, Murfet and Wallbridge (arXiv 1909.00668): logits are volumes."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import Join
from headcount.models.attention.masks import Visibility
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection
from headcount.models.attention.scores import masked_softmax
from headcount.models.attention.simplicial import pair_mask

SMALLEST_SQUARE = 1e-6
"""Added under the square root, whose slope at 0 is infinite."""


class CliftConfig(MechanismConfig):
    """5 D^2 + H d^3 + 2 d parameters, 10 N D^2 + 6 N^2 D + 2 N^3 D + 2 N^2 d D + 2 N d^2 D operations.
    Inverse temperature 1 if not given. Pairs are held whole, so a window saves nothing. The paper's virtual entities
    are left out: both tokens range over the sequence."""

    label: ClassVar[str] = "2-simplicial attention (volume logits)"
    source: ClassVar[str] = "arXiv 1909.00668"
    memory: ClassVar[str] = "H N^3"

    attention: Literal["clift"] = "clift"

    @pydantic.model_validator(mode="after")
    def _no_rope(self) -> Self:
        if self.rope != "none":
            raise ValueError("attention 'clift' has no rotary form; rope must be 'none'")
        return self

    def beta(self, query_width: int) -> float:
        return self.inverse_temperature or 1.0

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        own = self.heads * w**3 + 2 * w
        return self._projections(sizes, self.heads * (3 * n + w)) + self._output(sizes, self.heads * w) + own

    def flops(self, sizes: Sizes) -> int:
        (n, w), tokens = self.widths(sizes), sizes.tokens
        linear = self._linear_flops(sizes, self.heads * (3 * n + w), self.heads * w)
        per_head = 3 * tokens**2 * n + tokens**3 * w + tokens**2 * w**2 + tokens * w**3
        return linear + 2 * self.heads * per_head


def volume_logits(
    queries: Float[Tensor, "batch heads query width"],
    first_keys: Float[Tensor, "batch heads first width"],
    second_keys: Float[Tensor, "batch heads second width"],
) -> Float[Tensor, "batch heads query first second"]:
    """|| (a.b) c - (a.c) b + (b.c) a || from inner products alone: its square is
    (a.b)^2 c.c + (b.c)^2 a.a + (a.c)^2 b.b - 2 (a.b)(a.c)(b.c)."""
    ab = (queries @ first_keys.transpose(-1, -2))[..., :, :, None]
    ac = (queries @ second_keys.transpose(-1, -2))[..., :, None, :]
    bc = (first_keys @ second_keys.transpose(-1, -2))[..., None, :, :]
    aa = queries.square().sum(-1)[..., :, None, None]
    bb = first_keys.square().sum(-1)[..., None, :, None]
    cc = second_keys.square().sum(-1)[..., None, None, :]
    square = ab.square() * cc + bc.square() * aa + ac.square() * bb - 2 * ab * ac * bc
    return (square.clamp_min(0.0) + SMALLEST_SQUARE).sqrt()


def volume_attention_reference(
    queries: Float[Tensor, "batch heads token width"],
    first_keys: Float[Tensor, "batch heads token width"],
    second_keys: Float[Tensor, "batch heads token width"],
    values: Float[Tensor, "batch heads token value_width"],
    product: Float[Tensor, "heads value_width value_width value_width"],
    inverse_temperature: float,
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """v_i = sum_{j,k} A[i,j,k] B(u_j, u_k), A = softmax over pairs of beta || (a.b) c - (a.c) b + (b.c) a ||
    with a = p_i, b = l_j, c = l'_k; the vectors are formed for every triple."""
    a, b, c = queries[..., :, None, None, :], first_keys[..., None, :, None, :], second_keys[..., None, None, :, :]
    dot = lambda x, y: (x * y).sum(-1, keepdim=True)  # noqa: E731
    vectors = dot(a, b) * c - dot(a, c) * b + dot(b, c) * a
    logits = (vectors.square().sum(-1) + SMALLEST_SQUARE).sqrt() * inverse_temperature
    mask = pair_mask((visibility, visibility), queries.shape[-2], valid, queries.device)
    weights = masked_softmax(logits.flatten(-2), mask).unflatten(-1, logits.shape[-2:])
    products = torch.einsum("bhja,bhkc,hacw->bhjkw", values, values, product)
    return torch.einsum("bhijk,bhjkw->bhiw", weights, products)


def volume_attention(
    queries: Float[Tensor, "batch heads token width"],
    first_keys: Float[Tensor, "batch heads token width"],
    second_keys: Float[Tensor, "batch heads token width"],
    values: Float[Tensor, "batch heads token value_width"],
    product: Float[Tensor, "heads value_width value_width value_width"],
    inverse_temperature: float,
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """`volume_attention_reference` with logits from inner products, and B applied after the sum over pairs."""
    logits = volume_logits(queries, first_keys, second_keys) * inverse_temperature
    mask = pair_mask((visibility, visibility), queries.shape[-2], valid, queries.device)
    weights = masked_softmax(logits.flatten(-2), mask).unflatten(-1, logits.shape[-2:])
    by_first = (weights.flatten(-3, -2) @ values).unflatten(-2, weights.shape[-3:-1])
    moments = values.transpose(-1, -2)[:, :, None] @ by_first
    return torch.einsum("bhiac,hacw->bhiw", moments, product)


class CliftAttention(Attention):
    """LayerNorm(`volume_attention`) of every head, joined by W_O. Without the norm training is unstable (paper)."""

    def __init__(self, config: CliftConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.first_key = projection(config, sizes, config.heads, n)
        self.second_key = projection(config, sizes, config.heads, n)
        self.value = projection(config, sizes, config.heads, w)
        self.product = nn.Parameter(torch.empty(config.heads, w, w, w))
        self.norm = nn.LayerNorm(w)
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """B has entries N(0, 1 / d^2): one for every pair of channels it sums."""
        super().reset(generator)
        self.product.data.normal_(0.0, 1 / self.product.shape[-1], generator=generator)
        self.norm.reset_parameters()

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        heads = volume_attention(
            self.query(x), self.first_key(x), self.second_key(x), self.value(x), self.product,
            self.inverse_temperature, self.config.visibility, valid,
        )  # fmt: skip
        return self.join(self.norm(heads))
