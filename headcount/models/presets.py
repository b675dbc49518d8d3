"""Networks of published protocols, and schedules of mechanisms over layers."""

from __future__ import annotations

from typing import Any, TypeVar

from headcount.models.attention import AnyMechanism, Sizes, matched_window
from headcount.models.attention.iha import InterleavedConfig
from headcount.models.attention.mechanism import GeneralConfig
from headcount.models.attention.mha import MultiHeadConfig
from headcount.models.attention.strassen import StrassenConfig
from headcount.models.network import NetworkConfig

AnyConfig = TypeVar("AnyConfig", bound=GeneralConfig)

RELATION_SIZES = Sizes(tokens=64, features=1, outputs=1)
"""An 8 x 8 relation, the largest of the ternary task of arXiv 2602.21371, App. D, one entry a token."""

RELATION_VOCABULARY = 3
"""Padding, absent, present."""


def relation_composition_network(mechanism: AnyMechanism | None = None, **changes: Any) -> NetworkConfig:
    """The one-layer network of the relation tasks of arXiv 2602.21371, App. D, as far as a third party's
    parameter counts pin it down.

    The paper gives one layer and H = 8. D = 128, an MLP of 4 D, two LayerNorms, biases everywhere, 64 learned
    positions, two tokens and a head of 128 + 1 give the reported 206,849 parameters of multi-head attention on
    `RELATION_SIZES`, and 239,873 of the reported "about 240 thousand" of 2-simplicial attention. The binary
    task's 10 x 10 relations need 100 positions: 211,457.

    Args:
        mechanism: multi-head attention with 8 heads and biases if not given.
        changes: fields of `NetworkConfig` to be set otherwise.
    """
    fields: dict[str, Any] = {"width": 128, "positions": "learned", "norm": "layer", "final_norm": False, **changes}
    return NetworkConfig(mechanisms=(mechanism or MultiHeadConfig(heads=8, bias=True),), **fields)


def strassen_network(mechanism: AnyMechanism | None = None, **changes: Any) -> NetworkConfig:
    """The network of arXiv 2501.19215, App. C: no norms, no W_O, an MLP of three [linear, ReLU] and a head with one
    hidden layer. Its dropout is left out.

    Args:
        mechanism: Strassen attention with one head if not given; it must have output "concat".
        changes: fields of `NetworkConfig` to be set otherwise.
    """
    fields: dict[str, Any] = {"width": 16, "norm": "none", "final_norm": False, "mlp": "relu-stack", "head": "mlp"}
    return NetworkConfig(mechanisms=(mechanism or StrassenConfig(output="concat"),), **{**fields, **changes})


def local_and_global(mechanism: AnyConfig, window: int, local_layers: int = 4) -> tuple[AnyConfig, ...]:
    """A schedule of `local_layers` layers with a window and one without (4 : 1 with W = 512 in arXiv 2602.21371)."""
    return (mechanism.changed(window=window),) * local_layers + (mechanism.changed(window=None),)


def interleaved_hybrid(
    heads: int, pseudo_heads: int, tokens: int, local_layers: int = 4, **changes: Any
) -> tuple[InterleavedConfig | MultiHeadConfig, ...]:
    """The FLOP-matched schedule of arXiv 2602.21371, Sec. 5.1: interleaved attention in windows of
    N / (2 P^2) tokens, four times, then global multi-head attention.

    Args:
        changes: fields of the interleaved layers to be set otherwise.

    Raises:
        BadInput: if N < 2 P^2, where no window matches.
    """
    fields: dict[str, Any] = {"mask": "flat-causal", "rope": "virtual", "start": "identity", **changes}
    window = matched_window(tokens, pseudo_heads)
    local = InterleavedConfig(heads=heads, pseudo_heads=pseudo_heads, window=window, **fields)
    whole = MultiHeadConfig(
        heads=heads,
        mask="none" if local.mask == "none" else "causal",
        rope="none" if local.rope == "none" else "token",
        rope_base=local.rope_base,
        bias=local.bias,
    )
    return (local,) * local_layers + (whole,)
