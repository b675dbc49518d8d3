"""Mechanisms of the literature that compute nothing multi-head attention does not: their extra maps multiply
into its weights. (Interleaved heads with P = 1 stand in `inclusion.fold`.)

A linear map across heads or within a head, applied to queries, keys or values before the scores, is a map of
columns of W_Q, W_K, W_V; one applied to head outputs is a map of rows of W_O. A rotation shared by all heads of
a token commutes with maps across heads, so rotary positions do not disturb the first and the last kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headcount.models import ATTENTION, Sizes, build_mechanism
from headcount.theory.constructions.construction import Construction, NoConstruction, fill, gaussian_inputs, identity

Weights = dict[str, Tensor]


def _multi_query(w: Weights, heads: int) -> tuple[dict[str, object], Weights]:
    """MQA, GQA: key and value head g serves the r = H / G query heads g r .. g r + r - 1; repeat it r times."""
    for part in ("key", "value"):
        w[f"{part}.features"] = w[f"{part}.features"].repeat_interleave(heads // len(w[f"{part}.features"]), 0)
    return {"attention": "mha", "heads": heads}, w


def _knocking(w: Weights, heads: int) -> tuple[dict[str, object], Weights]:
    """Knocking-Heads, linear: one d x d map T shared by all heads after the projection; W T."""
    for part in ("query", "key", "value"):
        w[f"{part}.features"] = w[f"{part}.features"] @ w.pop(f"knock_{part}")
    return {"attention": "mha", "heads": heads}, w


def _explicit(w: Weights, heads: int) -> tuple[dict[str, object], Weights]:
    """MEA without its norm: K_h = sum_g mix[g, h] K_g, values alike."""
    for part in ("key", "value"):
        w[f"{part}.features"] = torch.einsum("gh,gfw->hfw", w.pop(f"mix_{part}"), w[f"{part}.features"])
    return {"attention": "mha", "heads": heads}, w


def _virtual(w: Weights, heads: int) -> tuple[dict[str, object], Weights]:
    """VHA: query head (g, h) is q_h premix[g], and o <- o + up (down^T o) across heads: GQA with G H query heads."""
    premix, down, up = w.pop("premix"), w.pop("down"), w.pop("up")
    w["query.features"] = torch.einsum("hfw,gwv->ghfv", w["query.features"], premix).flatten(0, 1)
    w["join.weight"] = torch.einsum("hg,hwo->gwo", identity(len(up)) + up @ down.T, w["join.weight"])
    return {"attention": "gqa", "heads": heads * len(premix), "groups": len(premix)}, w


FOLDS: dict[str, tuple[dict[str, object], Callable[[Weights, int], tuple[dict[str, object], Weights]]]] = {
    "mqa": ({}, _multi_query),
    "gqa": ({"groups": 2}, _multi_query),
    "knocking-heads": ({"form": "linear"}, _knocking),
    "explicit": ({"norm": False, "base_heads": 2}, _explicit),
    "virtual-heads": ({"groups": 2}, _virtual),
}
"""Mechanism -> the form of it that folds, and how."""


def folded_mechanism(name: str, seed: int = 0, heads: int = 4, sizes: Sizes = Sizes(7, 5, 11)) -> Construction:  # noqa: B008
    """A layer with random weights, as semantics, and the multi-head (or grouped) layer it folds into, as module.

    Raises:
        NoConstruction: if the mechanism does not fold, or has an entry of its own (interleaved heads).
    """
    if name not in FOLDS:
        raise NoConstruction(f"'{name}' has no fold here; there are folds of {', '.join(FOLDS)}")
    fields, fold = FOLDS[name]
    widths = {"query_width": 6, "value_width": 3}
    if name == "knocking-heads":
        widths = {"query_width": 6, "value_width": 6}
    config = ATTENTION[name].config.parse({"attention": name, "heads": heads, **widths, **fields})
    layer = build_mechanism(config, sizes).double()
    generator = torch.Generator().manual_seed(seed)
    layer.reset(generator)
    for parameter in layer.parameters():
        # Off the identity that mixings start from, where a fold would hold trivially.
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    target, weights = fold({key: value.detach().clone() for key, value in layer.named_parameters()}, heads)
    plain = ATTENTION[str(target["attention"])].config.parse({**target, **widths})
    module: nn.Module = fill(build_mechanism(plain, sizes), weights)

    def semantics(x: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = layer(x)
        return result

    return Construction(
        name=f"fold {name}",
        statement=f"{config.label} is {'grouped-query' if target['attention'] == 'gqa' else 'multi-head'} attention",
        source=config.source,
        module=module,
        semantics=semantics,
        inputs=gaussian_inputs(5, sizes.tokens, sizes.features, seed),
    )
