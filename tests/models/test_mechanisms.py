"""What every mechanism owes: counts, masks, padding, symmetry, live parameters, stacking, low precision."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headcount.config import BadInput
from headcount.models.attention import ATTENTION, Sizes, build_mechanism, describe_mechanisms, matched_window
from headcount.models.ensemble import Ensemble

from .cases import BATCH, CASES, CONVOLVED, FORMS, SIZES, TOKENS, build, inputs, name, tokens

every_case = pytest.mark.parametrize("fields", CASES, ids=name)
every_form = pytest.mark.parametrize("fields", FORMS, ids=name)


def counted_flops(module, x):
    # The fused CPU kernel is unknown to the counter; its plain form does the same products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        module(x)
    return counter.get_total_flops()


def test_the_table_covers_the_registry():
    assert {form["attention"] for form in FORMS} == set(ATTENTION)


@every_case
def test_parameter_formula(fields):
    module = build(fields)
    assert sum(p.numel() for p in module.parameters()) == module.config.parameters(SIZES)
    assert module(tokens()).shape == (BATCH, TOKENS, SIZES.outputs)


@every_case
def test_flop_formula(fields):
    sizes = Sizes(53, 5, 11)
    module = build(fields, sizes)
    counted, formula = counted_flops(module, tokens(sizes=sizes, batch=1)), module.config.flops(sizes)
    if fields.get("window") is None:
        assert counted == formula
    else:
        # Blocks of b queries meet almost 2 b keys, pairs of those almost 4 b^2, and the last block is filled up;
        # where maps are held whole, a window saves nothing.
        assert formula <= counted <= 4.5 * formula


def test_windows_save_work():
    sizes = Sizes(257, 5, 11)
    for attention in ("mha", "gqa", "talking-heads", "strassen", "differential", "iha", "explicit"):
        fields = {"attention": attention, "heads": 2, "mask": "causal"}
        x = tokens(sizes=sizes, batch=1)
        local, whole = (counted_flops(build({**fields, **w}, sizes), x) for w in ({"window": 3}, {}))
        assert local < whole / 4, attention
    simplicial = {"attention": "simplicial", "heads": 2, "mask": "causal", "window": 5, "second_window": 3}
    module = build(simplicial, sizes)
    assert counted_flops(module, x) == module.config.flops(sizes)


def influence(fields, seed=1):
    """(query, key): whether the output at a query depends on the token at a key."""
    module, x = build(fields, noise=0.2), tokens(seed)[:2]
    with torch.no_grad():
        before = module(x)
        rows = []
        for key in range(TOKENS):
            changed = x.clone()
            changed[:, key] += 1.0
            rows.append((module(changed) - before).abs().amax((0, 2)) > 1e-12)
    return torch.stack(rows, 1)


@every_case
def test_masks_and_windows_hide_what_they_say_and_nothing_else(fields):
    seen = influence(fields)
    index = torch.arange(TOKENS)
    distance = index[:, None] - index[None, :]
    mask, window = fields.get("mask", "none"), fields.get("window")
    allowed = distance >= 0 if mask != "none" else torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    if window is not None and fields["attention"] != "third-order":  # whose second token has no window here
        allowed = allowed & (distance < window if mask != "none" else distance.abs() <= window // 2)
    if fields["attention"] == CONVOLVED and window is not None:
        # The convolution shows what a window hides: rows of the last queries, and keys beside the window.
        assert (seen | ~allowed).all()
        assert not (seen & (distance < (0 if mask != "none" else -(window + fields["key_taps"]) // 2))).any()
        assert not (seen & (distance > window + fields["query_taps"] + fields["key_taps"] // 2)).any()
    else:
        assert torch.equal(seen, allowed)


PADDINGS = {
    "right": lambda: torch.arange(TOKENS) < 4,
    "left": lambda: torch.arange(TOKENS) >= 3,
    "scattered": lambda: torch.arange(TOKENS) % 3 != 1,
}


@pytest.mark.parametrize("padding", PADDINGS)
@every_case
def test_padding_is_never_looked_at(fields, padding):
    module = build(fields, noise=0.2)
    valid = PADDINGS[padding]().expand(BATCH, -1).clone()
    valid[0] = True
    x = tokens()
    other = torch.where(valid[..., None], x, 30 * tokens(seed=2))
    with torch.no_grad():
        one, two = module(x, valid), module(other, valid)
        assert torch.allclose(one[valid], two[valid], atol=1e-11)
        assert torch.allclose(module(x, torch.ones_like(valid)), module(x), atol=1e-11)
        if padding == "right":
            assert torch.allclose(module(x[1:, :4]), one[1:, :4], atol=1e-11)


@every_case
def test_tokens_that_see_nothing_get_zeros_and_finite_gradients(fields):
    module = build({**fields, "bias": False})
    valid = torch.ones(3, TOKENS, dtype=torch.bool)
    valid[0] = False
    valid[1, :4] = False
    x = tokens()[:3].requires_grad_()
    output = module(x, valid)
    assert output[0].abs().max() == 0
    if fields.get("mask", "none") != "none":
        assert output[1, :4].abs().max() == 0
    output.square().sum().backward()
    for gradient in [x.grad, *(p.grad for p in module.parameters())]:
        assert gradient.isfinite().all()
    assert x.grad[0].abs().max() == 0


@every_case
def test_permutations_of_tokens_pass_through_exactly_where_order_is_not_read(fields):
    module, x = build(fields, noise=0.2), tokens()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    with torch.no_grad():
        equivariant = torch.allclose(module(x)[:, order], module(x[:, order]), atol=1e-10)
    masked = fields.get("mask", "none") != "none" or fields.get("window") is not None
    assert equivariant != (masked or fields.get("rope", "none") != "none" or fields["attention"] == CONVOLVED)


KEY_BIASES = ("key.bias",)
"""Adds the same number to all logits of a query, which a softmax over tokens does not see; pseudo-heads differ."""


@every_case
def test_every_parameter_gets_a_gradient_and_matters(fields):
    module, x = build(fields), tokens()
    probe = inputs(*module(x).shape, seed=4)
    loss = lambda: (module(x) * probe).sum()  # noqa: E731
    loss().backward()
    before = module(x)
    for label, parameter in module.named_parameters():
        if label in KEY_BIASES and fields["attention"] != "iha":
            assert parameter.grad.abs().max() < 1e-9
            continue
        assert parameter.grad.abs().max() > 1e-9, label
        nudge = torch.linspace(-0.1, 0.3, parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        with torch.no_grad():
            parameter += nudge
            assert (module(x) - before).abs().max() > 1e-9, label
            parameter -= nudge


@every_case
def test_a_stack_equals_its_members(fields):
    members = [build(fields, seed=seed) for seed in range(3)]
    stack = Ensemble(members)
    x = torch.stack([tokens(seed)[:2] for seed in range(3)])
    valid = inputs(3, 2, TOKENS, seed=5) < 0.8
    for arguments in ((x,), (x, None, valid)):
        for block in stack.weights:
            block.grad = None
        out = stack(*arguments)
        out.square().sum().backward()
        for index, member in enumerate(members):
            member.zero_grad()
            alone = member(x[index], valid[index] if len(arguments) > 1 else None)
            assert torch.allclose(out[index], alone, atol=1e-11)
            alone.square().sum().backward()
            flat = torch.cat([p.grad.flatten() for p in member.parameters()])
            ours = stack.rows([block.grad for block in stack.weights])[index]
            assert torch.allclose(ours, flat, atol=1e-8, rtol=1e-8)


@every_case
def test_low_precision_is_close(fields):
    exact, x = build(fields).float(), tokens().float()
    rough = build(fields).to(torch.bfloat16)
    with torch.no_grad():
        for a, b in zip(exact.parameters(), rough.parameters(), strict=True):
            a.copy_(b)
        x = x.bfloat16().float()
        expected, got = exact(x), rough(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got.float() - expected).norm() < 0.04 * expected.norm()


@every_form
def test_weights_depend_on_the_generator_alone(fields):
    torch.manual_seed(7)
    one = build(fields, seed=3)
    torch.manual_seed(8)
    two = build(fields, seed=3)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_table_of_mechanisms():
    sizes = Sizes(64, 128, 128)
    changes = {"gqa": {"groups": 2}, "strassen": {"method": "products"}}
    rows = {row.attention: row for row in describe_mechanisms(sizes, heads=8, changes=changes)}
    assert list(rows) == list(ATTENTION)
    square, tokens_ = 128**2, 64
    base = 8 * tokens_ * square + 4 * tokens_**2 * 128
    assert (rows["mha"].parameters, rows["mha"].flops) == (4 * square, base)
    assert rows["mqa"].parameters == 2 * square + 2 * 128 * 16
    assert rows["gqa"].parameters == 2 * square + 2 * 128 * 2 * 16
    assert rows["talking-heads"].parameters == 4 * square + 2 * 64
    assert rows["talking-heads"].flops == base + 4 * tokens_**2 * 64
    assert rows["knocking-heads"].parameters == 4 * square + 3 * 256
    assert rows["knocking-heads"].flops == base + 6 * tokens_ * 128 * 16
    assert rows["multi-token"].parameters == 4 * square + 8 * 66 + 64 + 16
    assert rows["multi-token"].flops == base + 2 * tokens_**2 * 8 * (66 + 8)
    assert rows["simplicial"].parameters == rows["third-order"].parameters == rows["strassen"].parameters == 6 * square
    assert rows["simplicial"].flops == 12 * tokens_ * square + 4 * tokens_**3 * 128
    assert rows["strassen"].flops == 12 * tokens_ * square + 6 * tokens_**2 * 128 + 2 * tokens_**3 * (128 + 8)
    assert rows["differential"].parameters == 4 * square + 6 * 8
    assert rows["differential"].flops == 8 * tokens_ * square + 6 * tokens_**2 * 128
    assert rows["iha"].parameters == 4 * square + 4 * 8**3
    assert rows["iha"].flops == 8 * tokens_ * square + 8 * tokens_ * 64 * 128 + 4 * (64 * 8) ** 2 * 128
    assert rows["virtual-heads"].parameters == 128 * (8 + 4 + 16) * 16 + 2 * 256 + 2 * 16 * 4
    assert rows["explicit"].parameters == 4 * square + 2 * 64 + 16
    assert all(row.source and row.memory and row.folds and row.label for row in rows.values())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": "gqa", "heads": 3, "groups": 2}, "must divide heads = 3"),
        ({"attention": "gqa", "group": 2}, "did you mean 'groups'"),
        ({"attention": "mha", "groups": 2}, "has no key 'groups'"),
        ({"attention": "mha", "content": "full"}, "must be 'features'"),
        ({"attention": "mha", "collapse": "per-head"}, "collapse: unknown value"),
        ({"attention": "simplicial", "rope": "token"}, "not invariant"),
        ({"attention": "clift", "rope": "token"}, "no rotary form"),
        ({"attention": "multi-token", "key_taps": 4}, "must be odd"),
        ({"attention": "multi-token", "heads": 3, "mixing_group": 2}, "must divide heads = 3"),
        ({"attention": "knocking-heads", "form": "mlp", "on": "all"}, "values only"),
        ({"attention": "strassen", "rope": "token", "query_width": 3}, "must be even"),
        ({"attention": "strassen", "mask": "flat-causal"}, "unknown value 'flat-causal'"),
        ({"attention": "mqa", "window": 0}, "window = 0"),
    ],
)
def test_bad_choices_are_refused(fields, words):
    with pytest.raises(BadInput, match=words):
        ATTENTION[fields["attention"]].config.parse(fields)


def test_bad_sizes_are_refused():
    with pytest.raises(BadInput, match="divisible by 3"):
        build({"attention": "simplicial", "form": "determinant", "query_width": 4})
    with pytest.raises(BadInput, match="value_width must be at least 6"):
        build({"attention": "mqa", "heads": 2, "output": "concat", "value_width": 5})
    assert matched_window(8192, 20) == 10
    with pytest.raises(BadInput, match="needs N >= 2 P"):
        matched_window(100, 8)
    with pytest.raises(TypeError, match="no mechanism"):
        build_mechanism(object(), SIZES)
