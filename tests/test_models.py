"""Mechanisms against their equations written out with loops, and the properties every one must have."""

import itertools

import pytest
import torch

from headcount.config import BadInput
from headcount.models import Ensemble, Layer, ModelConfig, Sizes, build_ensemble
from headcount.models.attention import InterleavedHeadAttention, MultiHeadAttention
from headcount.models.attention.heads import Join
from headcount.models.attention.scores import attention_weights, causal_mask, rotary

SIZES = Sizes(tokens=5, features=3, outputs=7)

VARIANTS = [
    {"attention": attention, "heads": heads, "score": score, "content": content, "value_content": values,
     "output": output, "mask": mask, "rope": rope, **extra}
    for attention, heads, extra in (
        ("mha", 2, {}), ("iha", 2, {"pseudo_heads": 3}), ("iha", 3, {"collapse": "per-head", "pseudo_heads": 2}),
    )
    for score in ("linear", "softmax", "hard")
    for content in ("positions", "features", "full")
    for values, output in (("features", "mixed"), ("full", "concat"))
    for mask in (("none", "causal") if attention == "mha" else ("none", "causal", "flat-causal"))
    for rope in (("none", "token") if attention == "mha" else ("none", "token", "virtual"))
]  # fmt: skip


def build(fields, sizes=SIZES, seed=0):
    config = ModelConfig.parse(fields)
    layer = Layer(config, sizes).double()
    layer.reset(torch.Generator().manual_seed(seed))
    return config, layer


def project(projection, x):
    """X_hat W with X_hat = [X, I] formed in full."""
    batch, tokens, _ = x.shape
    parts, rows = [], []
    if projection.features is not None:
        parts.append(x)
        rows.append(projection.features)
    if projection.positions is not None:
        parts.append(torch.eye(tokens, dtype=x.dtype).expand(batch, tokens, tokens))
        rows.append(projection.positions)
    return torch.einsum("bnf,hfw->bhnw", torch.cat(parts, -1), torch.cat(rows, 1))


def score_rows(q, k, config, beta, allowed):
    """Attention weights of one head by loops over queries."""
    out = torch.zeros(len(q), len(k), dtype=q.dtype)
    for i in range(len(q)):
        keys = [j for j in range(len(k)) if allowed(i, j)]
        logits = torch.stack([q[i] @ k[j] for j in keys])
        if config.score == "linear":
            row = logits * beta
        elif config.score == "softmax":
            row = (logits * beta).exp() / (logits * beta).exp().sum()
        else:
            row = (logits >= logits.max() - 1e-12).double()
            row = row / row.sum()
        out[i, keys] = row
    return out


