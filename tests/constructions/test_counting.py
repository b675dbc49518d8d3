from __future__ import annotations

import math

import pytest
import torch

from headcount.models import Layer
from headcount.tasks.cpm3 import pair_counts
from headcount.theory.constructions import (
    NoConstruction,
    attention_parameters,
    deviation,
    histogram_count,
    modulo_count,
    printed_bound,
    printed_parameters,
    relu_count,
    softmax_error_bound,
    softmax_of_tokens,
    token_differences,
    workspace,
)
from headcount.theory.constructions.counting import ModuloCount, shifts_brute

MECHANISMS = ("mha", "iha")


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("tokens", range(2, 18))
def test_hard_attention_gathers_every_token(attention: str, tokens: int) -> None:
    construction = workspace(tokens, attention)
    assert deviation(construction) < 1e-15
    assert construction.parameters == attention_parameters(tokens, attention)
    heads = tokens if attention == "mha" else math.ceil(math.sqrt(tokens))
    assert construction.module.config.heads == heads


def test_workspace_by_hand() -> None:
    x = torch.tensor([[[1.0], [2.0], [3.0]]], dtype=torch.float64)
    expected = torch.tensor([[[1.0, 2, 3], [2, 3, 1], [3, 1, 2]]], dtype=torch.float64)
    assert torch.equal(shifts_brute(x), expected)
    for attention in MECHANISMS:
        with torch.no_grad():
            assert torch.allclose(workspace(3, attention).module(x), expected, atol=1e-15)


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("tokens", [2, 5, 9, 16])
@pytest.mark.parametrize("beta", [0.25, 1.0, 5.0, 10.0, 20.0, 300.0])
def test_finite_temperature_closed_form(attention: str, tokens: int, beta: float) -> None:
    assert deviation(workspace(tokens, attention, beta=beta)) < 1e-12
    assert deviation(workspace(tokens, attention, beta=beta, output="mixed")) < 1e-12


@pytest.mark.parametrize("attention", MECHANISMS)
def test_error_bound_is_reached_by_one_odd_token(attention: str) -> None:
    tokens, beta, high = 7, 3.0, 11.0
    construction = workspace(tokens, attention, beta=beta)
    x = torch.zeros(1, tokens, 1, dtype=torch.float64)
    x[0, 2] = high
    with torch.no_grad():
        error = float((construction.module(x) - shifts_brute(x)).abs().max())
    assert error == pytest.approx(softmax_error_bound(tokens, beta, high), rel=1e-12)


def test_errors_of_sixteen_tokens() -> None:
    """The size of the error for tokens 0 .. 11, as first measured: about 1.1, 8e-3, 4e-7."""
    bounds = [softmax_error_bound(16, beta, 11.0) for beta in (5.0, 10.0, 20.0)]
    assert bounds == pytest.approx([1.0096, 7.486e-3, 3.401e-7], rel=1e-3)


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize(
    ("tokens", "modulus", "multiplier", "high"), [(3, 5, 12, 5), (2, 7, 15, 13), (4, 3, 10, 4), (5, 2, 1, 2)]
)
def test_counts_on_every_small_input(attention: str, tokens: int, modulus: int, multiplier: int, high: int) -> None:
    for build in (modulo_count, relu_count):
        construction = build(tokens, modulus, multiplier, attention, high=high)
        assert len(construction.inputs) == (high + 1) ** tokens
        assert deviation(construction) < 1e-9


@pytest.mark.parametrize("attention", MECHANISMS)
def test_counts_on_large_random_inputs(attention: str) -> None:
    assert deviation(relu_count(11, 7, 20, attention, high=17)) < 1e-9
    assert deviation(modulo_count(13, 11, 30, attention, high=10**6)) == 0


def test_relu_count_with_negative_tokens_and_modulus_one() -> None:
    assert deviation(relu_count(3, 5, 7, "iha", low=-3, high=2)) < 1e-9
    assert deviation(relu_count(3, 1, 7, "mha", low=0, high=2)) < 1e-9


@pytest.mark.parametrize("attention", MECHANISMS)
def test_rounded_counts_survive_finite_temperature(attention: str) -> None:
    construction = relu_count(5, 3, 10, attention, high=3, beta=14.0)
    assert 0 < deviation(construction) <= construction.tolerance < 0.5
    labels = construction.semantics(construction.inputs)
    assert torch.equal(construction.outputs().round(), labels)
    cold = relu_count(5, 3, 10, attention, high=3, beta=2.0)
    assert not torch.equal(cold.outputs().round(), labels)


