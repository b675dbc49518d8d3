"""The small network: an embedding, blocks of attention and MLP, a head."""

from __future__ import annotations

from functools import reduce
from typing import Literal, Self

import pydantic
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, silu

from headcount.config import BadInput, Config
from headcount.models.attention import AnyMechanism, Sizes, build_mechanism
from headcount.models.attention.mha import MultiHeadConfig

Norm = Literal["none", "layer", "rms"]


class NetworkConfig(Config):
    """A transformer of any mechanism, with the switches that published protocols need.

    Attributes:
        network: the kind.
        width: D.
        mechanisms: of layers 1, 2, .., repeated from the start if there are more layers.
        depth: k, layers with weights of their own.
        loops: how often the k layers are applied; above 1 a looped transformer (arXiv 2502.17416).
        injection: add the embedding again before every loop but the first.
        positions: none; learned vectors; one-hot vectors in the last N of the D channels, X_hat = [X, I_N]; or
            rotary, in which case every mechanism must have rope. (Mechanisms may have rope besides the others.)
        norm: before attention, before the MLP: none, LayerNorm or RMSNorm.
        final_norm: whether there is one more before the head.
        mlp: none; relu or gelu with one hidden layer; swiglu; or relu-stack: `mlp_layers` times a linear map of
            D channels and a ReLU.
        mlp_width: hidden width; 4 D if not given, for swiglu 8 D / 3.
        mlp_layers: of relu-stack.
        residual: x + f(x) instead of f(x), around attention and MLP.
        bias: of the input map, the MLP and the head. Attention has its own.
        head: linear; mlp (a linear map of D channels and a ReLU before it); or tied to the embedding of ids,
            logits being inner products over sqrt(D).
    """

    network: Literal["transformer"] = "transformer"
    width: int = pydantic.Field(default=128, ge=1, le=65536)
    mechanisms: tuple[AnyMechanism, ...] = pydantic.Field(default=(MultiHeadConfig(),), min_length=1)
    depth: int = pydantic.Field(default=1, ge=1, le=1024)
    loops: int = pydantic.Field(default=1, ge=1, le=1024)
    injection: bool = False
    positions: Literal["none", "learned", "one-hot", "rotary"] = "learned"
    norm: Norm = "layer"
    final_norm: bool = True
    mlp: Literal["none", "relu", "gelu", "swiglu", "relu-stack"] = "gelu"
    mlp_width: int | None = pydantic.Field(default=None, ge=1)
    mlp_layers: int | None = pydantic.Field(default=None, ge=1)
    residual: bool = True
    bias: bool = True
    head: Literal["linear", "mlp", "tied"] = "linear"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mlp == "relu-stack" and self.mlp_width is not None:
            raise ValueError("mlp_width: the maps of mlp 'relu-stack' are as wide as the network")
        if self.mlp == "none" and self.mlp_width is not None:
            raise ValueError("mlp_width needs an mlp")
        if self.mlp != "relu-stack" and self.mlp_layers is not None:
            raise ValueError("mlp_layers belongs to mlp 'relu-stack'")
        if self.injection and self.loops == 1:
            raise ValueError("injection repeats the embedding before every further loop; loops must be above 1")
        if self.final_norm and self.norm == "none":
            raise ValueError("final_norm needs a norm; with norm 'none' it must be false")
        if self.positions == "rotary" and any(mechanism.rope == "none" for mechanism in self.mechanisms):
            raise ValueError("positions 'rotary' needs rope in every mechanism")
        return self

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP; D for a stack, 0 without MLP."""
        default = {"none": 0, "relu-stack": self.width, "swiglu": 8 * self.width // 3}.get(self.mlp, 4 * self.width)
        return self.mlp_width or default

    @property
    def stack(self) -> int:
        """Linear maps of mlp 'relu-stack'."""
        return self.mlp_layers or 3

    def layers(self) -> list[AnyMechanism]:
        """The mechanism of every layer."""
        return [self.mechanisms[i % len(self.mechanisms)].at_layer(i + 1) for i in range(self.depth)]

    def token_width(self, sizes: Sizes) -> int:
        """Channels that the token itself gets; the rest are one-hot positions.

        Raises:
            BadInput: if one-hot positions leave none.
        """
        if self.positions != "one-hot":
            return self.width
        if self.width <= sizes.tokens:
            raise BadInput(f"one-hot positions of {sizes.tokens} tokens need a width above {sizes.tokens}")
        return self.width - sizes.tokens

    def inner(self, sizes: Sizes) -> Sizes:
        """What an attention layer of the network reads and writes."""
        return Sizes(sizes.tokens, self.width, self.width)

    def parameters(self, sizes: Sizes, vocabulary: int = 0) -> int:
        """Number of trained parameters, in closed form; the module is tested against it."""
        width, bias, token = self.width, int(self.bias), self.token_width(sizes)
        total = sizes.features * (vocabulary - 1) * token if vocabulary else (sizes.features + bias) * token
        total += sizes.tokens * width if self.positions == "learned" else 0
        norm = {"none": 0, "layer": 2 * width, "rms": width}[self.norm]
        total += self.depth * norm * (1 if self.mlp == "none" else 2) + self.final_norm * norm
        total += sum(mechanism.parameters(self.inner(sizes)) for mechanism in self.layers())
        square = width * (width + bias)
        per_mlp = {
            "none": 0,
            "relu-stack": self.stack * square,
            "swiglu": self.hidden * (3 * width + 2 * bias) + bias * width,
        }.get(self.mlp, self.hidden * (2 * width + bias) + bias * width)
        total += self.depth * per_mlp
        if self.head != "tied":
            total += sizes.outputs * (width + bias) + (square if self.head == "mlp" else 0)
        return total

    def flops(self, sizes: Sizes, vocabulary: int = 0) -> int:
        """Operations of the matrix products of one forward pass of one sequence, a multiply-add being two."""
        width = self.width
        per_token = 0 if vocabulary else sizes.features * self.token_width(sizes)
        per_mlp = {"relu-stack": self.stack * width * width, "swiglu": 3 * self.hidden * width}
        per_token += self.depth * self.loops * per_mlp.get(self.mlp, 2 * self.hidden * width)
        per_token += width * sizes.outputs + (width * width if self.head == "mlp" else 0)
        return 2 * sizes.tokens * per_token + self.attention_flops(sizes)

    def attention_flops(self, sizes: Sizes) -> int:
        """The part of `flops` that is spent in the attention layers, their projections included."""
        return self.loops * sum(mechanism.flops(self.inner(sizes)) for mechanism in self.layers())


def _draw(linear: nn.Linear, generator: torch.Generator, gain: float = 1.0) -> None:
    linear.weight.data.normal_(0.0, (gain / linear.in_features) ** 0.5, generator=generator)
    if linear.bias is not None:
        linear.bias.data.zero_()


def _norm(kind: Norm, width: int) -> nn.Module:
    return {"none": nn.Identity, "layer": nn.LayerNorm, "rms": nn.RMSNorm}[kind](width)


class Embedding(nn.Module):
    """Ids: the sum over the slots of a token of one vector for each id; id 0 is padding and has the zero vector.
    Real features: a linear map. Learned or one-hot positions are added or appended."""

    def __init__(self, config: NetworkConfig, sizes: Sizes, vocabulary: int) -> None:
        super().__init__()
        token = config.token_width(sizes)
        self.table = nn.Parameter(torch.empty(sizes.features, vocabulary - 1, token)) if vocabulary else None
        self.linear = None if vocabulary else nn.Linear(sizes.features, token, config.bias)
        self.positions = nn.Parameter(torch.empty(sizes.tokens, token)) if config.positions == "learned" else None
        self.one_hot = sizes.tokens if config.positions == "one-hot" else 0

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew: tokens and positions start with entries of variance 1."""
        if self.table is not None:
            self.table.data.normal_(0.0, len(self.table) ** -0.5, generator=generator)
        if self.linear is not None:
            _draw(self.linear, generator)
        if self.positions is not None:
            self.positions.data.normal_(0.0, 1.0, generator=generator)

    def vectors(self) -> Float[Tensor, "slots vocabulary width"]:
        """The vector of every id, that of id 0 being zero."""
        assert self.table is not None
        return pad(self.table, (0, 0, 1, 0))

    def forward(
        self, inputs: Float[Tensor, "batch tokens features"] | Int[Tensor, "batch tokens slots"]
    ) -> Float[Tensor, "batch tokens width"]:
        if self.linear is not None:
            x: Tensor = self.linear(inputs)
        else:
            slots = zip(inputs.unbind(-1), self.vectors(), strict=True)
            x = reduce(torch.add, (nn.functional.embedding(ids, vectors) for ids, vectors in slots))
        tokens = x.shape[1]
        if self.positions is not None:
            return x + self.positions[:tokens]
        if self.one_hot:
            places = torch.eye(self.one_hot, dtype=x.dtype, device=x.device)[:tokens]
            return torch.cat([x, places.expand(len(x), -1, -1)], -1)
        return x


