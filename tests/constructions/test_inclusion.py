from __future__ import annotations

import pytest
import torch

from headcount.models import AttentionConfig, Sizes
from headcount.theory.constructions import (
    NoConstruction,
    Route,
    counterexample,
    deviation,
    every_route,
    fold,
    folding,
    include,
    inclusion,
)
from headcount.theory.constructions.inclusion import random_layer

SIZES, HEADS = Sizes(5, 2, 7), 3
ROUTES = list(every_route((1, 2, 3)))


def test_every_exact_route_is_exact() -> None:
    exact = [route for route in ROUTES if route.exact]
    contents = [("full", "full"), ("features", "features"), ("positions", "full")]
    for index, route in enumerate(exact):
        content, value_content = contents[index % 3]
        fields = {
            "content": content,
            "value_content": value_content,
            "output": ("concat", "mixed")[index % 2],
        }
        assert deviation(inclusion(route, SIZES, HEADS, query_width=4, **fields)) < 1e-13, route
    assert len(exact) == 492


def test_every_other_route_has_a_counterexample() -> None:
    for route in ROUTES:
        if not route.exact:
            found = counterexample(route)
            assert found is not None, route
            assert found.deviation > 1e-3
            assert found.sizes.tokens <= 4


@pytest.mark.parametrize("route", [route for route in ROUTES if route.exact][::17])
def test_exact_routes_have_no_counterexample(route: Route) -> None:
    assert counterexample(route, longest=3, threshold=1e-12) is None


def test_smallest_counterexamples_by_hand() -> None:
    # Flat mask, pseudo-head 1: token 2 sees token 1 twice and itself once: (2 * 1 + 2) / 3, not 3 / 2.
    flat = counterexample(Route("softmax", "flat-causal", "none", 2, "full", "first", divided=False))
    assert flat is not None
    assert flat.weights == "ones"
    assert flat.multi_head.flatten().tolist() == pytest.approx([1, 3 / 2])
    assert flat.interleaved.flatten().tolist() == pytest.approx([1, 4 / 3])
    # Linear, printed collapse: P copies of the only key add up.
    linear = counterexample(Route("linear", "none", "none", 3, "per-head", "first", divided=False))
    assert linear is not None
    assert linear.sizes.tokens == 1
    assert linear.interleaved.item() == pytest.approx(3 * linear.multi_head.item())


def test_the_printed_collapse_is_exact_only_without_masks_and_without_linear_scores() -> None:
    printed = {
        (route.score, route.mask, route.rope)
        for route in ROUTES
        if route.pseudo == 2 and route.selector == "first" and not route.divided and route.exact
    }
    assert printed == {
        (score, mask, rope)
        for score in ("softmax", "hard")
        for mask in ("none", "causal")
        for rope in ("none", "token")
    }


@pytest.mark.parametrize("score", ["linear", "softmax", "hard"])
@pytest.mark.parametrize("mask", ["none", "causal", "flat-causal"])
@pytest.mark.parametrize("rope", ["none", "token", "virtual"])
def test_one_pseudo_head_folds(score: str, mask: str, rope: str) -> None:
    for collapse, output, content in (("full", "mixed", "full"), ("per-head", "concat", "positions")):
        config = AttentionConfig.parse(
            {
                "attention": "iha",
                "heads": HEADS,
                "pseudo_heads": 1,
                "score": score,
                "mask": mask,
                "rope": rope,
                "collapse": collapse,
                "output": output,
                "content": content,
                "query_width": 4,
            }
        )
        assert deviation(folding(config, SIZES)) < 1e-12


def test_folding_then_including_returns_the_function() -> None:
    config = AttentionConfig(attention="iha", heads=HEADS, pseudo_heads=1, query_width=4)
    layer = random_layer(config, SIZES, seed=5)
    folded = fold(layer, SIZES)
    back = include(folded, SIZES, Route("softmax", "none", "none", 2, "full", "mean", divided=False))
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(layer(x), back(x), atol=1e-12)


def test_refusals() -> None:
    softmax = Route("softmax", "flat-causal", "none", 2, "full", "first", divided=False)
    with pytest.raises(NoConstruction, match="only the last pseudo-head"):
        inclusion(softmax, SIZES, HEADS)
    with pytest.raises(NoConstruction, match="different angles"):
        inclusion(Route("softmax", "none", "virtual", 2, "full", "last", divided=False), SIZES, HEADS)
    layer = random_layer(AttentionConfig(heads=HEADS, score="linear"), SIZES, seed=0)
    with pytest.raises(NoConstruction, match="score 'softmax', the layer has 'linear'"):
        include(layer, SIZES, Route("softmax", "none", "none", 2, "full", "last", divided=False))
    with pytest.raises(NoConstruction, match="only P = 1 folds"):
        folding(AttentionConfig(attention="iha", heads=HEADS, pseudo_heads=2), SIZES)
    with pytest.raises(NoConstruction, match="nothing to fold"):
        folding(AttentionConfig(heads=HEADS), SIZES)
