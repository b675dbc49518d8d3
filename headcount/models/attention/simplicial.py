"""Attention to pairs of tokens by a trilinear form: 2-simplicial attention (arXiv 2507.02754) and the third-order
attention of Sanford, Hsu and Telgarsky (arXiv 2306.02896)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from headcount.config import BadInput
from headcount.models.attention.config import Sizes
from headcount.models.attention.heads import Join
from headcount.models.attention.masks import Visibility
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection
from headcount.models.attention.scores import masked_softmax, softmax_attention

Form = Literal["product", "determinant"]


class TrilinearConfig(MechanismConfig):
    """6 D^2 parameters (5 D^2 without W_O), 12 N D^2 + 4 N^3 D operations; 4 N W_1 W_2 D with windows
    (6 for the determinant).

    Attributes:
        second_window: W_2, for the second of the two tokens; `window` is that for the first.
    """

    second_window: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _no_rope(self) -> Self:
        if self.rope != "none":
            raise ValueError("a trilinear form is not invariant under the rotations of rope; rope must be 'none'")
        return self

    @property
    def trilinear_form(self) -> Form:
        """product or determinant."""
        return "product"

    @property
    def shift(self) -> bool:
        """Whether constants are added to second keys and values."""
        return False

    @property
    def visibilities(self) -> tuple[Visibility, Visibility]:
        """Where the first and the second token may lie."""
        return self.visibility, Visibility(self.mask, self.second_window)

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        return self._projections(sizes, self.heads * (3 * n + 2 * w)) + self._output(sizes, self.heads * w)

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        first, second = (seen.keys(sizes.tokens) for seen in self.visibilities)
        local = is_local(*self.visibilities, sizes.tokens)
        logits = 2 * n if local and self.trilinear_form == "determinant" else n
        linear = self._linear_flops(sizes, self.heads * (3 * n + 2 * w), self.heads * w)
        # Without the local path, windows are masks and save nothing.
        pairs = first * second if local else sizes.tokens**2
        return linear + 2 * sizes.tokens * pairs * self.heads * (logits + w)


class SimplicialConfig(TrilinearConfig):
    """2-simplicial attention.

    Attributes:
        form: of logits: product sum_c q_c k_c k'_c, or the rotation-invariant sum of determinants of triples.
        offset: add 1/d to second keys and 1 to second values, so that zero projections leave ordinary attention.
    """

    label: ClassVar[str] = "2-simplicial attention"
    source: ClassVar[str] = "arXiv 2507.02754; pytorch/FBGEMM simplicial_attention"
    memory: ClassVar[str] = "N^2 D (fused), N W_1 W_2 H (windows); H N^3 if the weights are held"

    attention: Literal["simplicial"] = "simplicial"
    form: Form = "product"
    offset: bool = False

    @property
    def trilinear_form(self) -> Form:
        return self.form

    @property
    def shift(self) -> bool:
        return self.offset

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        queries, values = super().widths(sizes)
        if self.form == "determinant":
            if self.query_width is None:
                queries += -queries % 3
            elif queries % 3:
                raise BadInput(f"determinants need triples of channels; query_width {queries} must be divisible by 3")
        return queries, values


class ThirdOrderConfig(TrilinearConfig):
    """Third-order attention: the product form, at inverse temperature 1 if not given."""

    label: ClassVar[str] = "Third-order attention"
    source: ClassVar[str] = "arXiv 2306.02896"
    memory: ClassVar[str] = "N^2 D (fused); H N^3 if the weights are held"

    attention: Literal["third-order"] = "third-order"

    def beta(self, query_width: int) -> float:
        return self.inverse_temperature or 1.0


def is_local(first: Visibility, second: Visibility, length: int) -> bool:
    """Whether both windows exist and their pairs are fewer than all."""
    if first.reach is None or second.reach is None:
        return False
    return (sum(first.reach) + 1) * (sum(second.reach) + 1) < length**2


def trilinear_logits(
    queries: Float[Tensor, "batch heads query width"],
    first_keys: Float[Tensor, "batch heads first width"],
    second_keys: Float[Tensor, "batch heads second width"],
    form: Form,
) -> Float[Tensor, "batch heads query first second"]:
    """product: sum_c q_c k_c k'_c;  determinant: sum over triples of channels of det [q; k; k']."""
    if form == "product":
        return torch.einsum("bhic,bhjc,bhkc->bhijk", queries, first_keys, second_keys)
    q, k, l = (x.unflatten(-1, (-1, 3)).unbind(-1) for x in (queries, first_keys, second_keys))  # noqa: E741
    terms = [(0, 1, 2, 1), (1, 2, 0, 1), (2, 0, 1, 1), (0, 2, 1, -1), (1, 0, 2, -1), (2, 1, 0, -1)]
    return sum(
        (sign * torch.einsum("bhic,bhjc,bhkc->bhijk", q[a], k[b], l[c]) for a, b, c, sign in terms),
        start=torch.zeros((), dtype=queries.dtype, device=queries.device),
    )


def trilinear_attention_reference(
    queries: Float[Tensor, "batch heads token width"],
    first_keys: Float[Tensor, "batch heads token width"],
    second_keys: Float[Tensor, "batch heads token width"],
    first_values: Float[Tensor, "batch heads token value_width"],
    second_values: Float[Tensor, "batch heads token value_width"],
    inverse_temperature: float,
    form: Form,
    visibilities: tuple[Visibility, Visibility],
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """o_i = sum_{j,k} A[i,j,k] v_j o v'_k, A = softmax over pairs (j,k) of beta s(q_i, k_j, k'_k), all N^3 held."""
    logits = trilinear_logits(queries, first_keys, second_keys, form) * inverse_temperature
    mask = pair_mask(visibilities, queries.shape[-2], valid, queries.device)
    weights = masked_softmax(logits.flatten(-2), mask).unflatten(-1, logits.shape[-2:])
    return torch.einsum("bhijk,bhjw,bhkw->bhiw", weights, first_values, second_values)


def pair_mask(
    visibilities: tuple[Visibility, Visibility],
    length: int,
    valid: Bool[Tensor, "batch token"] | None,
    device: torch.device,
) -> Bool[Tensor, "#batch 1 query pair"] | None:
    """Pairs of which both tokens may be seen; pair (j,k) has index j N + k. None if all may."""
    first, second = (seen.dense(length, valid, device) for seen in visibilities)
    if first is None and second is None:
        return None
    every = torch.ones(1, 1, length, length, dtype=torch.bool, device=device)
    first, second = (every if mask is None else mask for mask in (first, second))
    return (first[..., :, None] & second[..., None, :]).flatten(-2)


def trilinear_attention(
    queries: Float[Tensor, "batch heads token width"],
    first_keys: Float[Tensor, "batch heads token width"],
    second_keys: Float[Tensor, "batch heads token width"],
    first_values: Float[Tensor, "batch heads token value_width"],
    second_values: Float[Tensor, "batch heads token value_width"],
    inverse_temperature: float,
    form: Form,
    visibilities: tuple[Visibility, Visibility],
    valid: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch heads token value_width"]:
    """`trilinear_attention_reference` without N^3 weights.

    The form is an inner product of q_i with k_j o k'_k, or with the cross products of their triples, so this
    is ordinary attention to N^2 composite keys and values, and the fused kernel holds none of its weights.
    With two narrow windows every query meets its own W_1 x W_2 pairs.
    """
    length = queries.shape[-2]
    if is_local(*visibilities, length):
        tensors = (queries, first_keys, second_keys, first_values, second_values)
        return _local(*tensors, inverse_temperature, form, visibilities, valid)
    left, right = first_keys[..., :, None, :], second_keys[..., None, :, :]
    if form == "product":
        keys = left * right
    else:
        left, right = (x.unflatten(-1, (-1, 3)) for x in torch.broadcast_tensors(left, right))
        keys = torch.linalg.cross(left, right).flatten(-2)
    values = first_values[..., :, None, :] * second_values[..., None, :, :]
    mask = pair_mask(visibilities, length, valid, queries.device)
    return softmax_attention(queries, keys.flatten(-3, -2), values.flatten(-3, -2), inverse_temperature, mask)


def _local(
    queries: Tensor,
    first_keys: Tensor,
    second_keys: Tensor,
    first_values: Tensor,
    second_values: Tensor,
    inverse_temperature: float,
    form: Form,
    visibilities: tuple[Visibility, Visibility],
    valid: Tensor | None,
) -> Tensor:
    length, device = queries.shape[-2], queries.device

    def neighbours(x: Tensor, seen: Visibility) -> Tensor:
        """(.., token, width) -> (.., token, neighbour, width)."""
        assert seen.reach is not None
        return pad(x, (0, 0, *seen.reach)).unfold(-2, sum(seen.reach) + 1, 1).transpose(-1, -2)

    def allowed(seen: Visibility) -> Tensor:
        assert seen.reach is not None
        query = torch.arange(length, device=device)[:, None]
        key = query - seen.reach[0] + torch.arange(sum(seen.reach) + 1, device=device)
        mask = (seen.allows(query, key) & (key >= 0) & (key < length))[None]
        return mask if valid is None else mask & pad(valid, seen.reach).unfold(-1, sum(seen.reach) + 1, 1)

    first, second = visibilities
    left, right = neighbours(first_keys, first), neighbours(second_keys, second)
    if form == "determinant":
        # <q, k x k'> = <q o roll k, roll^2 k'> - <q o roll^2 k, roll k'> on every triple.
        roll = lambda x, by: x.unflatten(-1, (-1, 3)).roll(-by, -1).flatten(-2)  # noqa: E731
        left = torch.cat([roll(left, 1), -roll(left, 2)], -1)
        right = torch.cat([roll(right, 2), roll(right, 1)], -1)
        queries = torch.cat([queries, queries], -1)
    logits = (queries[..., None, :] * left) @ right.transpose(-1, -2) * inverse_temperature
    mask = (allowed(first)[..., :, None] & allowed(second)[..., None, :]).flatten(-2)[:, None]
    weights = masked_softmax(logits.flatten(-2), mask).unflatten(-1, logits.shape[-2:])
    return (weights @ neighbours(second_values, second) * neighbours(first_values, first)).sum(-2)


class TrilinearAttention(Attention):
    """`trilinear_attention` of five projections, joined by W_O."""

    def __init__(self, config: TrilinearConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        self.query = projection(config, sizes, config.heads, n)
        self.first_key = projection(config, sizes, config.heads, n)
        self.second_key = projection(config, sizes, config.heads, n)
        self.first_value = projection(config, sizes, config.heads, w)
        self.second_value = projection(config, sizes, config.heads, w)
        self.join = Join(config.heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        queries, second_keys, second_values = self.query(x), self.second_key(x), self.second_value(x)
        if self.config.shift:
            second_keys, second_values = second_keys + 1 / second_keys.shape[-1], second_values + 1.0
        heads = trilinear_attention(
            queries, self.first_key(x), second_keys, self.first_value(x), second_values,
            self.inverse_temperature, self.config.trilinear_form, self.config.visibilities, valid,
        )  # fmt: skip
        return self.join(heads)
