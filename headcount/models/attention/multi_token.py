"""Multi-token attention (arXiv 2504.00927): attention maps are convolved over neighbouring queries and keys,
and mixed across heads."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from headcount.models.attention.config import Sizes
from headcount.models.attention.differential import initial_share
from headcount.models.attention.heads import HeadNorm, Join
from headcount.models.attention.mechanism import Attention, MechanismConfig, projection, turned
from headcount.models.attention.scores import masked_softmax


class MultiTokenConfig(MechanismConfig):
    """4 D^2 + n_c H c_q c_k + H c_h (+ H^2) + d (+ d + 1) parameters for n_c convolutions, and
    8 N D^2 + 4 N^2 D + 2 N^2 H (n_c c_q c_k + c_h) operations. Maps are held whole, so a window saves nothing; and
    convolutions widen what it shows.

    Attributes:
        query_taps, key_taps: c_q (current and past queries) and c_k (keys on both sides; odd).
        convolve: whether logits are convolved.
        convolve_weights: whether weights are convolved too, after the softmax.
        mix_logits: whether logits are mixed across all heads.
        mixing_group: c_h, heads whose weights are mixed with each other; H if not given.
        norm: RMSNorm of every head's output.
        gate: sigmoid gate of every head's output.
        depth_scale: factor 1 - lambda_init of the layer on every head's output.
        layer: l = 1, 2, .., for the depth scale; a network fills it in.
    """

    label: ClassVar[str] = "Multi-token attention"
    source: ClassVar[str] = "arXiv 2504.00927; facebookresearch/RAM projects/mta"
    memory: ClassVar[str] = "3 H N^2"

    attention: Literal["multi-token"] = "multi-token"
    query_taps: int = pydantic.Field(default=6, ge=1)
    key_taps: int = pydantic.Field(default=11, ge=1)
    convolve: bool = True
    convolve_weights: bool = False
    mix_logits: bool = False
    mixing_group: int | None = pydantic.Field(default=None, ge=1)
    norm: bool = True
    gate: bool = False
    depth_scale: bool = False
    layer: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.key_taps % 2 == 0:
            raise ValueError(f"key_taps = {self.key_taps} must be odd: as many keys on either side")
        if self.heads % self.group:
            raise ValueError(f"mixing_group = {self.group} must divide heads = {self.heads}")
        return self

    @property
    def group(self) -> int:
        """c_h."""
        return self.mixing_group or self.heads

    def at_layer(self, layer: int) -> Self:
        return self if self.layer is not None or not self.depth_scale else self.changed(layer=layer)

    def parameters(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        own = (self.convolve + self.convolve_weights) * self.heads * self.query_taps * self.key_taps
        own += self.heads * self.group + (self.heads**2 if self.mix_logits else 0)
        own += (w if self.norm else 0) + (w + 1 if self.gate else 0)
        return self._projections(sizes, self.heads * (2 * n + w)) + self._output(sizes, self.heads * w) + own

    def flops(self, sizes: Sizes) -> int:
        n, w = self.widths(sizes)
        taps = (self.convolve + self.convolve_weights) * self.query_taps * self.key_taps
        per_pair = n + w + taps + self.group + (self.heads if self.mix_logits else 0)
        linear = self._linear_flops(sizes, self.heads * (2 * n + w), self.heads * w)
        gates = 2 * sizes.tokens * self.heads * w if self.gate else 0
        return linear + gates + 2 * sizes.tokens**2 * self.heads * per_pair


def convolve_maps(
    maps: Float[Tensor, "batch heads query key"], kernels: Float[Tensor, "heads query_taps key_taps"]
) -> Float[Tensor, "batch heads query key"]:
    """out_h[i, j] = sum_{a,b} kernels[h, c_q - 1 - a, (c_k - 1) / 2 - b] maps_h[i - a, j - b], zero outside."""
    heads, query_taps, key_taps = kernels.shape
    side = (key_taps - 1) // 2
    return conv2d(pad(maps, (side, side, query_taps - 1, 0)), kernels[:, None], groups=heads)


def mix_groups(
    maps: Float[Tensor, "batch heads query key"], mixing: Float[Tensor, "groups target source"]
) -> Float[Tensor, "batch heads query key"]:
    """Mix the maps of the heads of every group."""
    split = maps.unflatten(1, (mixing.shape[0], mixing.shape[2]))
    return torch.einsum("gts,bgsij->bgtij", mixing, split).flatten(1, 2)


class MultiTokenAttention(Attention):
    """With maps S = beta Q K^T:

        S' = C(S o M);  [S' mixed across heads];  A = softmax(S' where M);  [A' = C'(A) o M];
        A mixed within groups of c_h heads;  O = A V;  [RMSNorm, depth scale, gate];  W_O

    where M is 1 at allowed pairs. Without M inside the convolution the future, and padding, would leak
    through neighbouring pairs; rows of padding are zero there for the same reason. All kernels and mixings
    start at the identity.
    """

    def __init__(self, config: MultiTokenConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        n, w = config.widths(sizes)
        heads, kernel = config.heads, (config.heads, config.query_taps, config.key_taps)
        self.query = projection(config, sizes, heads, n)
        self.key = projection(config, sizes, heads, n)
        self.value = projection(config, sizes, heads, w)
        self.kernels = nn.Parameter(torch.empty(kernel)) if config.convolve else None
        self.weight_kernels = nn.Parameter(torch.empty(kernel)) if config.convolve_weights else None
        self.mix_logits = nn.Parameter(torch.empty(1, heads, heads)) if config.mix_logits else None
        self.mix_weights = nn.Parameter(torch.empty(heads // config.group, config.group, config.group))
        self.norm = HeadNorm(w) if config.norm else None
        self.gate = nn.Parameter(torch.empty(w)) if config.gate else None
        self.gate_bias = nn.Parameter(torch.empty(())) if config.gate else None
        self.join = Join(heads, w, sizes.outputs, config.output, config.bias)
        self.inverse_temperature = config.beta(n)
        self.scale = 1 - initial_share(config.layer or 1) if config.depth_scale else 1.0

    def reset(self, generator: torch.Generator) -> None:
        """Projections and gate at random; kernels and mixings where they change nothing."""
        super().reset(generator)
        for kernels in (self.kernels, self.weight_kernels):
            if kernels is not None:
                kernels.data.zero_()
                kernels.data[:, -1, kernels.shape[-1] // 2] = 1.0
        for mixing in (self.mix_logits, self.mix_weights):
            if mixing is not None:
                mixing.data.copy_(torch.eye(mixing.shape[-1]).expand_as(mixing))
        if self.norm is not None:
            self.norm.reset()
        if self.gate is not None and self.gate_bias is not None:
            self.gate.data.normal_(0.0, len(self.gate) ** -0.5, generator=generator)
            self.gate_bias.data.zero_()

    def maps(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch heads query key"]:
        """The final attention maps; their rows need not sum to 1."""
        queries, keys = turned(self.config, self.query(x), self.key(x))
        allowed = self.config.visibility.dense(x.shape[1], valid, x.device)
        hidden = None if allowed is None else ~allowed
        if hidden is not None and valid is not None:
            hidden = hidden | ~valid[:, None, :, None]

        def visible(maps: Tensor) -> Tensor:
            return maps if hidden is None else maps.masked_fill(hidden, 0.0)

        logits = queries @ keys.transpose(-1, -2) * self.inverse_temperature
        if self.kernels is not None:
            logits = convolve_maps(visible(logits), self.kernels)
        if self.mix_logits is not None:
            logits = mix_groups(logits, self.mix_logits)
        weights = masked_softmax(logits, allowed)
        if self.weight_kernels is not None:
            weights = visible(convolve_maps(visible(weights), self.weight_kernels))
        return mix_groups(weights, self.mix_weights)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        heads = self.maps(x, valid) @ self.value(x)
        if self.norm is not None:
            heads = self.norm(heads)
        heads = heads * self.scale
        if self.gate is not None:
            heads = heads * (heads @ self.gate[:, None] + self.gate_bias).sigmoid()
        return self.join(heads)
