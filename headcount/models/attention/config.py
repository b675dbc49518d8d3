"""The choices that define an attention layer, and the sizes a task asks of it."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import pydantic

from headcount.config import BadInput, Config
from headcount.models.attention.masks import Mask, Visibility
from headcount.models.attention.scores import Score


class Options(NamedTuple):
    """Choices that the theory layers never make; see `MechanismConfig`."""

    window: int | None = None
    rope_base: float = 10_000.0
    bias: bool = False


class Sizes(NamedTuple):
    """What a layer must read and write: N tokens of d features in, `outputs` numbers per token out."""

    tokens: int
    features: int
    outputs: int


def value_width(heads: int, given: int | None, output: str, sizes: Sizes) -> int:
    """Width of a head's values: as given, else outputs / heads rounded up.

    Raises:
        BadInput: if concatenated heads are too narrow for the outputs.
    """
    least = -(-sizes.outputs // heads)
    width = given or least
    if output == "concat" and width < least:
        raise BadInput(
            f"{heads} concatenated heads of value_width {width} cannot fill {sizes.outputs} outputs;"
            f" value_width must be at least {least}"
        )
    return width


class AttentionConfig(Config):
    """One attention layer on X_hat = [X, I_N].

    Attributes:
        attention: the mechanism.
        heads: H.
        pseudo_heads: P of interleaved head attention; H if not given.
        score: linear, softmax, or hard (temperature 0; has no gradient).
        content: what queries and keys read: one-hot positions only, the features only, or all of X_hat.
        value_content: what values read.
        output: concat (no output projection) or mixed (W_O).
        query_width: n, width of queries and keys; N if not given, as the theory needs.
        value_width: w, width of a head's values; outputs / H rounded up if not given.
        collapse: of pseudo-heads: full mixes all heads, per-head its own only.
        mask: none, causal, or (interleaved) flat-causal on the virtual index.
        rope: rotary positions: none, token, or (interleaved) virtual.
        inverse_temperature: beta; 1/sqrt(n) for softmax and 1 for linear if not given.
        start, start_noise: where the mixings start, see `InterleavedHeadAttention.reset`.
    """

    attention: Literal["mha", "iha"] = "mha"
    heads: int = pydantic.Field(default=1, ge=1, le=1024)
    pseudo_heads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    score: Score = "softmax"
    content: Literal["positions", "features", "full"] = "full"
    value_content: Literal["features", "full"] = "full"
    output: Literal["concat", "mixed"] = "mixed"
    query_width: int | None = pydantic.Field(default=None, ge=1, le=65536)
    value_width: int | None = pydantic.Field(default=None, ge=1, le=65536)
    collapse: Literal["full", "per-head"] = "full"
    mask: Mask = "none"
    rope: Literal["none", "token", "virtual"] = "none"
    inverse_temperature: float | None = pydantic.Field(default=None, gt=0)
    start: Literal["random", "router", "identity"] = "random"
    start_noise: float = pydantic.Field(default=0.05, gt=0)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.attention == "mha":
            if self.pseudo_heads is not None:
                raise ValueError("pseudo_heads belongs to attention 'iha'; 'mha' has none")
            if self.mask == "flat-causal" or self.rope == "virtual":
                raise ValueError("attention 'mha' has no virtual tokens; mask takes none or causal, rope none or token")
        if self.rope != "none" and self.query_width is not None and self.query_width % 2:
            raise ValueError(f"rope turns pairs of channels; query_width {self.query_width} must be even")
        return self

    @property
    def pseudo(self) -> int:
        """P: pseudo-heads per head, H unless given; 1 without pseudo-heads."""
        return 1 if self.attention == "mha" else self.pseudo_heads or self.heads

    def options(self) -> Options:
        """Window, rotary base and biases: none here."""
        return Options()

    @property
    def visibility(self) -> Visibility:
        """Which (virtual) tokens a (virtual) token may see."""
        return Visibility(self.mask, self.options().window, self.pseudo)

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        """Query and value width for a task.

        Raises:
            BadInput: if concatenated heads are too narrow for the outputs, or a rotary width is odd.
        """
        width = value_width(self.heads, self.value_width, self.output, sizes)
        queries = self.query_width or (sizes.tokens + sizes.tokens % 2 if self.rope != "none" else sizes.tokens)
        return queries, width

    def beta(self, query_width: int) -> float:
        """The inverse temperature in force."""
        if self.inverse_temperature is not None:
            return self.inverse_temperature
        return query_width**-0.5 if self.score == "softmax" else 1.0

    def position_scale(self, sizes: Sizes) -> float:
        """Standard deviation of the position rows of W_Q and W_K at initialisation.

        Linear scores are the pattern itself, so they start with entries of variance 1/N, as an
        orthogonal matrix has; softmax logits start with variance 1.
        """
        queries, _ = self.widths(sizes)
        return (queries * sizes.tokens) ** -0.25 if self.score == "linear" else 1.0

    def parameters(self, sizes: Sizes) -> int:
        """Number of trained parameters, in closed form; the module is tested against it."""
        rows = {"positions": sizes.tokens, "features": sizes.features, "full": sizes.tokens + sizes.features}
        queries, values = self.widths(sizes)
        total = self.heads * (2 * queries * rows[self.content] + values * rows[self.value_content])
        if self.output == "mixed":
            total += self.heads * values * sizes.outputs
        if self.attention == "iha":
            mixings = self.heads**2 * self.pseudo
            total += 3 * mixings + (mixings if self.collapse == "full" else self.heads * self.pseudo)
        return total
