from __future__ import annotations

import pytest
import torch

from headcount.config import BadInput
from headcount.models import AttentionConfig, Sizes
from headcount.models.attention import InterleavedHeadAttention, MultiHeadAttention
from headcount.models.attention.grouped import GroupedQueryAttention
from headcount.theory.constructions import (
    Construction,
    NoConstruction,
    catalogue,
    deviation,
    distance_to_limit,
)
from headcount.theory.constructions.construction import (
    compile_attention,
    identity,
    integer_inputs,
    owned_outputs,
    relative_deviation,
)

from .mutations import attention_of

CATALOGUE = list(catalogue())


@pytest.mark.parametrize("construction", CATALOGUE, ids=lambda c: c.name)
def test_weights_compute_the_semantics(construction: Construction) -> None:
    assert deviation(construction) <= construction.tolerance


def test_names_are_distinct_and_every_text_is_there() -> None:
    names = [construction.name for construction in CATALOGUE]
    assert len(set(names)) == len(names) == 141
    assert all(construction.statement and construction.source for construction in CATALOGUE)


def test_modules_are_the_trained_classes_in_float64() -> None:
    for construction in CATALOGUE:
        attention = attention_of(construction.module)
        assert isinstance(attention, MultiHeadAttention | InterleavedHeadAttention | GroupedQueryAttention)
        assert all(parameter.dtype == torch.float64 for parameter in construction.module.parameters())


def test_only_families_are_away_from_their_limit() -> None:
    for construction in CATALOGUE:
        away = "border" in construction.name or ("beta=" in construction.name and construction.name.endswith("concat"))
        assert (distance_to_limit(construction) > 1e-6) == away, construction.name


def test_deviation_is_infinite_for_wrong_shapes_and_values() -> None:
    ones = torch.ones(2, 3)
    assert relative_deviation(ones, ones) == 0
    assert relative_deviation(ones + 0.5, 2 * ones) == 0.25
    assert relative_deviation(ones, torch.zeros(2, 3)) == 1
    assert relative_deviation(ones[:1], ones) == float("inf")
    assert relative_deviation(ones * float("nan"), ones) == float("inf")


def test_compile_refuses_unknown_names_and_shapes() -> None:
    config, sizes = AttentionConfig(heads=2), Sizes(5, 3, 7)
    with pytest.raises(KeyError, match="mix_query"):
        compile_attention(config, sizes, {"mix_query": identity(2)})
    with pytest.raises(ValueError, match="shape"):
        compile_attention(config, sizes, {"key.positions": identity(5)})
    assert not any(p.any() for p in compile_attention(config, sizes, {}).parameters())


@pytest.mark.parametrize(("outputs", "heads"), [(7, 3), (9, 3), (5, 5), (11, 4), (2, 3)])
def test_owned_outputs_are_those_of_concatenated_heads(outputs: int, heads: int) -> None:
    config = AttentionConfig(heads=heads, output="concat")
    selection = compile_attention(config, Sizes(5, 2, outputs), {}).join.weight
    assert {tuple(row) for row in selection.nonzero().tolist()} == set(owned_outputs(outputs, heads))


def test_integer_inputs_enumerate_small_domains() -> None:
    assert len(integer_inputs(3, 0, 4)) == 125
    assert len({tuple(row) for row in integer_inputs(3, 0, 4).flatten(1).tolist()}) == 125
    many = integer_inputs(17, 2, 5)
    assert many.shape == (64, 17, 1)
    assert set(many.unique().tolist()) == {2.0, 3.0, 4.0, 5.0}


def test_refusals_are_input_errors() -> None:
    assert issubclass(NoConstruction, BadInput)
