"""What all mechanisms share: per-head projections of X_hat = [X, I_N], the joining of heads, and the
shortcut for attention patterns that do not depend on the input."""

from __future__ import annotations

from typing import Literal

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


def apply_patterns(
    patterns: Float[Tensor, "*heads query key"],
    values: Projection,
    join: Join,
    x: Float[Tensor, "batch key features"],
) -> Float[Tensor, "batch query outputs"]:
    """The layer's output when its attention patterns are the same for every example.

    Then the layer is affine in X, and its matrix, (N outputs) x (N d), is built once and applied to
    the whole batch, instead of every head's pattern to every example.

    Args:
        patterns: (H, N, N), head h attends with patterns[h] and reads its own values; or
            (H, H, N, N), head h attends to the values of head m with patterns[h, m].
    """
    heads, values_of = ("h", "h") if patterns.dim() == 3 else ("hm", "m")
    result = torch.zeros((), dtype=x.dtype, device=x.device)
    if values.features is not None:
        maps = torch.einsum(f"{values_of}fw,hwo->{heads}fo", values.features, join.weight)
        matrix = torch.einsum(f"{heads}ij,{heads}fo->iojf", patterns, maps)
        outputs, keys, features = matrix.shape[1:]
        flat = x.reshape(-1, keys * features) @ matrix.reshape(-1, keys * features).T
        result = flat.reshape(len(x), -1, outputs)
    if values.positions is not None:
        moved = torch.einsum(f"{heads}ij,{values_of}jw->hiw", patterns, values.positions)
        result = result + torch.einsum("hiw,hwo->io", moved, join.weight)
    return result
