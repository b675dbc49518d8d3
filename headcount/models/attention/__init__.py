"""One file per mechanism, one registry."""

from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.iha import InterleavedHeadAttention
from headcount.models.attention.mha import MultiHeadAttention

MECHANISMS: dict[str, type[MultiHeadAttention] | type[InterleavedHeadAttention]] = {
    "mha": MultiHeadAttention,
    "iha": InterleavedHeadAttention,
}


def build_attention(config: AttentionConfig, sizes: Sizes) -> MultiHeadAttention | InterleavedHeadAttention:
    """The layer of a configuration; its weights are undefined until `reset`."""
    return MECHANISMS[config.attention](config, sizes)


__all__ = [
    "MECHANISMS",
    "AttentionConfig",
    "InterleavedHeadAttention",
    "MultiHeadAttention",
    "Sizes",
    "build_attention",
]
