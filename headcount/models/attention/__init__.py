"""One file per mechanism, one registry."""

from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.describe import MechanismDescription, describe_mechanisms
from headcount.models.attention.iha import InterleavedHeadAttention, matched_window
from headcount.models.attention.mechanism import Attention, GeneralConfig, MechanismConfig
from headcount.models.attention.mha import MultiHeadAttention
from headcount.models.attention.registry import ATTENTION, AnyMechanism, build_mechanism

MECHANISMS: dict[str, type[MultiHeadAttention] | type[InterleavedHeadAttention]] = {
    "mha": MultiHeadAttention,
    "iha": InterleavedHeadAttention,
}
"""Those of `ATTENTION` that the theory layer offers: with any score, on X_hat = [X, I_N]."""


def build_attention(config: AttentionConfig, sizes: Sizes) -> MultiHeadAttention | InterleavedHeadAttention:
    """The theory layer of a configuration; its weights are undefined until `reset`."""
    return MECHANISMS[config.attention](config, sizes)


__all__ = [
    "ATTENTION",
    "MECHANISMS",
    "AnyMechanism",
    "Attention",
    "AttentionConfig",
    "GeneralConfig",
    "InterleavedHeadAttention",
    "MechanismConfig",
    "MechanismDescription",
    "MultiHeadAttention",
    "Sizes",
    "build_attention",
    "build_mechanism",
    "describe_mechanisms",
    "matched_window",
]