def test_modulo_activation_does_not_survive_finite_temperature() -> None:
    count = modulo_count(4, 3, 10, "mha", high=3)
    exact = count.module[1]
    assert isinstance(exact, ModuloCount)
    varied = torch.tensor([[[0.0], [1.0], [3.0], [2.0]]], dtype=torch.float64)
    with torch.no_grad():
        near = exact(workspace(4, "mha", beta=20.0).module(varied))
        assert exact(shifts_brute(varied)).sum() > 0
    assert near.sum() == 0


@pytest.mark.parametrize(
    ("tokens", "modulus", "multiplier"), [(3, 5, 12), (5, 3, 10), (7, 2, 3), (2, 7, 6), (4, 4, 2), (5, 1, 3)]
)
def test_one_head_solves_the_task(tokens: int, modulus: int, multiplier: int) -> None:
    construction = histogram_count(tokens, modulus, multiplier)
    assert isinstance(construction.module, Layer)
    assert construction.module.attention.config.heads == 1
    assert construction.module.attention.config.attention == "mha"
    assert len(construction.inputs) == modulus**tokens
    assert deviation(construction) < 1e-12


def test_one_head_solves_long_sequences() -> None:
    construction = histogram_count(31, 5, 12)
    assert deviation(construction) < 1e-12
    labels = pair_counts(construction.inputs.argmax(-1), 12, 5)[..., None].double()
    assert torch.equal(construction.outputs().round(), labels)


@pytest.mark.parametrize("tokens", [1, 2, 11, 29])
def test_one_softmax_head_holds_every_token(tokens: int) -> None:
    construction = softmax_of_tokens(tokens)
    assert construction.module.config.heads == 1
    assert deviation(construction) < 1e-14
    x = construction.inputs
    differences = token_differences(construction.outputs())
    assert torch.allclose(differences, (x - x[:, :1]).mT.expand_as(differences), atol=1e-12)
    # Position i knows x_i, which fixes the shift: row i holds every token.
    own = differences.diagonal(dim1=-2, dim2=-1)[..., None]
    assert torch.allclose(differences - own + x, x.mT.expand_as(differences), atol=1e-12)


def test_printed_counts() -> None:
    for tokens in (4, 9, 16, 25):
        heads = math.isqrt(tokens)
        mlp = tokens**2 * (tokens - 1) + tokens**2
        excess = tokens**3 - tokens * (tokens + 1) - 2 * tokens**2
        rest = (tokens + 1) * tokens * (tokens - 1) + tokens**2
        assert printed_parameters(tokens, "mha") - rest == attention_parameters(tokens, "mha") + excess
        assert heads**2 == tokens
        assert printed_parameters(tokens, "iha") - mlp == attention_parameters(tokens, "iha")
    assert all(printed_parameters(tokens, "iha") <= printed_bound(tokens) for tokens in range(1, 20_001))


def test_interleaving_pays_for_four_and_from_six_tokens_on() -> None:
    cheaper = [n for n in range(2, 40) if attention_parameters(n, "iha") < attention_parameters(n, "mha")]
    assert cheaper == [4, *range(6, 40)]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: workspace(1, "mha"), "no other token"),
        (lambda: workspace(4, "iha", beta=0.0), "prefer the match"),
        (lambda: workspace(4, "iha", beta=800.0), "finite"),
        (lambda: workspace(4, "iha", output="mixed"), "corrects a finite beta"),
        (lambda: modulo_count(3, 0, 2, "mha"), "M must be positive"),
        (lambda: relu_count(3, 5, -2, "mha"), "G not negative"),
        (lambda: relu_count(3, 5, 2, "mha", low=4, high=3), "there are none"),
        (lambda: relu_count(50, 5, 2, "iha", high=99), "hidden units"),
        (lambda: relu_count(2, 97, 2, "iha", low=1, high=2), "no multiple"),
        (lambda: histogram_count(0, 5, 2), "nothing to count"),
        (lambda: histogram_count(500, 29, 2), "hidden units"),
        (lambda: softmax_of_tokens(0), "nothing to gather"),
    ],
)
def test_refusals(build, reason: str) -> None:
    with pytest.raises(NoConstruction, match=reason):
        build()
