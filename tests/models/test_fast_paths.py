"""Every fast path against the equation with all weights in memory: outputs and gradients, in float64."""

import pytest
import torch

from headcount.models.attention.clift import volume_attention, volume_attention_reference
from headcount.models.attention.differential import differential_attention, differential_attention_reference
from headcount.models.attention.masks import Visibility, over_visible
from headcount.models.attention.scores import attend, softmax_attention, softmax_attention_reference
from headcount.models.attention.simplicial import trilinear_attention, trilinear_attention_reference
from headcount.models.attention.strassen import (
    composite_strassen_attention,
    strassen_attention,
    strassen_attention_reference,
)
from headcount.models.attention.talking_heads import talking_heads_attention

from .cases import build, inputs, tokens

B, H, N, WIDTH, VALUES = 2, 3, 11, 6, 5
VISIBLE = [
    Visibility(),
    Visibility("causal"),
    Visibility("none", 3),
    Visibility("causal", 2),
    Visibility("causal", 4),
    Visibility("none", 40),
]
VALID = {"all": None, "some": torch.arange(N)[None] < torch.tensor([[N], [7]]), "few": inputs(B, N, seed=9) < -0.5}
visible = pytest.mark.parametrize("visibility", VISIBLE, ids=str)
valid_tokens = pytest.mark.parametrize("valid", VALID.values(), ids=VALID)


