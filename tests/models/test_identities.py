"""What the mechanisms have in common, exactly: each identity compiles one mechanism's weights into another."""

import math

import pytest
import torch

from headcount.models.attention import Sizes
from headcount.models.attention.clift import SMALLEST_SQUARE, volume_logits
from headcount.models.attention.grouped import convert_to_groups, pool_heads
from headcount.models.attention.iha import interleave
from headcount.models.attention.masks import Visibility
from headcount.models.attention.multi_token import convolve_maps
from headcount.models.attention.scores import attend, rotary, softmax_attention_reference
from headcount.models.attention.simplicial import trilinear_attention, trilinear_logits
from headcount.models.attention.strassen import strassen_attention, strassen_attention_reference

from .cases import SIZES, build, inputs, tokens

H = 3
close = lambda a, b: torch.allclose(a, b, atol=1e-11)  # noqa: E731
MASKS = [{}, {"mask": "causal"}, {"mask": "causal", "window": 2}, {"window": 3}]
with_masks = pytest.mark.parametrize("masks", MASKS, ids=str)


def compiled(fields, weights, strict=True):
    """A module of a form with given weights."""
    module = build(fields)
    module.load_state_dict({k: v.detach() for k, v in weights.items()}, strict=strict)
    return module


def weights_of(module):
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def base(module, *own):
    """Weights that multi-head attention has too."""
    return {name: weight for name, weight in weights_of(module).items() if not name.startswith(own)}


def mha(**fields):
    return {"attention": "mha", "heads": H, **fields}


# Multi-head, grouped, multi-query


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_equals_torch(bias):
    sizes = Sizes(7, 6, 6)
    module = build(mha(bias=bias), sizes, noise=0.1)
    oracle = torch.nn.MultiheadAttention(6, H, bias=bias, batch_first=True, dtype=torch.float64)
    parts = [module.query, module.key, module.value]
    with torch.no_grad():
        oracle.in_proj_weight.copy_(torch.cat([part.features.transpose(1, 2).flatten(0, 1) for part in parts]))
        oracle.out_proj.weight.copy_(module.join.weight.flatten(0, 1).T)
        if bias:
            oracle.in_proj_bias.copy_(torch.cat([part.bias.flatten() for part in parts]))
            oracle.out_proj.bias.copy_(module.join.bias)
    x, valid = tokens(sizes=sizes), torch.arange(7) < 5
    expected = oracle(x, x, x, key_padding_mask=~valid.expand(len(x), 7))[0]
    assert close(module(x, valid.expand(len(x), 7)), expected)


def test_multi_head_is_linear_on_constant_sequences_and_strassen_is_not():
    one = inputs(1, 1, SIZES.features, seed=3).expand(1, SIZES.tokens, -1)
    two = inputs(1, 1, SIZES.features, seed=4).expand(1, SIZES.tokens, -1)
    linear = build(mha())
    assert close(linear(one) + linear(two), linear(one + two))
    product = build({"attention": "strassen", "heads": H})
    assert not close(product(one) + product(two), product(one + two))


