"""Contraction in the cheapest order is einsum, and the order is the cheap one."""

import pytest
import torch

from headcount.models import ModelConfig, Sizes
from headcount.models.attention import build_attention
from headcount.models.attention.heads import _contraction_order, contract


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("hin,hjn,bjf,hfo->bio", [(3, 4, 2), (3, 5, 2), (6, 5, 1), (3, 1, 7)]),
        ("min,sjn,bjf,msfo->bio", [(2, 4, 3), (2, 4, 3), (5, 4, 2), (2, 2, 2, 3)]),
        ("mhg,svg,vfw,hwo->msfo", [(2, 3, 4), (2, 3, 4), (3, 1, 5), (3, 5, 6)]),
        ("hij,hjo->io", [(2, 3, 4), (2, 4, 5)]),
        ("hij->ij", [(2, 3, 4)]),
    ],
)
def test_contract_is_einsum(equation, shapes):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    assert torch.allclose(contract(equation, *parts), torch.einsum(equation, *parts), rtol=1e-12)


def test_few_patterns_of_many_tokens_are_never_made_into_one_matrix():
    # H = 2, N = 77, 32 outputs, 32 examples: 2,464 x 77 entries would cost six times the rest.
    steps = _contraction_order("min,sjn,bjf,msfo->bio", (2, 77, 77), (2, 77, 77), (32, 77, 1), (2, 2, 1, 32))
    assert not any({"i", "j"} <= set(step.split("->")[1]) for _, step in steps)
    # With as many heads as tokens and outputs it is the cheapest.
    steps = _contraction_order("hin,hjn,bjf,hfo->bio", (26, 26, 26), (26, 26, 26), (32, 26, 1), (26, 1, 25))
    assert any({"i", "j", "o"} <= set(step.split("->")[1]) for _, step in steps)


@pytest.mark.parametrize(("attention", "collapse"), [("mha", "full"), ("iha", "full"), ("iha", "per-head")])
@pytest.mark.parametrize("score", ["linear", "softmax"])
@pytest.mark.parametrize("values", ["features", "full"])
def test_the_positional_shortcut_equals_patterns_applied_to_every_example(attention, collapse, score, values):
    config = ModelConfig(
        attention=attention, heads=3, score=score, content="positions", value_content=values, collapse=collapse,
        pseudo_heads=2 if attention == "iha" else None,
    )  # fmt: skip
    sizes = Sizes(5, 2, 4)
    layer = build_attention(config, sizes).double()
    layer.reset(torch.Generator().manual_seed(0))
    x = torch.randn(7, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    patterns, read = layer.patterns(x), layer.value(x).expand(7, -1, -1, -1)
    equation = "hij,bhjw,hwo->bio" if attention == "mha" else "hvij,bvjw,hwo->bio"
    expected = torch.einsum(equation, patterns, read, layer.join.weight)
    assert torch.allclose(layer(x), expected, rtol=1e-10)