def reference(config, layer, x):
    """The equations of the two docstrings, written out."""
    attention = layer.attention
    q, k, v = (project(part, x) for part in (attention.query, attention.key, attention.value))
    batch, heads, tokens, _ = q.shape
    pseudo = config.pseudo
    if config.attention == "iha":
        q, k, v = (
            torch.stack([
                torch.stack([
                    torch.einsum("m,bmw->bw", mix[:, h, index % pseudo], base[:, :, index // pseudo])
                    for index in range(tokens * pseudo)
                ], 1)
                for h in range(heads)
            ], 1)
            for base, mix in ((q, attention.mix_query), (k, attention.mix_key), (v, attention.mix_value))
        )  # fmt: skip
    virtual = q.shape[2]
    if config.rope != "none":
        positions = torch.arange(virtual) if config.rope == "virtual" else torch.arange(virtual) // pseudo
        q, k = rotary(q, positions), rotary(k, positions)
    rule = {
        "none": lambda i, j: True,
        "causal": lambda i, j: j // pseudo <= i // pseudo,
        "flat-causal": lambda i, j: j <= i,
    }[config.mask]
    beta = attention.inverse_temperature
    out = torch.stack([
        torch.stack([score_rows(q[b, h], k[b, h], config, beta, rule) @ v[b, h] for h in range(heads)])
        for b in range(batch)
    ])  # fmt: skip
    if config.attention == "iha":
        collapse = attention.collapse
        joined = torch.zeros(batch, heads, tokens, out.shape[-1], dtype=x.dtype)
        for h, g, p in itertools.product(range(heads), range(heads), range(pseudo)):
            if config.collapse == "full":
                joined[:, h] += collapse[h, g, p] * out[:, g, p::pseudo]
            elif g == h:
                joined[:, h] += collapse[h, p] * out[:, g, p::pseudo]
        out = joined
    return torch.einsum("bhnw,hwo->bno", out, attention.join.weight)


@pytest.mark.parametrize("fields", VARIANTS, ids=lambda f: "-".join(str(v) for v in f.values()))
def test_layer_equals_its_equations_and_its_parameter_formula(fields):
    config, layer = build(fields)
    assert sum(p.numel() for p in layer.parameters()) == config.parameters(SIZES)
    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(layer(x), reference(config, layer, x), atol=1e-12)


@pytest.mark.parametrize(
    "fields",
    [f for f in VARIANTS if f["content"] == "positions" and f["score"] != "hard" and f["mask"] == "none"],
    ids=lambda f: "-".join(str(v) for v in f.values()),
)
def test_gradients_of_the_pattern_shortcut_equal_those_of_the_equations(fields):
    config, layer = build(fields)
    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    slow = torch.autograd.grad(reference(config, layer, x).square().sum(), list(layer.parameters()))
    for a, b in zip(fast, slow, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(
    "fields", [f for f in VARIANTS if f["score"] != "hard"], ids=lambda f: "-".join(str(v) for v in f.values())
)
def test_every_parameter_gets_a_gradient_and_matters(fields):
    _, layer = build(fields)
    x = torch.randn(3, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = layer(x)
    before.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, name
        nudge = torch.linspace(-0.1, 0.3, parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        with torch.no_grad():
            parameter += nudge
            assert (layer(x) - before).abs().max() > 1e-9, name
            parameter -= nudge


@pytest.mark.parametrize("start", ["random", "router", "identity"])
def test_pseudo_heads_do_not_stay_tied(start):
    fields = {"attention": "iha", "heads": 2, "pseudo_heads": 3, "score": "softmax", "start": start}
    _, layer = build(fields)
    x = torch.randn(3, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer(x).square().sum().backward()
    for mixing in (layer.attention.mix_query, layer.attention.mix_key, layer.attention.mix_value):
        for a, b in itertools.combinations(range(3), 2):
            assert (mixing[:, :, a] - mixing[:, :, b]).abs().max() > 1e-3
            assert (mixing.grad[:, :, a] - mixing.grad[:, :, b]).abs().max() > 1e-9


@pytest.mark.parametrize("fields", [f for f in VARIANTS if f["mask"] != "none"][::3], ids=str)
def test_causal_masks_hide_the_future(fields):
    _, layer = build({**fields, "output": "mixed"})
    x = torch.randn(1, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[:, 3:] += 1.0
    with torch.no_grad():
        assert torch.allclose(layer(x)[:, :3], layer(changed)[:, :3], atol=1e-12)


def test_ties_share_and_masked_rows_are_zero():
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    k = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert attention_weights(q, k, "hard", 1.0).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    for score in ("linear", "softmax", "hard"):
        queries = q.clone().requires_grad_()
        weights = attention_weights(queries, k, score, 1.0, nothing)
        assert weights.abs().max() == 0
        if score != "hard":
            weights.sum().backward()
            assert queries.grad.isfinite().all()


def test_softmax_tends_to_hard():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    assert torch.allclose(attention_weights(q, k, "softmax", 1e4), attention_weights(q, k, "hard", 1.0), atol=1e-9)


def test_rotary_depends_on_distance_only():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 6, generator=generator, dtype=torch.float64)
    at = lambda m, n: rotary(q, torch.tensor([m])) @ rotary(k, torch.tensor([n])).T  # noqa: E731
    assert torch.allclose(at(5, 2), at(13, 10), atol=1e-12)
    assert torch.allclose(rotary(q, torch.tensor([0])), q)


def test_mha_equals_torch():
    config, layer = build({"attention": "mha", "heads": 2, "content": "features", "value_content": "features",
                           "query_width": 5, "value_width": 5, "mask": "causal"})  # fmt: skip
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    attention = layer.attention
    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(layer(x), attention.join(heads), atol=1e-12)
    assert config.beta(5) == 5**-0.5


@pytest.mark.parametrize(("heads", "outputs"), [(1, 4), (3, 3), (3, 7), (5, 4), (4, 11)])
def test_concatenation_gives_every_output_one_slot_in_order(heads, outputs):
    width = -(-outputs // heads)
    weight = Join(heads, width, outputs, "concat").weight
    assert (weight.sum((0, 1)) == 1).all()
    assert (weight.sum(-1) <= 1).all()
    owner = weight.sum(1).argmax(0)
    assert (owner.diff() >= 0).all()
    counts = torch.bincount(owner, minlength=heads)
    assert counts.max() - counts[counts > 0].min() <= 1
    if width * heads == outputs:
        assert torch.equal(weight.reshape(outputs, outputs), torch.eye(outputs))


@pytest.mark.parametrize("attention", ["mha", "iha"])
def test_stack_equals_single_models_outputs_and_gradients(attention):
    config = ModelConfig.parse({"attention": attention, "heads": 2, "mlp_width": 11})
    sizes = Sizes(5, 3, 4)
    members = []
    for seed in range(3):
        layer = Layer(config, sizes).double()
        layer.reset(torch.Generator().manual_seed(seed))
        members.append(layer)
    ensemble = Ensemble(members)
    x = torch.randn(3, 2, 5, 3, dtype=torch.float64)
    out = ensemble(x)
    out.square().sum().backward()
    for index, member in enumerate(members):
        alone = member(x[index])
        assert torch.allclose(out[index], alone, atol=1e-12)
        alone.square().sum().backward()
        flat = torch.cat([p.grad.flatten() for p in member.parameters()])
        ours = ensemble.rows([block.grad for block in ensemble.weights])[index]
        assert torch.allclose(ours, flat, atol=1e-10)
        restored = Layer(config, sizes).double()
        restored.load_state_dict(ensemble.state(index))
        assert torch.equal(restored(x[index]), alone)


def test_member_weights_depend_on_their_generator_alone():
    config, sizes = ModelConfig.parse({"attention": "iha", "heads": 2}), Sizes(5, 3, 4)
    make = lambda seeds: build_ensemble(  # noqa: E731
        lambda: Layer(config, sizes), [torch.Generator().manual_seed(s) for s in seeds]
    )
    assert torch.equal(make([4, 9]).weights[0][1], make([9]).weights[0][0])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 0}, "heads = 0"),
        ({"heads": 5000}, "heads = 5000"),
        ({"head": 2}, "did you mean 'heads'"),
        ({"attention": "mhaa"}, "did you mean 'mha'"),
        ({"attention": "mha", "pseudo_heads": 2}, "belongs to attention 'iha'"),
        ({"attention": "mha", "rope": "virtual"}, "no virtual tokens"),
        ({"rope": "token", "query_width": 3}, "must be even"),
    ],
)
def test_bad_models_are_refused(fields, words):
    with pytest.raises(BadInput, match=words):
        ModelConfig.parse(fields)


def test_narrow_concatenation_is_refused():
    config = ModelConfig.parse({"heads": 2, "output": "concat", "value_width": 2})
    with pytest.raises(BadInput, match="value_width must be at least 4"):
        Layer(config, SIZES)


def test_a_causal_mask_lets_a_token_see_itself():
    assert causal_mask(3, torch.device("cpu")).tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_registry_classes():
    assert isinstance(build({"attention": "mha"})[1].attention, MultiHeadAttention)
    assert isinstance(build({"attention": "iha"})[1].attention, InterleavedHeadAttention)


@pytest.mark.parametrize("fields", [f for f in VARIANTS if f["score"] != "hard"][::2], ids=str)
def test_padding_is_never_looked_at(fields):
    _, layer = build({**fields, "output": "mixed"})
    generator = torch.Generator().manual_seed(1)
    x, other = torch.randn(2, 2, 5, 3, dtype=torch.float64, generator=generator)
    valid = torch.tensor([[True, True, False, True, False], [True] * 5])
    other = torch.where(valid[..., None], x, other)
    with torch.no_grad():
        assert torch.allclose(layer(x, valid)[valid], layer(other, valid)[valid], atol=1e-12)
        assert torch.allclose(layer(x, valid)[1], layer(x)[1], atol=1e-12)
        assert not torch.allclose(layer(x, valid)[0], layer(x)[0], atol=1e-6)