@with_masks
def test_grouped_with_all_heads_is_multi_head_and_with_one_is_multi_query(masks):
    x = tokens()
    full = build({"attention": "gqa", "heads": H, "groups": H, **masks})
    assert close(full(x), compiled(mha(**masks), weights_of(full))(x))
    one = build({"attention": "gqa", "heads": H, "groups": 1, **masks})
    assert close(one(x), compiled({"attention": "mqa", "heads": H, **masks}, weights_of(one))(x))


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_is_multi_head_with_tied_heads(groups):
    grouped = build({"attention": "gqa", "heads": 6, "groups": groups, "rope": "token", "query_width": 4}, noise=0.1)
    tied = weights_of(grouped)
    for name in ("key.features", "value.features"):
        tied[name] = tied[name].repeat_interleave(6 // groups, 0)
    module = compiled({"attention": "mha", "heads": 6, "rope": "token", "query_width": 4}, tied)
    assert close(grouped(tokens()), module(tokens()))
    # Pooling tied heads gives them back, and pooling to as many groups as heads changes nothing.
    assert close(convert_to_groups(module, groups, SIZES)(tokens()), module(tokens()))
    assert close(convert_to_groups(module, 6, SIZES)(tokens()), module(tokens()))


def test_pooling_is_the_mean_of_consecutive_heads():
    weights = inputs(6, 5, 7)
    assert close(pool_heads(weights, 2), torch.stack([weights[:3].mean(0), weights[3:].mean(0)]))
    # In the (out, in) layout of a linear map: rows are grouped by head.
    rows = weights.transpose(1, 2).flatten(0, 1)
    assert close(pool_heads(weights, 2).transpose(1, 2).flatten(0, 1), rows.view(2, 3, 7, 5).mean(1).reshape(14, 5))


@pytest.mark.parametrize("attention", ["mha", "gqa", "talking-heads", "strassen", "differential", "iha", "third-order"])
def test_a_window_of_all_tokens_is_none(attention):
    fields = {"attention": attention, "heads": H, "mask": "causal"}
    whole = build(fields)
    assert close(whole(tokens()), build({**fields, "window": SIZES.tokens})(tokens()))
    assert not close(whole(tokens()), build({**fields, "window": 3})(tokens()))


def test_a_window_of_one_token_passes_values_on():
    module, x = build(mha(mask="causal", window=1)), tokens()
    assert close(module(x), module.join(module.value(x)))


# Talking heads


@with_masks
def test_talking_heads_with_identity_mixings_is_multi_head(masks):
    talking = build({"attention": "talking-heads", "heads": H, **masks})
    assert close(talking(tokens()), compiled(mha(**masks), base(talking, "mix"))(tokens()))


def test_talking_heads_with_permuted_logits_is_multi_head_with_permuted_queries_and_keys():
    talking = build({"attention": "talking-heads", "heads": H})
    order = torch.tensor([2, 0, 1])
    talking.mix_logits.data = torch.eye(H, dtype=torch.float64)[order].T  # logits l come from head order[l]
    weights = base(talking, "mix")
    for name in ("query.features", "key.features"):
        weights[name] = weights[name][order]
    assert close(talking(tokens()), compiled(mha(), weights)(tokens()))


def test_mixed_logits_are_wide_heads_that_share_the_concatenated_key():
    talking = build({"attention": "talking-heads", "heads": H, "start_noise": 0.5})
    talking.mix_weights.data = torch.eye(H, dtype=torch.float64)
    x = tokens()
    queries = torch.einsum("gl,bgnw->blngw", talking.mix_logits, talking.query(x)).flatten(-2)
    keys = talking.key(x).transpose(1, 2).flatten(-2)[:, None].expand_as(queries)
    wide = softmax_attention_reference(queries, keys, talking.value(x), talking.inverse_temperature)
    assert close(talking(x), talking.join(wide))


# Maps that fold


def test_linear_knocking_heads_fold_into_multi_head():
    knocking = build({"attention": "knocking-heads", "heads": H}, noise=0.3)
    weights = base(knocking, "knock")
    for part in ("query", "key", "value"):
        weights[f"{part}.features"] = weights[f"{part}.features"] @ getattr(knocking, f"knock_{part}")
    assert close(knocking(tokens()), compiled(mha(), weights)(tokens()))


@pytest.mark.parametrize("form", ["linear", "mlp"])
def test_knocking_heads_start_as_multi_head(form):
    knocking = build({"attention": "knocking-heads", "heads": H, "form": form, "rope": "token"})
    plain = compiled(mha(rope="token"), base(knocking, "knock", "gate", "down"))
    assert close(knocking(tokens()), plain(tokens()))


def test_gated_knocking_heads_do_not_fold():
    module = build({"attention": "knocking-heads", "heads": H, "form": "mlp"}, noise=0.3)
    constant = inputs(1, 1, SIZES.features).expand(1, SIZES.tokens, -1)
    assert not torch.allclose(module(2 * constant), 2 * module(constant), atol=1e-3)


def test_explicit_heads_fold_into_multi_head():
    explicit = build({"attention": "explicit", "heads": H, "norm": False, "base_heads": 2}, noise=0.3)
    weights = base(explicit, "mix")
    for part in ("key", "value"):
        mixing = getattr(explicit, f"mix_{part}")
        weights[f"{part}.features"] = torch.einsum("gh,gfw->hfw", mixing, weights[f"{part}.features"])
    assert close(explicit(tokens()), compiled(mha(), weights)(tokens()))


def test_explicit_heads_with_norm_fold_into_multi_head_with_norm():
    explicit = build({"attention": "explicit", "heads": H, "rope": "token"}, noise=0.3)
    weights = weights_of(explicit)
    for part in ("key", "value"):
        mixed = torch.einsum("gh,gfw->hfw", weights[f"mix_{part}"], weights[f"{part}.features"])
        weights[f"{part}.features"], weights[f"mix_{part}"] = mixed, torch.eye(H, dtype=torch.float64)
    assert close(
        explicit(tokens()), compiled({"attention": "explicit", "heads": H, "rope": "token"}, weights)(tokens())
    )


def test_rotations_commute_with_mixing_of_heads_at_one_position():
    base_heads, mixing, positions = inputs(2, H, 7, 6), inputs(H, 5, seed=2), torch.arange(7)
    mix = lambda x: torch.einsum("gh,bgnw->bhnw", mixing, x)  # noqa: E731
    assert close(rotary(mix(base_heads), positions), mix(rotary(base_heads, positions)))


@pytest.mark.parametrize("rope", ["none", "token"])
def test_virtual_heads_fold_into_grouped_queries(rope):
    fields = {"heads": H, "query_width": 4, "value_width": 5, "rope": rope}
    virtual = build({"attention": "virtual-heads", "groups": 2, **fields}, noise=0.3)
    weights = base(virtual, "premix", "down", "up")
    weights["query.features"] = torch.einsum(
        "hfw,gwv->ghfv", weights["query.features"], virtual.premix
    ).flatten(0, 1)  # fmt: skip
    across = torch.eye(2 * H, dtype=torch.float64) + virtual.up @ virtual.down.T
    weights["join.weight"] = torch.einsum("hg,hwo->gwo", across, weights["join.weight"])
    grouped = compiled({"attention": "gqa", **fields, "heads": 2 * H, "groups": 2}, weights)
    assert close(virtual(tokens()), grouped(tokens()))


# Multi-token


@with_masks
def test_multi_token_starts_as_multi_head(masks):
    fields = {"attention": "multi-token", "heads": H, "norm": False, "mix_logits": True, "convolve_weights": True}
    module = build({**fields, **masks})
    plain = compiled(mha(**masks), base(module, "kernels", "weight_kernels", "mix"))
    assert close(module(tokens()), plain(tokens()))


def test_a_single_tap_scales_the_logits_of_a_head():
    fields = {"attention": "multi-token", "heads": H, "norm": False, "query_taps": 1, "key_taps": 1}
    module = build({**fields, "mask": "causal"}, noise=0.0)
    module.kernels.data = inputs(H, 1, 1).abs()
    weights = base(module, "kernels", "mix")
    weights["query.features"] = weights["query.features"] * module.kernels
    assert close(module(tokens()), compiled(mha(mask="causal"), weights)(tokens()))


def test_convolution_by_loops_and_its_leak_without_masking_first():
    maps, kernels = inputs(2, H, 7, 7), inputs(H, 2, 3, seed=2)
    expected = torch.zeros_like(maps)
    for i in range(7):
        for j in range(7):
            for a in range(2):
                for b in (-1, 0, 1):
                    if i - a >= 0 and 0 <= j - b < 7:
                        expected[:, :, i, j] += kernels[:, 1 - a, 1 - b] * maps[:, :, i - a, j - b]
    assert close(convolve_maps(maps, kernels), expected)
    past = Visibility("causal").dense(7, None, maps.device)
    other = torch.where(past, maps, maps + 1)
    leak = (convolve_maps(maps, kernels) - convolve_maps(other, kernels)).masked_fill(~past, 0.0)
    assert leak.abs().max() > 0.1
    hidden = [convolve_maps(m.masked_fill(~past, 0.0), kernels) for m in (maps, other)]
    assert close(*hidden)


# Pairs of tokens


@pytest.mark.parametrize("windows", [(None, None), (3, 2), (2, 9)], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_unit_second_keys_and_values_leave_ordinary_attention(windows, mask):
    q, k = inputs(2, H, 11, 6), inputs(2, H, 11, 6, seed=2)
    v = inputs(2, H, 11, 5, seed=3)
    pair = (Visibility(mask, windows[0]), Visibility(mask, windows[1]))
    simplicial = trilinear_attention(q, k, torch.ones_like(k), v, torch.ones_like(v), 0.4, "product", pair)
    assert close(simplicial, attend(q, k, v, 0.4, pair[0]))


def test_offsets_leave_ordinary_attention_of_zero_projections():
    module = build({"attention": "simplicial", "heads": H, "offset": True})
    weights = base(module, "second", "first")
    for part in ("key", "value"):
        getattr(module, f"second_{part}").features.data.zero_()
        weights[f"{part}.features"] = getattr(module, f"first_{part}").features
    width = module.query.features.shape[-1]
    plain = compiled(mha(inverse_temperature=width**-1.5), weights)
    assert close(module(tokens()), plain(tokens()))


def test_first_and_second_tokens_can_be_exchanged():
    module = build({"attention": "simplicial", "heads": H, "mask": "causal", "window": 3, "second_window": 2})
    other = build({"attention": "simplicial", "heads": H, "mask": "causal", "window": 2, "second_window": 3})
    for part in ("key", "value"):
        getattr(other, f"first_{part}").load_state_dict(getattr(module, f"second_{part}").state_dict())
        getattr(other, f"second_{part}").load_state_dict(getattr(module, f"first_{part}").state_dict())
    assert close(module(tokens()), other(tokens()))


def test_third_order_is_simplicial_at_temperature_one():
    third = build({"attention": "third-order", "heads": H})
    simplicial = compiled({"attention": "simplicial", "heads": H, "inverse_temperature": 1.0}, weights_of(third))
    assert close(third(tokens()), simplicial(tokens()))
    scaled = compiled({"attention": "simplicial", "heads": H}, weights_of(third))
    assert not close(third(tokens()), scaled(tokens()))


def test_determinant_logits_are_determinants_and_invariant_under_rotations():
    q, k, l = (inputs(1, 1, 5, 6, seed=seed) for seed in range(3))  # noqa: E741
    logits = trilinear_logits(q, k, l, "determinant")[0, 0]
    for i, j, m in [(0, 1, 2), (4, 4, 1), (3, 0, 0)]:
        rows = [torch.stack([x[0, 0, n].view(2, 3)[t] for x, n in ((q, i), (k, j), (l, m))]) for t in range(2)]
        assert close(logits[i, j, m], sum(torch.linalg.det(row) for row in rows))
    rotation = torch.linalg.qr(inputs(3, 3, seed=5))[0]
    rotation = rotation * torch.linalg.det(rotation)
    turned = [(x.unflatten(-1, (2, 3)) @ rotation).flatten(-2) for x in (q, k, l)]
    assert close(trilinear_logits(*turned, "determinant")[0, 0], logits)
    assert not close(trilinear_logits(*turned, "product"), trilinear_logits(q, k, l, "product"))


def test_the_cosine_of_a_sum_is_a_trilinear_form():
    x = torch.arange(7, dtype=torch.float64) * 2 * math.pi / 7
    c, s = x.cos(), x.sin()
    q = torch.stack([c, -c, -s, -s], -1)[None, None]
    k = torch.stack([c, s, c, s], -1)[None, None]
    l = torch.stack([c, s, s, c], -1)[None, None]  # noqa: E741
    expected = (x[:, None, None] + x[None, :, None] + x[None, None, :]).cos()
    assert close(trilinear_logits(q, k, l, "product")[0, 0], expected)


def test_volume_logits_are_norms():
    a, b, c = (inputs(1, 1, 5, 7, seed=seed) for seed in range(3))
    p, q, r = a[0, 0, 3], b[0, 0, 1], c[0, 0, 4]
    norm = ((p @ q) * r - (p @ r) * q + (q @ r) * p).norm()
    assert torch.allclose(volume_logits(a, b, c)[0, 0, 3, 1, 4], (norm**2 + SMALLEST_SQUARE).sqrt(), atol=1e-10)


@pytest.mark.parametrize("masks", [{}, {"mask": "causal"}], ids=str)
def test_strassen_without_second_key_is_ordinary_attention(masks):
    module = build({"attention": "strassen", "heads": H, **masks})
    q, k, v = (part(tokens()) for part in (module.query, module.first_key, module.first_value))
    visibility = Visibility(masks.get("mask", "none"))
    mask = visibility.dense(SIZES.tokens, None, q.device)
    strassen = strassen_attention(q, k, torch.zeros_like(k), v, torch.ones_like(v), 0.4, mask)
    assert close(strassen, attend(q, k, v, 0.4, visibility))


def test_strassen_can_represent_match3():
    """Two heads attend to the pair that completes a sum of M or 2 M, and read off that pair."""
    modulus, length, sharp = 23, 7, 1000.0
    p = torch.randint(1, modulus, (150, length), generator=torch.Generator().manual_seed(0)).double()
    answer = ((p[:, :, None, None] + p[:, None, :, None] + p[:, None, None, :]) % modulus == 0).any(-1).any(-1)
    assert 0.3 < answer.double().mean() < 0.9
    found = torch.zeros_like(answer)
    one, zero = torch.ones_like(p), torch.zeros_like(p)
    # Every pair its own height, else sums just above and below the total would average to it.
    tie, other_tie = 9.0 * torch.arange(length), 9.0 * length * torch.arange(length)
    for total in (modulus, 2 * modulus):
        # f.g + g.h + h.f = -C (q_i + q_j + q_k)^2 + ties + (what is the same for all pairs): a channel for
        # every product of two, as no single one can give all three a minus.
        q, r = p - total / 3, math.sqrt(2 * sharp) * (p - total / 3)
        f = torch.stack([r, zero, -r, one, one], -1)[:, None]
        g = torch.stack([-r, r, zero, tie - sharp * q.square(), zero], -1)[:, None]
        h = torch.stack([zero, -r, r, zero, other_tie - sharp * q.square()], -1)[:, None]
        first, second = torch.stack([p, one], -1)[:, None], torch.stack([one, p], -1)[:, None]
        pair = strassen_attention_reference(f, g, h, first, second, 1.0)[:, 0].sum(-1)
        found |= (p + pair - total).abs() < 0.5
    assert torch.equal(found, answer)


# Differential


def test_differential_without_difference_is_attention_with_double_width_values():
    module = build({"attention": "differential", "heads": H, "norm": False})
    module.share_query.data = module.share_key.data = torch.zeros_like(module.share_query)
    module.initial_share = 0.0
    weights = base(module, "share")
    for name in ("query.features", "key.features"):
        weights[name] = weights[name][::2]
    width = weights["query.features"].shape[-1]
    plain = compiled(mha(query_width=width), weights)
    assert module.share() == 0
    assert close(module(tokens()), plain(tokens()))


def test_equal_maps_cancel_to_one_minus_lambda_and_the_norm_forgets_it():
    module = build({"attention": "differential", "heads": H})
    for part in (module.query, module.key):
        part.features.data[1::2] = part.features.data[::2]
    module.value.features.data *= 1e4  # so that the norm's epsilon is nothing
    x = tokens()
    q, k, v = module.query(x)[:, ::2], module.key(x)[:, ::2], module.value(x)
    single = softmax_attention_reference(q, k, v, module.inverse_temperature)
    scale, share = 1 - module.initial_share, module.share()
    module.norm, norm = None, module.norm
    assert close(module(x), module.join((1 - share) * single))
    module.norm = norm
    assert torch.allclose(module(x), module.join(norm(single) * scale), atol=1e-9)


def test_differential_without_norm_is_a_special_case_of_talking_heads():
    module = build({"attention": "differential", "heads": H, "norm": False})
    width = module.query.features.shape[-1]
    talking = build({"attention": "talking-heads", "heads": 2 * H, "value_heads": H, "query_width": width})
    weights = base(module, "share")
    weights["mix_logits"] = torch.eye(2 * H, dtype=torch.float64)
    difference = torch.stack([torch.ones((), dtype=torch.float64), -module.share().detach()])
    weights["mix_weights"] = torch.kron(torch.eye(H, dtype=torch.float64), difference[:, None])
    talking.load_state_dict(weights)
    assert close(module(tokens()), talking(tokens()))


# Interleaved


def replicated(pseudo, select=None):
    """Mixings in which every pseudo-head is its own head, collapsed by the mean or by selecting one."""
    own = torch.eye(H, dtype=torch.float64)[:, :, None].repeat(1, 1, pseudo)
    chosen = torch.full((pseudo,), 1 / pseudo, dtype=torch.float64)
    if select is not None:
        chosen = torch.eye(pseudo, dtype=torch.float64)[select]
    return {"mix_query": own, "mix_key": own, "mix_value": own, "collapse": own * chosen}


@pytest.mark.parametrize(
    ("pseudo", "mask", "rope", "select", "plain_mask", "exact"),
    [
        (1, "none", "none", None, "none", True),
        (1, "causal", "token", None, "causal", True),
        (1, "flat-causal", "virtual", None, "causal", True),
        (2, "none", "none", None, "none", True),
        (2, "none", "none", 0, "none", True),
        (3, "causal", "none", None, "causal", True),
        (3, "causal", "none", 0, "causal", True),
        (2, "causal", "token", None, "causal", True),
        (2, "none", "token", 1, "none", True),
        (3, "flat-causal", "none", 2, "causal", True),
        (3, "flat-causal", "none", 0, "causal", False),
        (3, "flat-causal", "none", None, "causal", False),
        (2, "flat-causal", "virtual", 1, "causal", False),
        (2, "causal", "virtual", None, "causal", False),
        (2, "none", "virtual", None, "none", False),
    ],
)
def test_where_interleaved_attention_contains_multi_head_by_replication(pseudo, mask, rope, select, plain_mask, exact):
    plain = build(mha(mask=plain_mask, rope="none" if rope == "none" else "token", query_width=4))
    fields = {"attention": "iha", "heads": H, "pseudo_heads": pseudo, "mask": mask, "rope": rope, "query_width": 4}
    interleaved = compiled(fields, weights_of(plain) | replicated(pseudo, select))
    difference = (interleaved(tokens()) - plain(tokens())).abs().max()
    assert difference < 1e-11 if exact else difference > 0.01


@pytest.mark.parametrize("masks", [{}, {"mask": "causal", "rope": "token"}], ids=str)
def test_one_pseudo_head_is_a_reparametrisation_of_multi_head(masks):
    module = build({"attention": "iha", "heads": H, "pseudo_heads": 1, "query_width": 4, **masks})
    weights = base(module, "mix", "collapse")
    for part in ("query", "key", "value"):
        mixing = getattr(module, f"mix_{part}")[..., 0]
        weights[f"{part}.features"] = torch.einsum("mh,mfw->hfw", mixing, weights[f"{part}.features"])
    weights["join.weight"] = torch.einsum("hg,hwo->gwo", module.collapse[..., 0], weights["join.weight"])
    assert close(module(tokens()), compiled(mha(query_width=4, **masks), weights)(tokens()))


def test_per_head_collapse_is_the_block_diagonal_of_the_full_one():
    module = build({"attention": "iha", "heads": H, "pseudo_heads": 2, "collapse": "per-head"})
    full = compiled(
        {"attention": "iha", "heads": H, "pseudo_heads": 2}, weights_of(module) | {"collapse": module.collapse_matrix()}
    )
    assert close(module(tokens()), full(tokens()))


@pytest.mark.parametrize("mask", ["none", "causal", "flat-causal"])
def test_interleaved_and_stacked_layouts_agree(mask):
    heads, mixing = inputs(2, H, 7, 6), inputs(H, H, 2, seed=2)
    virtual = interleave(heads, mixing)
    order = torch.arange(14).view(7, 2).T.flatten()  # pseudo-head by pseudo-head
    allowed = Visibility(mask, None, 2).dense(14, None, heads.device)
    shown = None if allowed is None else allowed[..., order, :][..., order]
    stacked = virtual[:, :, order]
    positions = torch.arange(14)
    turn = lambda x, p: rotary(x, p)  # noqa: E731
    one = softmax_attention_reference(turn(virtual, positions), turn(virtual, positions), virtual, 0.4, allowed)
    two = softmax_attention_reference(turn(stacked, order), turn(stacked, order), stacked, 0.4, shown)
    assert close(one[:, :, order], two)


@pytest.mark.parametrize(
    ("mask", "rope", "tied"),
    [("none", "none", True), ("causal", "token", True), ("flat-causal", "none", False), ("causal", "virtual", False)],
)
def test_exactly_replicated_pseudo_heads_stay_tied_without_something_that_tells_them_apart(mask, rope, tied):
    fields = {"attention": "iha", "heads": H, "pseudo_heads": 2, "mask": mask, "rope": rope, "query_width": 4}
    module = build(fields)
    module.load_state_dict(replicated(2), strict=False)
    module(tokens()).square().sum().backward()
    for mixing in (module.mix_query, module.mix_key, module.mix_value):
        assert close(mixing.grad[..., 0], mixing.grad[..., 1]) == tied