class FeedForward(nn.Module):
    """The MLP of a block; see `NetworkConfig.mlp`."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.kind = config.mlp
        width, hidden, bias = config.width, config.hidden, config.bias
        if self.kind == "relu-stack":
            self.maps = nn.ModuleList(nn.Linear(width, width, bias) for _ in range(config.stack))
        else:
            inner = [nn.Linear(width, hidden, bias) for _ in range(2 if self.kind == "swiglu" else 1)]
            self.maps = nn.ModuleList([*inner, nn.Linear(hidden, width, bias)])

    def reset(self, generator: torch.Generator) -> None:
        """He initialisation of maps that feed a ReLU or GELU, unit variance for others."""
        for index, linear in enumerate(self.maps):
            assert isinstance(linear, nn.Linear)
            rectified = self.kind == "relu-stack" or (self.kind in ("relu", "gelu") and index == 0)
            _draw(linear, generator, 2.0 if rectified else 1.0)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        if self.kind == "relu-stack":
            for linear in self.maps:
                x = linear(x).relu()
            return x
        first: Tensor = self.maps[0](x)
        if self.kind == "swiglu":
            hidden = silu(first) * self.maps[1](x)
        else:
            hidden = gelu(first) if self.kind == "gelu" else first.relu()
        result: Tensor = self.maps[-1](hidden)
        return result


class Block(nn.Module):
    """x <- x + attention(norm(x)); x <- x + mlp(norm(x)), or without the residual terms."""

    def __init__(self, config: NetworkConfig, mechanism: AnyMechanism, sizes: Sizes) -> None:
        super().__init__()
        self.residual = config.residual
        self.attention_norm = _norm(config.norm, config.width)
        self.attention = build_mechanism(mechanism, sizes)
        self.mlp_norm = None if config.mlp == "none" else _norm(config.norm, config.width)
        self.mlp = None if config.mlp == "none" else FeedForward(config)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew."""
        self.attention.reset(generator)
        if self.mlp is not None:
            self.mlp.reset(generator)

    def forward(
        self, x: Float[Tensor, "batch tokens width"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens width"]:
        y: Tensor = self.attention(self.attention_norm(x), valid)
        x = x + y if self.residual else y
        if self.mlp is None or self.mlp_norm is None:
            return x
        z: Tensor = self.mlp(self.mlp_norm(x))
        return x + z if self.residual else z


class Network(nn.Module):
    """A transformer: embedding; `loops` times the `depth` blocks; final norm; head.

    Args:
        config: what it is made of.
        sizes: longest sequence, numbers (or ids) per token, outputs per token.
        vocabulary: number of ids, padding included; 0 if inputs are real features.

    Raises:
        BadInput: if one-hot positions do not fit, or a head cannot be tied.
    """

    def __init__(self, config: NetworkConfig, sizes: Sizes, vocabulary: int = 0) -> None:
        super().__init__()
        self.config = config
        if vocabulary == 1:
            raise BadInput("a vocabulary of padding alone has no tokens")
        if config.head == "tied" and (sizes.features != 1 or sizes.outputs != vocabulary):
            raise BadInput("head 'tied' needs one id per token and as many outputs as ids")
        if config.head == "tied" and config.positions == "one-hot":
            raise BadInput("head 'tied' needs embeddings as wide as the network; positions must not be 'one-hot'")
        self.embedding = Embedding(config, sizes, vocabulary)
        self.blocks = nn.ModuleList(Block(config, layer, config.inner(sizes)) for layer in config.layers())
        self.final_norm = _norm(config.norm if config.final_norm else "none", config.width)
        self.head_hidden = nn.Linear(config.width, config.width, config.bias) if config.head == "mlp" else None
        self.head = None if config.head == "tied" else nn.Linear(config.width, sizes.outputs, config.bias)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew; norms start at weight 1 and bias 0."""
        self.embedding.reset(generator)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.reset(generator)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        if self.head_hidden is not None:
            _draw(self.head_hidden, generator, 2.0)
        if self.head is not None:
            _draw(self.head, generator)

    def forward(
        self,
        inputs: Float[Tensor, "batch tokens features"] | Int[Tensor, "batch tokens slots"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Outputs of every token; those at padding mean nothing.

        Args:
            inputs: real features, or ids, 0 being padding.
            valid: True at real tokens. For ids, tokens with any id other than 0, if not given.
        """
        if valid is None and not inputs.is_floating_point():
            valid = (inputs != 0).any(-1)
        embedded: Tensor = self.embedding(inputs)
        x = embedded
        for loop in range(self.config.loops):
            if loop and self.config.injection:
                x = x + embedded
            for block in self.blocks:
                x = block(x, valid)
        x = self.final_norm(x)
        if self.head is None:
            return x @ self.embedding.vectors()[0].T * self.config.width**-0.5
        if self.head_hidden is not None:
            x = self.head_hidden(x).relu()
        result: Tensor = self.head(x)
        return result