def tensors(*shapes):
    return [inputs(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def assert_equal(fast, slow, leaves, tolerance=1e-10):
    one, two = fast(), slow()
    assert torch.allclose(one, two, atol=tolerance)
    probe = inputs(*one.shape, seed=77)
    ours, theirs = (torch.autograd.grad((out * probe).sum(), leaves) for out in (one, two))
    for a, b in zip(ours, theirs, strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a, b, atol=tolerance)


@visible
@valid_tokens
def test_softmax_attention(visibility, valid):
    q, k, v = leaves = tensors((B, H, N, WIDTH), (B, H, N, WIDTH), (B, H, N, VALUES))
    mask = visibility.dense(N, valid, q.device)
    slow = lambda: softmax_attention_reference(q, k, v, 0.7, mask)  # noqa: E731
    assert_equal(lambda: attend(q, k, v, 0.7, visibility, valid), slow, leaves)
    assert_equal(lambda: softmax_attention(q, k, v, 0.7, mask), slow, leaves)


@pytest.mark.parametrize("mask", ["none", "causal", "flat-causal"])
@pytest.mark.parametrize("window", [1, 2, 3, 9])
@valid_tokens
def test_windows_on_virtual_tokens(mask, window, valid):
    visibility = Visibility(mask, window, pseudo=2)
    q, k, v = leaves = tensors((B, H, 2 * N, WIDTH), (B, H, 2 * N, WIDTH), (B, H, 2 * N, VALUES))
    dense = visibility.dense(2 * N, valid, q.device)
    assert_equal(
        lambda: attend(q, k, v, 0.7, visibility, valid),
        lambda: softmax_attention_reference(q, k, v, 0.7, dense),
        leaves,
    )


@visible
@valid_tokens
def test_talking_heads(visibility, valid):
    q, k, v, p, w = leaves = tensors((B, H, N, WIDTH), (B, H, N, WIDTH), (B, 2, N, VALUES), (H, 7), (7, 2))
    fast = lambda: over_visible(  # noqa: E731
        lambda qs, ks, mask: talking_heads_attention(*qs, *ks, p, w, 0.7, mask), [q], [k, v], visibility, valid
    )
    mask = visibility.dense(N, valid, q.device)
    assert_equal(fast, lambda: talking_heads_attention(q, k, v, p, w, 0.7, mask), leaves)


@visible
@valid_tokens
def test_differential(visibility, valid):
    q, k, v, share = leaves = tensors((B, 2 * H, N, WIDTH), (B, 2 * H, N, WIDTH), (B, H, N, VALUES), ())
    mask = visibility.dense(N, valid, q.device)
    assert_equal(
        lambda: differential_attention(q, k, v, share, 0.7, visibility, valid),
        lambda: differential_attention_reference(q, k, v, share, 0.7, mask),
        leaves,
    )


@visible
@valid_tokens
@pytest.mark.parametrize("values", [5, 8])
@pytest.mark.parametrize("method", [strassen_attention, composite_strassen_attention])
def test_strassen(method, values, visibility, valid):
    leaves = tensors(*[(B, H, N, WIDTH)] * 3, *[(B, H, N, values)] * 2)
    core = lambda qs, ks, mask: method(*qs, *ks, 0.7, mask)  # noqa: E731
    mask = visibility.dense(N, valid, leaves[0].device)
    assert_equal(
        lambda: over_visible(core, leaves[:1], leaves[1:], visibility, valid),
        lambda: strassen_attention_reference(*leaves, 0.7, mask),
        leaves,
    )


def test_strassen_with_logits_that_underflow():
    leaves = [x.detach().float() for x in tensors(*[(B, H, N, WIDTH)] * 3, *[(B, H, N, VALUES)] * 2)]
    for scale, float32_survives, float64_survives in ((6, True, True), (13, False, True), (60, False, False)):
        arguments = (*(scale * x for x in leaves[:3]), *leaves[3:], WIDTH**-0.5)
        exact = strassen_attention_reference(*(x.double() for x in arguments[:5]), arguments[5]).float()
        for survives, arithmetic in ((float32_survives, torch.float32), (float64_survives, torch.float64)):
            outputs = strassen_attention(*arguments, arithmetic=arithmetic)
            lost = outputs.isnan().any(-1)
            assert lost.any() != survives
            assert torch.allclose(outputs[~lost], exact[~lost], atol=1e-3)
        assert torch.allclose(composite_strassen_attention(*arguments), exact, atol=1e-2)


def test_strassen_is_not_scaled_by_keys_that_nobody_sees():
    leaves = tensors(*[(B, H, N, WIDTH)] * 3, *[(B, H, N, VALUES)] * 2)
    real = torch.arange(N) < 7
    loud = [torch.where(real[:, None], x, 200 * x) if index < 3 else x for index, x in enumerate(leaves)]
    mask = real[None, None, None].expand(1, 1, N, N)
    exact = strassen_attention_reference(*loud, 0.7, mask)
    assert torch.allclose(strassen_attention(*loud, 0.7, mask)[:, :, :7], exact[:, :, :7], atol=1e-10)


@pytest.mark.parametrize("form", ["product", "determinant"])
@pytest.mark.parametrize("second", [None, 2, 5])
@visible
@valid_tokens
def test_trilinear(form, second, visibility, valid):
    leaves = tensors(*[(B, H, N, WIDTH)] * 3, *[(B, H, N, VALUES)] * 2)
    pair = (visibility, Visibility(visibility.mask, second))
    assert_equal(
        lambda: trilinear_attention(*leaves, 0.7, form, pair, valid),
        lambda: trilinear_attention_reference(*leaves, 0.7, form, pair, valid),
        leaves,
    )


@visible
@valid_tokens
def test_volume(visibility, valid):
    leaves = tensors(*[(B, H, N, WIDTH)] * 3, (B, H, N, VALUES), (H, VALUES, VALUES, VALUES))
    assert_equal(
        lambda: volume_attention(*leaves, 0.7, visibility, valid),
        lambda: volume_attention_reference(*leaves, 0.7, visibility, valid),
        leaves,
        tolerance=1e-7,
    )


@pytest.mark.parametrize("collapse", ["full", "per-head"])
@pytest.mark.parametrize("score", ["softmax", "linear"])
@pytest.mark.parametrize(("mask", "window"), [("none", None), ("causal", 2), ("flat-causal", None), ("flat-causal", 2)])
def test_interleaved(collapse, score, mask, window):
    fields = {"attention": "iha", "heads": 3, "pseudo_heads": 2, "collapse": collapse, "mask": mask, "window": window,
              "score": score}  # fmt: skip
    module, x = build(fields), tokens()
    valid = inputs(*x.shape[:2], seed=5) < 0.7
    values = lambda: torch.einsum("mhp,bmnw->bhnpw", module.mix_value, module.value(x)).flatten(2, 3)  # noqa: E731

    def slow():
        virtual = (module.weights(x, valid) @ values()).unflatten(2, (-1, 2))
        return module.join(torch.einsum("hgp,bgnpw->bhnw", module.collapse_matrix(), virtual))

    assert_equal(lambda: module(x, valid), slow, list(module.parameters()), tolerance=1e-9)
