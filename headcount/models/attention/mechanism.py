"""What the mechanisms of the literature have in common: their configuration, their interface, their formulas."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.config import Config
from headcount.models.attention.config import Options, Sizes, value_width
from headcount.models.attention.heads import Join, Projection
from headcount.models.attention.masks import Visibility
from headcount.models.attention.scores import rotary


class GeneralConfig(Config):
    """What every mechanism of the network offers, and the theory layers do not.

    Attributes:
        window: W, see `Visibility`; None for all tokens.
        rope_base: base of the rotary rates.
        bias: whether projections and W_O have one.
    """

    label: ClassVar[str]
    source: ClassVar[str]
    memory: ClassVar[str]
    folds: ClassVar[str] = "no"

    window: int | None = pydantic.Field(default=None, ge=1)
    rope_base: float = pydantic.Field(default=10_000.0, gt=1)
    bias: bool = False

    def options(self) -> Options:
        """Window, rotary base and biases in force."""
        return Options(self.window, self.rope_base, self.bias)

    def at_layer(self, layer: int) -> Self:
        """The configuration of layer 1, 2, ..; differs where a mechanism depends on its depth."""
        return self

    def parameters(self, sizes: Sizes) -> int:
        """Number of trained parameters, in closed form; the module is tested against it."""
        raise NotImplementedError

    def flops(self, sizes: Sizes) -> int:
        """Operations of the matrix products of one forward pass of one sequence, a multiply-add being two.

        A mask saves nothing here; a window of W counts W keys a query.
        """
        raise NotImplementedError


class MechanismConfig(GeneralConfig):
    """Common choices.

    Attributes:
        heads: H.
        query_width, value_width: d of queries and keys, and of values; outputs / H rounded up if not given.
        output: concat (no output projection) or mixed (W_O).
        mask: none or causal.
        rope: rotary positions: none or token.
        inverse_temperature: beta; 1/sqrt(query width) if not given.
    """

    attention: str
    heads: int = pydantic.Field(default=1, ge=1, le=1024)
    query_width: int | None = pydantic.Field(default=None, ge=1)
    value_width: int | None = pydantic.Field(default=None, ge=1)
    output: Literal["concat", "mixed"] = "mixed"
    mask: Literal["none", "causal"] = "none"
    rope: Literal["none", "token"] = "none"
    inverse_temperature: float | None = pydantic.Field(default=None, gt=0)

    @pydantic.model_validator(mode="after")
    def _even(self) -> Self:
        if self.rope != "none" and self.query_width is not None and self.query_width % 2:
            raise ValueError(f"rope turns pairs of channels; query_width {self.query_width} must be even")
        return self

    @property
    def visibility(self) -> Visibility:
        """Which tokens a token may see."""
        return Visibility(self.mask, self.window)

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        """Query and value width of a head.

        Raises:
            BadInput: if concatenated heads are too narrow for the outputs.
        """
        values = value_width(self.heads, self.value_width, self.output, sizes)
        return self.query_width or head_width(sizes.outputs, self.heads, self.rope != "none"), values

    def beta(self, query_width: int) -> float:
        """The inverse temperature in force."""
        return query_width**-0.5 if self.inverse_temperature is None else self.inverse_temperature

    def _projections(self, sizes: Sizes, *widths: int) -> int:
        """Parameters of projections whose heads have the given widths, all together."""
        return sum(widths) * (sizes.features + self.bias)

    def _output(self, sizes: Sizes, width: int) -> int:
        """Parameters of W_O on `width` concatenated channels."""
        return sizes.outputs * (width + self.bias) if self.output == "mixed" else 0

    def _linear_flops(self, sizes: Sizes, projected: int, joined: int) -> int:
        """FLOPs of projections to `projected` channels and of the joining of `joined` channels."""
        mixes = self.output == "mixed" or joined != sizes.outputs
        return 2 * sizes.tokens * (sizes.features * projected + (joined * sizes.outputs if mixes else 0))


def head_width(width: int, heads: int, even: bool = False) -> int:
    """width / heads rounded up, to an even number if asked."""
    least = -(-width // heads)
    return least + least % 2 if even else least


class Attention(nn.Module):
    """Interface of every mechanism.

    forward(x, valid): x (batch, tokens, features), valid True at real tokens or None if all are. Padding is
    never looked at. A token that may see nothing gets a zero from every head; gradients stay finite.
    """

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew."""
        for part in self.children():
            if isinstance(part, Projection | Join):
                part.reset(generator)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        raise NotImplementedError


def turned(
    config: MechanismConfig, *projected: Float[Tensor, "batch heads tokens width"]
) -> list[Float[Tensor, "batch heads tokens width"]]:
    """Queries and keys with rotary positions, if the configuration has such."""
    if config.rope == "none":
        return list(projected)
    positions = torch.arange(projected[0].shape[-2], device=projected[0].device)
    return [rotary(x, positions, config.rope_base) for x in projected]


def projection(config: MechanismConfig, sizes: Sizes, heads: int, width: int) -> Projection:
    """A projection of the features to `heads` heads of one width."""
    return Projection(heads, sizes.tokens, sizes.features, width, bias=config.bias)
