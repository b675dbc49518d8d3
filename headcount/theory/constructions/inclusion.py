"""Multi-head attention inside interleaved head attention, and back for P = 1 (paper Sec. 4.1, B.1).

Inclusion. Give all P pseudo-heads of head h the queries, keys and values of head h,

    mix[m, h, p] = 1(m = h) for queries, keys, values;    collapse[h, h, p] = r_p,

so the virtual tokens (n, 1) .. (n, P) are copies of token n. What output pseudo-head p computes, and so which
r gives multi-head attention back, depends on the score, the mask and the rotary positions:

    softmax, hard    P equal keys share the weight of one: every p gives the head's output; sum_p r_p = 1.
    linear           P equal keys add up: every p gives P times the head's output; sum_p r_p = 1 / P.
    causal           the mask on tokens keeps or drops all copies of a token together: as above.
    flat-causal      (n, p) sees P copies of earlier tokens but only p of its own. Only p = P sees all: r must
                     select the last pseudo-head.
    rope virtual     copy p of token n is turned by the angle of n P + p: copies differ, and distances
                     between tokens count P times. No r is exact (P >= 2).

The paper prints r = (1, 0, .., 0) for every case. `Route.exact` states the rule, `counterexample` finds the
smallest layer on which an inexact route differs.

Fold. With P = 1 there is one virtual token a token, so pseudo-heads are linear maps across heads, which fold:

    W_Q'[h] = sum_m mix_query[m, h] W_Q[m]   (keys, values alike),   W_O'[g] = sum_h collapse[h, g] W_O[h].

A rotation is the same for all heads of a token, so it commutes with the mixing; masks and scores see the
folded queries and keys. Concatenated heads become a multi-head layer with W_O.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from headcount.models import AttentionConfig, Sizes
from headcount.models.attention import InterleavedHeadAttention, MultiHeadAttention
from headcount.models.attention.scores import Score
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    compile_attention,
    gaussian_inputs,
    identity,
    relative_deviation,
)

Selector = Literal["first", "last", "mean"]
Mask = Literal["none", "causal", "flat-causal"]
Rope = Literal["none", "token", "virtual"]
Collapse = Literal["full", "per-head"]


@dataclass(frozen=True)
class Route:
    """One way to write multi-head attention as interleaved head attention.

    Attributes:
        score, mask, rope, collapse: of the interleaved layer. The multi-head layer has the same score, mask
            causal for either causal one, rope token for either rotary one.
        pseudo: P.
        selector: r is the first or the last unit vector, or the mean 1 / P.
        divided: r is divided by P.
    """

    score: Score
    mask: Mask
    rope: Rope
    pseudo: int
    collapse: Collapse
    selector: Selector
    divided: bool

    @property
    def label(self) -> str:
        """The choices in one line."""
        total = "R/P" if self.divided else "R"
        return f"{self.score} {self.mask} {self.rope} P={self.pseudo} {self.collapse} {self.selector} {total}"

    @property
    def obstacle(self) -> str | None:
        """Why the route is not exact; None if it is."""
        if self.pseudo == 1:
            return None
        if self.rope == "virtual":
            return "virtual rotary positions turn the copies of a token by different angles"
        if self.divided and self.score != "linear":
            return "normalised weights of P copies already sum to 1, so r must too"
        if not self.divided and self.score == "linear":
            return "linear weights of P copies add up to P, so r must sum to 1 / P"
        if self.mask == "flat-causal" and self.selector != "last":
            return "under the flat mask only the last pseudo-head sees all copies of its own token"
        return None

    @property
    def exact(self) -> bool:
        """Whether the interleaved layer equals the multi-head layer for all weights and inputs."""
        return self.obstacle is None

    def weights(self) -> Tensor:
        """r, shape (P,)."""
        P = self.pseudo
        r = torch.full((P,), 1.0 / P, dtype=torch.float64)
        if self.selector != "mean":
            r = identity(P)[0 if self.selector == "first" else P - 1]
        return r / P if self.divided else r

    def multi_head(self, heads: int, **rest: object) -> AttentionConfig:
        """The configuration that is to be included."""
        mask = "none" if self.mask == "none" else "causal"
        rope = "none" if self.rope == "none" else "token"
        return AttentionConfig.parse({"heads": heads, "score": self.score, "mask": mask, "rope": rope, **rest})


def every_route(pseudo_heads: tuple[int, ...] = (1, 2, 3)) -> Iterator[Route]:
    """All routes with the given numbers of pseudo-heads."""
    choices = (
        get_args(Score),
        get_args(Mask),
        get_args(Rope),
        pseudo_heads,
        get_args(Collapse),
        get_args(Selector),
    )
    for score, mask, rope, pseudo, collapse, selector, divided in itertools.product(*choices, (False, True)):
        yield Route(score, mask, rope, pseudo, collapse, selector, divided)


def include(layer: MultiHeadAttention, sizes: Sizes, route: Route) -> InterleavedHeadAttention:
    """The interleaved layer that a route makes of a multi-head layer, exact or not.

    Raises:
        NoConstruction: if the layer's score, mask or rotary positions are not those the route starts from.
    """
    config = layer.config
    expected = route.multi_head(config.heads)
    for field in ("score", "mask", "rope"):
        if getattr(config, field) != getattr(expected, field):
            raise NoConstruction(
                f"the route includes {field} '{getattr(expected, field)}', the layer has '{getattr(config, field)}'"
            )
    H, P = config.heads, route.pseudo
    n, w = config.widths(sizes)
    own = identity(H)[:, :, None].repeat(1, 1, P)
    r = route.weights()
    shared = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    interleaved = config.changed(
        attention="iha",
        pseudo_heads=P,
        mask=route.mask,
        rope=route.rope,
        collapse=route.collapse,
        query_width=n,
        value_width=w,
        inverse_temperature=layer.inverse_temperature,
    )
    copies = {"mix_query": own, "mix_key": own, "mix_value": own}
    collapse = own * r if route.collapse == "full" else r.expand(H, P)
    module = compile_attention(interleaved, sizes, shared | copies | {"collapse": collapse})
    assert isinstance(module, InterleavedHeadAttention)
    return module


def random_layer(config: AttentionConfig, sizes: Sizes, seed: int) -> MultiHeadAttention | InterleavedHeadAttention:
    """A layer as training starts it, in float64."""
    module = compile_attention(config, sizes, {})
    module.reset(torch.Generator().manual_seed(seed))
    return module


def inclusion(route: Route, sizes: Sizes, heads: int, seed: int = 0, **rest: object) -> Construction:
    """A random multi-head layer compiled into the interleaved one.

    Args:
        rest: further fields of the `AttentionConfig`, such as content or output.

    Raises:
        NoConstruction: if the route is not exact, with the obstacle.
    """
    if route.obstacle is not None:
        raise NoConstruction(f"{route.label}: {route.obstacle}")
    layer = random_layer(route.multi_head(heads, **rest), sizes, seed)
    assert isinstance(layer, MultiHeadAttention)
    return Construction(
        name=f"inclusion {route.label}",
        statement="interleaved head attention contains multi-head attention",
        source="Sec. 4.1, B.1",
        module=include(layer, sizes, route),
        semantics=lambda x: layer(x).detach(),
        inputs=gaussian_inputs(7, sizes.tokens, sizes.features, seed),
    )


@dataclass(frozen=True)
class Counterexample:
    """A multi-head layer that a route gets wrong: sizes, the input, and both outputs."""

    route: Route
    sizes: Sizes
    heads: int
    weights: str
    inputs: Tensor
    multi_head: Tensor
    interleaved: Tensor

    @property
    def deviation(self) -> float:
        """Largest difference over the largest output of multi-head attention."""
        return relative_deviation(self.interleaved, self.multi_head)


def counterexample(route: Route, longest: int = 4, seeds: int = 8, threshold: float = 1e-3) -> Counterexample | None:
    """The smallest layer on which a route differs from multi-head attention by more than `threshold`: fewest
    tokens with one head, one feature and one output on x = (1, 2, ..), weights that are all 1 (but W_Q = 0
    unless the score is linear, so that all keys weigh the same) before random ones.

    Returns:
        None if there is none up to `longest` tokens, as there must be for an exact route.
    """
    config = route.multi_head(1, content="features", value_content="features", query_width=2, value_width=1)
    for tokens in range(1, longest + 1):
        sizes = Sizes(tokens, 1, 1)
        x = torch.arange(1, tokens + 1, dtype=torch.float64)[None, :, None]
        ones = {"key.features": torch.ones(1, 1, 2), "value.features": torch.ones(1, 1, 1)}
        ones["join.weight"] = torch.ones(1, 1, 1)
        if route.score == "linear":
            ones["query.features"] = torch.ones(1, 1, 2)
        plain = compile_attention(config, sizes, ones)
        layers = [("ones", plain)] + [
            (f"random, seed {seed}", random_layer(config, sizes, seed)) for seed in range(seeds)
        ]
        for weights, layer in layers:
            assert isinstance(layer, MultiHeadAttention)
            with torch.no_grad():
                expected, outputs = layer(x), include(layer, sizes, route)(x)
            if relative_deviation(outputs, expected) > threshold:
                return Counterexample(route, sizes, 1, weights, x, expected, outputs)
    return None


def fold(layer: InterleavedHeadAttention, sizes: Sizes) -> MultiHeadAttention:
    """The multi-head layer with output projection that equals an interleaved layer with P = 1.

    Raises:
        NoConstruction: if P > 1: a head then sees P^2 score blocks, which no single head has.
    """
    config = layer.config
    if config.pseudo != 1:
        raise NoConstruction(f"P = {config.pseudo}: only P = 1 folds into multi-head attention")
    n, w = config.widths(sizes)
    mixings = {"query": layer.mix_query, "key": layer.mix_key, "value": layer.mix_value}
    weights = {}
    for name, mixing in mixings.items():
        for rows, base in getattr(layer, name).named_parameters():
            weights[f"{name}.{rows}"] = torch.einsum("mh,mrw->hrw", mixing[..., 0], base).detach()
    collapse = layer.collapse_matrix()[..., 0]
    weights["join.weight"] = torch.einsum("hg,hwo->gwo", collapse, layer.join.weight).detach()
    folded = config.changed(
        attention="mha",
        pseudo_heads=None,
        mask="none" if config.mask == "none" else "causal",
        rope="none" if config.rope == "none" else "token",
        output="mixed",
        query_width=n,
        value_width=w,
        inverse_temperature=layer.inverse_temperature,
    )
    module = compile_attention(folded, sizes, weights)
    assert isinstance(module, MultiHeadAttention)
    return module


def folding(config: AttentionConfig, sizes: Sizes, seed: int = 0) -> Construction:
    """A random interleaved layer with P = 1 compiled into a multi-head one.

    Raises:
        NoConstruction: if the configuration is not interleaved, or P > 1.
    """
    layer = random_layer(config, sizes, seed)
    if not isinstance(layer, InterleavedHeadAttention):
        raise NoConstruction("attention 'mha' has nothing to fold")
    return Construction(
        name=f"fold {config.score} {config.mask} {config.rope} {config.collapse} {config.output}",
        statement="interleaved head attention with P = 1 is multi-head attention in other coordinates",
        source="not in the paper",
        module=fold(layer, sizes),
        semantics=lambda x: layer(x).detach(),
        inputs=gaussian_inputs(7, sizes.tokens, sizes.features, seed),
    )
