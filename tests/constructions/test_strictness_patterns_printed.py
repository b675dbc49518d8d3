from __future__ import annotations

import pytest

from headcount.models import AttentionConfig, Sizes
from headcount.tasks.operators import cyclic_shift
from headcount.theory.constructions import (
    NoConstruction,
    count_patterns,
    deviation,
    nonlinearity,
    shift_example,
    strictness,
    symmetric_although_large,
    symmetric_example,
    transposed_query_examples,
    workspace_example,
)
from headcount.theory.constructions.construction import gaussian_inputs
from headcount.theory.constructions.inclusion import random_layer
from headcount.theory.constructions.printed import transposed_query_gap


@pytest.mark.parametrize(("tokens", "features", "width"), [(1, 2, 3), (5, 3, 7), (11, 7, 2)])
def test_strictness_pair(tokens: int, features: int, width: int) -> None:
    printed, corrected = (strictness(sign, tokens=tokens, features=features, value_width=width) for sign in (1, -1))
    x = printed.inputs[:, 0]
    assert deviation(printed) < 1e-14
    assert deviation(corrected) < 1e-14
    assert nonlinearity(printed.module, x, tokens) < 1e-13
    assert nonlinearity(corrected.module, x, tokens) > 0.1


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("rope", ["none", "token"])
@pytest.mark.parametrize("score", ["softmax", "hard"])
def test_multi_head_attention_is_linear_on_repeated_tokens(mask: str, rope: str, score: str) -> None:
    config = AttentionConfig.parse(
        {
            "heads": 3,
            "score": score,
            "mask": mask,
            "rope": rope,
            "content": "features",
            "value_content": "features",
            "query_width": 4,
        }
    )
    layer = random_layer(config, Sizes(5, 2, 7), seed=0)
    gap = nonlinearity(layer, gaussian_inputs(11, 1, 2)[:, 0], 5)
    # Rotary positions let hard attention pick another token, but all values are equal.
    assert gap < 1e-13


def test_strictness_refuses() -> None:
    with pytest.raises(NoConstruction, match="sign = 0"):
        strictness(0)


@pytest.mark.parametrize(
    ("heads", "pseudo", "tokens"),
    [(2, 2, 7), (2, 3, 7), (3, 2, 7), (3, 3, 11), (3, 1, 7), (2, 5, 11), (5, 2, 7)],
)
def test_pattern_counts(heads: int, pseudo: int, tokens: int) -> None:
    count = count_patterns(heads, pseudo, tokens)
    assert count.blocks == heads * pseudo**2
    assert count.score_rank == min(heads**2, count.blocks)
    assert count.head_rank == min(heads, pseudo) ** 2
    assert count.softmax_rank == count.blocks
    assert count.mixed_rank == min(heads**2, count.blocks)


def test_pattern_counts_refuse_too_few_tokens() -> None:
    with pytest.raises(NoConstruction, match="cannot be independent"):
        count_patterns(3, 3, 5)


def test_printed_examples() -> None:
    example = workspace_example()
    assert not example.agrees
    assert example.differences == ((1, 2),)
    assert example.recomputed[1] == (2, 3, 1)
    shift = shift_example()
    assert not shift.agrees
    assert shift.printed == tuple(zip(*shift.recomputed, strict=True))
    assert symmetric_example().agrees
    assert symmetric_although_large()


def test_transposed_query_is_right_only_for_symmetric_squares() -> None:
    symmetric, general = transposed_query_examples()
    assert symmetric < 1e-15
    assert general > 0.5
    assert transposed_query_gap(cyclic_shift(4)) == 0
    assert transposed_query_gap(cyclic_shift(5)) == pytest.approx(2**0.5)
