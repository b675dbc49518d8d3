"""What all mechanisms share: per-head projections of X_hat = [X, I_N], the joining of heads, and the
shortcut for attention patterns that do not depend on the input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

Reads = Literal["features", "positions", "full"]


class Projection(nn.Module):
    """X_hat W + b for every head, where X_hat = [X, I_N] is never formed: X W_features + W_positions + b.

    Args:
        heads, tokens, features, width: sizes H, N, d, w.
        reads: which rows of W exist: those of X, those of I_N, or both.
        position_scale: standard deviation of the position rows at initialisation; feature rows
            get features^(-1/2).
        bias: whether there is b, which starts at zero.
    """

    def __init__(
        self,
        heads: int,
        tokens: int,
        features: int,
        width: int,
        reads: Reads = "features",
        position_scale: float = 1.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.position_scale = position_scale
        self.features = None if reads == "positions" else nn.Parameter(torch.empty(heads, features, width))
        self.positions = None if reads == "features" else nn.Parameter(torch.empty(heads, tokens, width))
        self.bias = nn.Parameter(torch.empty(heads, 1, width)) if bias else None

    def reset(self, generator: torch.Generator) -> None:
        """Draw the weights anew."""
        if self.bias is not None:
            self.bias.data.zero_()
        if self.features is not None:
            self.features.data.normal_(0.0, self.features.shape[1] ** -0.5, generator=generator)
        if self.positions is not None:
            self.positions.data.normal_(0.0, self.position_scale, generator=generator)

    def forward(self, x: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "*batch heads tokens width"]:
        """Without feature rows the result has no batch axis: it is the same for every example."""
        if self.features is None:
            assert self.positions is not None
            return self.positions if self.bias is None else self.positions + self.bias
        projected = torch.einsum("bnf,hfw->bhnw", x, self.features)
        for part in (self.positions, self.bias):
            projected = projected if part is None else projected + part
        return projected


class Join(nn.Module):
    """From head outputs to the layer's output.

    mixed:   concatenate and multiply by W_O, here (H, w, outputs).
    concat:  no W_O. The outputs are divided among the heads in order and as evenly as possible;
             with H w = outputs this is plain concatenation. Held as a fixed 0/1 matrix in W_O's
             place, so that both modes are one mechanism; it is no parameter.

    With `bias`, W_O has one, which starts at zero.
    """

    weight: Tensor

    def __init__(
        self, heads: int, width: int, outputs: int, mode: Literal["concat", "mixed"], bias: bool = False
    ) -> None:
        super().__init__()
        self.plain = mode == "concat" and heads * width == outputs
        self.bias = nn.Parameter(torch.empty(outputs)) if bias and mode == "mixed" else None
        if mode == "mixed":
            self.weight = nn.Parameter(torch.empty(heads, width, outputs))
            return
        selection = torch.zeros(heads, width, outputs)
        for output in range(outputs):
            head = output * heads // outputs
            first = -(-head * outputs // heads)
            selection[head, output - first, output] = 1.0
        self.register_buffer("weight", selection)

    def reset(self, generator: torch.Generator) -> None:
        """Draw W_O anew, if there is one."""
        if self.bias is not None:
            self.bias.data.zero_()
        if isinstance(self.weight, nn.Parameter):
            heads, width, _ = self.weight.shape
            self.weight.data.normal_(0.0, (heads * width) ** -0.5, generator=generator)

    def forward(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens outputs"]:
        if self.plain:
            return heads.transpose(1, 2).flatten(2)
        joined = torch.einsum("bhnw,hwo->bno", heads, self.weight)
        return joined if self.bias is None else joined + self.bias


class HeadNorm(nn.Module):
    """RMSNorm over the width of every head's output, with one weight (width) for all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def reset(self) -> None:
        """Start at weight 1."""
        self.weight.data.fill_(1.0)

    def forward(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch heads tokens width"]:
        scale = heads.square().mean(-1, keepdim=True) + 1e-5
        return heads * scale.rsqrt() * self.weight


def contract(equation: str, *operands: Tensor) -> Tensor:
    """torch.einsum, two operands at a time in the order that needs the fewest operations at these sizes."""
    parts = list(operands)
    for places, step in _contraction_order(equation, *(tuple(part.shape) for part in operands)):
        met = torch.einsum(step, *(parts[place] for place in places))
        parts = [part for place, part in enumerate(parts) if place not in places] + [met]
    return parts[0]


@lru_cache(maxsize=4096)
def _contraction_order(equation: str, *shapes: tuple[int, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Steps of `contract`: the places of the operands that meet, and their einsum. What holds the first axis of the
    result goes first, so that the product lies in memory as it is asked for."""
    path, _ = np.einsum_path(equation, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize=("optimal", 2**62))
    inputs, result = equation.split("->")
    axes, steps = inputs.split(","), []
    for step in path[1:]:
        places = tuple(sorted(step, key=lambda place: (result[:1] not in axes[place], -place)))
        meeting = [axes[place] for place in places]
        axes = [axis for place, axis in enumerate(axes) if place not in places]
        later = set(result).union(*axes)
        left = result if not axes else "".join(axis for axis in dict.fromkeys("".join(meeting)) if axis in later)
        axes.append(left)
        steps.append((places, f"{','.join(meeting)}->{left}"))
    return steps


def apply_patterns(
    factors: str, operands: Sequence[Tensor], values: Projection, join: Join, x: Float[Tensor, "batch key features"],
    mixing: str = "", mixers: Sequence[Tensor] = (),
) -> Float[Tensor, "batch query outputs"]:  # fmt: skip
    """The layer's output when its attention patterns are the same for every example: one multilinear form in the
    patterns' factors, X, W_V and W_O, contracted in the cheapest order. Whether patterns are built at all, applied to
    every example, or first made into one matrix (N outputs) x (N d) for the whole batch, is for the sizes to say.

    Args:
        factors, operands: the patterns' factors and their axes as in an einsum: i query, j key, n inner, and the
            patterns' own. "hij" for patterns that are given, "hin,hjn" for Q K^T of every head h; "hvij" where head h
            reads the values of head v.
        mixing, mixers: how other patterns mix into head h reading the values of head v, if they do.
    """
    own = "".join(dict.fromkeys(axis for axis in factors if axis not in "ijn,"))
    source = "h" if own == "h" else "v"
    before = mixing and f"{mixing},"
    result = torch.zeros((), dtype=x.dtype, device=x.device)
    if values.features is not None:
        maps = contract(f"{before}{source}fw,hwo->{own}fo", *mixers, values.features, join.weight)
        result = contract(f"{factors},bjf,{own}fo->bio", *operands, x, maps)
    if values.positions is not None:
        places = contract(f"{before}{source}jw,hwo->{own}jo", *mixers, values.positions, join.weight)
        result = result + contract(f"{factors},{own}jo->io", *operands, places)
    return result
