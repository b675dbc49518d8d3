"""Which tokens a token may look at: one meaning for every mechanism, dense or cut into blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

Mask = Literal["none", "causal", "flat-causal"]
Core = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | None], Tensor]


@dataclass(frozen=True)
class Visibility:
    """The pairs (query i, key j) of an attention pattern.

    Attributes:
        mask: none; causal: key token <= query token; flat-causal: j <= i on the virtual index.
        window: W, in tokens. With a causal mask the last W tokens, the own one included; without one, tokens
            at a distance of at most W // 2 on either side.
        pseudo: P consecutive indices belong to one token; 1 without virtual tokens.
    """

    mask: Mask = "none"
    window: int | None = None
    pseudo: int = 1

    def allows(self, query: Int[Tensor, "*#index"], key: Int[Tensor, "*#index"]) -> Bool[Tensor, "*#index"]:
        """Whether query index sees key index, elementwise."""
        distance = query // self.pseudo - key // self.pseudo
        if self.mask == "none":
            return torch.ones_like(distance, dtype=torch.bool) if self.window is None else self._near(distance.abs())
        past = key <= query if self.mask == "flat-causal" else distance >= 0
        return past if self.window is None else past & self._near(distance)

    def _near(self, distance: Int[Tensor, "*index"]) -> Bool[Tensor, "*index"]:
        assert self.window is not None
        return distance <= self.window // 2 if self.mask == "none" else distance < self.window

    @property
    def reach(self) -> tuple[int, int] | None:
        """How many indices before and after itself a query may see; None without a window."""
        if self.window is None:
            return None
        within = self.pseudo - 1
        if self.mask == "none":
            side = self.window // 2 * self.pseudo + within
            return side, side
        return (self.window - 1) * self.pseudo + within, 0 if self.mask == "flat-causal" else within

    def keys(self, tokens: int) -> int:
        """Keys per query in a FLOP count: all N P without a window (a mask is not deducted), else those in reach."""
        if self.window is None:
            return tokens * self.pseudo
        width = self.window if self.mask != "none" else 2 * (self.window // 2) + 1
        return min(width, tokens) * self.pseudo

    def dense(
        self, length: int, valid: Bool[Tensor, "batch token"] | None, device: torch.device
    ) -> Bool[Tensor, "#batch 1 query key"] | None:
        """All pairs of `length` indices, without those whose key is padding; None if every pair is allowed."""
        allowed = None
        if self.mask != "none" or self.window is not None:
            index = torch.arange(length, device=device)
            allowed = self.allows(index[:, None], index[None, :])[None, None]
        if valid is not None:
            real = virtual(valid, self.pseudo)[:, None, None, :]
            allowed = real.expand(-1, -1, length, -1) if allowed is None else allowed & real
        return allowed


def virtual(valid: Bool[Tensor, "batch token"], pseudo: int) -> Bool[Tensor, "batch virtual"]:
    """Every token's flag, P times in a row."""
    return valid if pseudo == 1 else valid[:, :, None].expand(-1, -1, pseudo).flatten(1)


def over_visible(
    core: Core,
    queries: Sequence[Float[Tensor, "batch heads token width"]],
    keys: Sequence[Float[Tensor, "batch heads token width"]],
    visibility: Visibility,
    valid: Bool[Tensor, "batch token"] | None,
) -> Float[Tensor, "batch heads token width"]:
    """core(queries, keys, mask) without building N x N where a window makes that wasteful.

    With a window that reaches l indices back and r ahead, the sequence is cut into blocks of b = l + r + 1
    queries; each meets the b + l + r keys in reach, and blocks become examples. `core` sees tensors of one
    shape only and need not know.

    Args:
        core: maps query-side tensors, key-side tensors and a mask (batch or 1, 1, query, key) to one tensor
            (batch, heads, query, width).
        valid: False at padding.
    """
    length, reach = queries[0].shape[-2], visibility.reach
    device = queries[0].device
    if reach is None or 2 * sum(reach) + 1 >= length:
        return core(queries, keys, visibility.dense(length, valid, device))
    (left, right), block = reach, sum(reach) + 1
    span, count = block + left + right, -(-length // block)
    rest = count * block - length

    def query_blocks(x: Tensor) -> Tensor:
        return pad(x, (0, 0, 0, rest)).unflatten(-2, (count, block)).transpose(1, 2).flatten(0, 1)

    def key_blocks(x: Tensor) -> Tensor:
        return pad(x, (0, 0, left, right + rest)).unfold(-2, span, block).movedim(2, 1).transpose(-1, -2).flatten(0, 1)

    start = torch.arange(count, device=device)[:, None] * block
    query = (start + torch.arange(block, device=device))[:, :, None]
    key = (start - left + torch.arange(span, device=device))[:, None, :]
    allowed = visibility.allows(query, key) & (key >= 0) & (key < length)
    batch = queries[0].shape[0]
    if valid is None:
        mask = allowed.expand(batch, -1, -1, -1)
    else:
        real = virtual(valid, visibility.pseudo)
        mask = allowed & pad(real, (left, right + rest)).unfold(-1, span, block)[:, :, None, :]
    outputs = core([query_blocks(x) for x in queries], [key_blocks(x) for x in keys], mask.reshape(-1, 1, block, span))
    joined = outputs.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :length]
