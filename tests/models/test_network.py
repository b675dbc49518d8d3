"""The small network: counts, published protocols, loops, schedules, positions, padding, stacking."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headcount.config import BadInput
from headcount.models import ATTENTION, Ensemble, Network, NetworkConfig, Sizes, build_ensemble
from headcount.models.attention.iha import InterleavedConfig
from headcount.models.attention.mha import MultiHeadConfig
from headcount.models.attention.simplicial import SimplicialConfig
from headcount.models.attention.strassen import StrassenConfig
from headcount.models.presets import (
    RELATION_SIZES,
    RELATION_VOCABULARY,
    interleaved_hybrid,
    local_and_global,
    relation_composition_network,
    strassen_network,
)

from .cases import inputs

SIZES, VOCABULARY = Sizes(tokens=7, features=3, outputs=5), 11
WIDTH = 13

NETWORKS = [
    {},
    {"positions": "none", "norm": "none", "final_norm": False, "mlp": "none", "bias": False},
    {"positions": "one-hot", "norm": "rms", "mlp": "relu", "mlp_width": 17},
    {"mlp": "swiglu", "depth": 2, "loops": 3, "injection": True},
    {"mlp": "relu-stack", "mlp_layers": 2, "head": "mlp", "residual": False},
    {"positions": "rotary", "mechanisms": [{"attention": "strassen", "heads": 2, "rope": "token"}]},
    {"depth": 3, "mechanisms": [{"attention": "iha", "heads": 2, "window": 3}, {"attention": "mha", "heads": 2}]},
    *({"mechanisms": [{"attention": name, "heads": 2, "mask": "causal"}]} for name in ATTENTION),
]
every_network = pytest.mark.parametrize("fields", NETWORKS, ids=str)
ids_or_features = pytest.mark.parametrize("vocabulary", [0, VOCABULARY], ids=["features", "ids"])


def build(fields, vocabulary=0, sizes=SIZES, seed=0):
    config = NetworkConfig.parse({"width": WIDTH, **fields})
    network = Network(config, sizes, vocabulary).double()
    network.reset(torch.Generator().manual_seed(seed))
    return network


def read(vocabulary, seed=1, batch=19):
    if not vocabulary:
        return inputs(batch, SIZES.tokens, SIZES.features, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (batch, SIZES.tokens, SIZES.features), generator=generator)


def counted(module):
    return sum(parameter.numel() for parameter in module.parameters())


@every_network
@ids_or_features
def test_counts_are_the_formulas(fields, vocabulary):
    network = build(fields, vocabulary)
    assert counted(network) == network.config.parameters(SIZES, vocabulary)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        outputs = network(read(vocabulary, batch=1))
    assert outputs.shape == (1, SIZES.tokens, SIZES.outputs)
    if all(mechanism.window is None for mechanism in network.config.mechanisms):
        assert counter.get_total_flops() == network.config.flops(SIZES, vocabulary)


@every_network
@ids_or_features
def test_every_parameter_gets_a_gradient(fields, vocabulary):
    network, x = build(fields, vocabulary), read(vocabulary)
    probe = inputs(19, SIZES.tokens, SIZES.outputs, seed=4)
    (network(x) * probe).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, name


@every_network
@ids_or_features
def test_a_stack_equals_its_members(fields, vocabulary):
    members = [build(fields, vocabulary, seed=seed) for seed in range(3)]
    stack, x = Ensemble(members), torch.stack([read(vocabulary, seed)[:2] for seed in range(3)])
    if vocabulary:
        x[:, :, 5:] = 0
    out = stack(x)
    out.square().sum().backward()
    for index, member in enumerate(members):
        alone = member(x[index])
        assert torch.allclose(out[index], alone, atol=1e-10)
        alone.square().sum().backward()
        flat = torch.cat([p.grad.flatten() for p in member.parameters()])
        assert torch.allclose(stack.rows([block.grad for block in stack.weights])[index], flat, atol=1e-7, rtol=1e-7)


@every_network
def test_padded_ids_and_features_are_never_looked_at(fields):
    valid = torch.arange(SIZES.tokens).expand(19, -1) < 4
    network, x = build(fields, VOCABULARY), read(VOCABULARY)
    padded = x.masked_fill(~valid[..., None], 0)
    with torch.no_grad():
        assert torch.allclose(network(padded)[:, :4], network(x[:, :4]), atol=1e-10)
        network, x = build(fields), read(0)
        other = torch.where(valid[..., None], x, 20 * read(0, seed=5))
        assert torch.allclose(network(x, valid)[:, :4], network(other, valid)[:, :4], atol=1e-10)


def test_the_reported_parameter_counts_of_relation_composition():
    network = Network(relation_composition_network(), RELATION_SIZES, RELATION_VOCABULARY)
    assert counted(network) == 206_849
    simplicial = relation_composition_network(SimplicialConfig(heads=8, bias=True))
    assert counted(Network(simplicial, RELATION_SIZES, RELATION_VOCABULARY)) == 239_873
    # The binary task has relations of up to 10 x 10.
    assert relation_composition_network().parameters(Sizes(100, 1, 1), RELATION_VOCABULARY) == 211_457
    # The reported surplus of interleaved attention, 1,664, is neither of the two collapses.
    surplus = {
        collapse: relation_composition_network(
            InterleavedConfig(heads=8, pseudo_heads=8, collapse=collapse, bias=True)
        ).parameters(RELATION_SIZES, RELATION_VOCABULARY)
        - 206_849
        for collapse in ("full", "per-head")
    }
    assert surplus == {"full": 2048, "per-head": 1600}


def test_the_strassen_protocol_has_no_norm_and_no_output_projection_and_the_published_sizes():
    one = Network(strassen_network(positions="none"), Sizes(64, 8, 1))
    standard = strassen_network(MultiHeadConfig(output="concat"), positions="none", depth=2)
    assert round(counted(one), -2) == 2500
    assert round(counted(Network(standard, Sizes(64, 8, 1))), -2) == 3600
    assert not [name for name, _ in one.named_parameters() if "norm" in name or "join" in name]


def test_one_loop_is_the_plain_network_and_loops_are_tied_layers():
    fields = {"depth": 2, "mechanisms": [{"attention": "mha", "heads": 2}]}
    looped = build({**fields, "loops": 3})
    plain, deep = build(fields), build({**fields, "depth": 6})
    assert counted(looped) == counted(plain)
    state = looped.state_dict()
    plain.load_state_dict(state)
    for name in deep.state_dict():
        if name.startswith("blocks."):
            _, index, rest = name.split(".", 2)
            state[name] = looped.state_dict()[f"blocks.{int(index) % 2}.{rest}"]
    deep.load_state_dict(state)
    x = read(0)
    assert torch.allclose(looped(x), deep(x), atol=1e-11)
    assert not torch.allclose(looped(x), plain(x), atol=1e-3)
    looped.config = looped.config.changed(loops=1)
    assert torch.allclose(looped(x), plain(x), atol=1e-12)


def test_injection_adds_the_embedding_before_every_further_loop():
    fields = {"loops": 2, "mechanisms": [{"attention": "mha", "heads": 2}]}
    network = build({**fields, "injection": True})
    x = read(0)
    embedded = network.embedding(x)
    hidden = network.blocks[0](network.blocks[0](embedded) + embedded)
    assert torch.allclose(network(x), network.head(network.final_norm(hidden)), atol=1e-12)


def test_schedules():
    local = local_and_global(MultiHeadConfig(heads=2, mask="causal"), window=512)
    assert [layer.window for layer in local] == [512] * 4 + [None]
    hybrid = interleaved_hybrid(heads=20, pseudo_heads=20, tokens=8192)
    assert [(layer.attention, layer.window) for layer in hybrid] == [("iha", 10)] * 4 + [("mha", None)]
    assert (hybrid[0].mask, hybrid[0].rope, hybrid[4].mask, hybrid[4].rope) == (
        "flat-causal", "virtual", "causal", "token",
    )  # fmt: skip
    config = NetworkConfig(width=WIDTH, depth=7, mechanisms=local)
    assert [layer.window for layer in config.layers()] == [512] * 4 + [None] + [512] * 2
    with pytest.raises(BadInput, match="needs N >= 2 P"):
        interleaved_hybrid(heads=8, pseudo_heads=8, tokens=100)


def test_a_matched_window_costs_half_of_global_attention():
    sizes = Sizes(8192, 2560, 2560)
    hybrid = interleaved_hybrid(heads=20, pseudo_heads=4, tokens=8192)
    core = [2 * 8192 * layer.visibility.keys(8192) * layer.visibility.pseudo * 2 * 2560 for layer in hybrid]
    assert core[0] / core[4] == 0.5
    assert sum(core) / 5 / core[4] == pytest.approx(3 / 5)
    assert hybrid[4].flops(sizes) == 8 * 8192 * 2560**2 + core[4]


def test_depth_sets_what_depends_on_it():
    config = NetworkConfig.parse({"depth": 3, "mechanisms": [{"attention": "differential", "heads": 2}]})
    network = Network(config, SIZES)
    shares = [block.attention.initial_share for block in network.blocks]
    assert shares[0] == pytest.approx(0.2)
    assert shares == sorted(set(shares))


def test_one_hot_positions_are_the_identity_behind_the_token():
    network, x = build({"positions": "one-hot"}), read(0)
    embedded = network.embedding(x)
    assert torch.equal(embedded[3, :, WIDTH - SIZES.tokens :], torch.eye(SIZES.tokens, dtype=torch.float64))
    assert torch.allclose(embedded[..., : WIDTH - SIZES.tokens], network.embedding.linear(x))
    with pytest.raises(BadInput, match="need a width above 7"):
        build({"positions": "one-hot", "width": 7})


def test_ids_of_a_token_are_summed_and_zero_adds_nothing():
    network = build({"positions": "none"}, VOCABULARY)
    vectors = network.embedding.vectors()
    ids = torch.tensor([[[4, 0, 9]]])
    assert torch.allclose(network.embedding(ids)[0, 0], vectors[0, 4] + vectors[2, 9])
    assert network.embedding(torch.zeros(1, 1, 3, dtype=torch.long)).abs().max() == 0


def test_a_tied_head_reads_out_by_the_embedding():
    sizes = Sizes(7, 1, VOCABULARY)
    network = build({"head": "tied"}, VOCABULARY, sizes)
    assert counted(network) == network.config.parameters(sizes, VOCABULARY)
    ids = torch.randint(1, VOCABULARY, (2, 7, 1))
    outputs = network(ids)
    assert outputs.shape == (2, 7, VOCABULARY)
    assert outputs[..., 0].abs().max() == 0
    outputs.square().sum().backward()
    assert network.embedding.table.grad.abs().min(-1).values.min() > 0
    with pytest.raises(BadInput, match="as many outputs as ids"):
        build({"head": "tied"}, VOCABULARY, Sizes(7, 1, 5))


def test_members_of_a_stack_depend_on_their_generator_alone():
    config = NetworkConfig.parse({"width": WIDTH, "mechanisms": [{"attention": "strassen", "heads": 2}]})
    make = lambda seeds: build_ensemble(  # noqa: E731
        lambda: Network(config, SIZES, VOCABULARY), [torch.Generator().manual_seed(s) for s in seeds]
    )
    two, one = make([4, 9]), make([9])
    assert torch.equal(two.rows(two.weights)[1], one.rows(one.weights)[0])


def test_configurations_survive_the_way_through_plain_data():
    config = NetworkConfig(mechanisms=(StrassenConfig(heads=2), InterleavedConfig(heads=3)), depth=5)
    assert NetworkConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"depht": 2}, "did you mean 'depth'"),
        ({"network": "transformers"}, "did you mean 'transformer'"),
        ({"mechanisms": [{"attention": "strasen"}]}, "strasen"),
        ({"mechanisms": []}, "mechanisms"),
        ({"mlp": "relu-stack", "mlp_width": 3}, "as wide as the network"),
        ({"mlp": "none", "mlp_width": 3}, "needs an mlp"),
        ({"mlp_layers": 3}, "belongs to mlp 'relu-stack'"),
        ({"injection": True}, "loops must be above 1"),
        ({"norm": "none"}, "must be false"),
        ({"positions": "rotary"}, "needs rope in every mechanism"),
    ],
)
def test_bad_networks_are_refused(fields, words):
    with pytest.raises(BadInput, match=words):
        NetworkConfig.parse(fields)


def test_a_vocabulary_needs_tokens():
    with pytest.raises(BadInput, match="no tokens"):
        build({}, 1)
