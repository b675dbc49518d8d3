"""The one list of mechanisms: name, configuration, module."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import pydantic

from headcount.models.attention.clift import CliftAttention, CliftConfig
from headcount.models.attention.config import Sizes
from headcount.models.attention.differential import DifferentialAttention, DifferentialConfig
from headcount.models.attention.explicit import ExplicitConfig, ExplicitMultiHeadAttention
from headcount.models.attention.grouped import GroupedQueryAttention, GroupedQueryConfig, MultiQueryConfig
from headcount.models.attention.iha import InterleavedConfig, InterleavedHeadAttention
from headcount.models.attention.knocking_heads import KnockingHeadsAttention, KnockingHeadsConfig
from headcount.models.attention.mechanism import Attention, GeneralConfig
from headcount.models.attention.mha import MultiHeadAttention, MultiHeadConfig
from headcount.models.attention.multi_token import MultiTokenAttention, MultiTokenConfig
from headcount.models.attention.simplicial import SimplicialConfig, ThirdOrderConfig, TrilinearAttention
from headcount.models.attention.strassen import StrassenAttention, StrassenConfig
from headcount.models.attention.talking_heads import TalkingHeadsAttention, TalkingHeadsConfig
from headcount.models.attention.virtual_heads import VirtualHeadAttention, VirtualHeadConfig

AnyMechanism = Annotated[
    MultiHeadConfig
    | MultiQueryConfig
    | GroupedQueryConfig
    | TalkingHeadsConfig
    | KnockingHeadsConfig
    | MultiTokenConfig
    | SimplicialConfig
    | CliftConfig
    | ThirdOrderConfig
    | StrassenConfig
    | DifferentialConfig
    | InterleavedConfig
    | VirtualHeadConfig
    | ExplicitConfig,
    pydantic.Field(discriminator="attention"),
]


class Entry(NamedTuple):
    """A mechanism's configuration and module; the module is built from (configuration, sizes)."""

    config: type[Any]
    module: type[Any]


ATTENTION: dict[str, Entry] = {
    "mha": Entry(MultiHeadConfig, MultiHeadAttention),
    "mqa": Entry(MultiQueryConfig, GroupedQueryAttention),
    "gqa": Entry(GroupedQueryConfig, GroupedQueryAttention),
    "talking-heads": Entry(TalkingHeadsConfig, TalkingHeadsAttention),
    "knocking-heads": Entry(KnockingHeadsConfig, KnockingHeadsAttention),
    "multi-token": Entry(MultiTokenConfig, MultiTokenAttention),
    "simplicial": Entry(SimplicialConfig, TrilinearAttention),
    "clift": Entry(CliftConfig, CliftAttention),
    "third-order": Entry(ThirdOrderConfig, TrilinearAttention),
    "strassen": Entry(StrassenConfig, StrassenAttention),
    "differential": Entry(DifferentialConfig, DifferentialAttention),
    "iha": Entry(InterleavedConfig, InterleavedHeadAttention),
    "virtual-heads": Entry(VirtualHeadConfig, VirtualHeadAttention),
    "explicit": Entry(ExplicitConfig, ExplicitMultiHeadAttention),
}


def build_mechanism(config: GeneralConfig, sizes: Sizes) -> Attention:
    """The module of a configuration; its weights are undefined until `reset`."""
    for entry in ATTENTION.values():
        if isinstance(config, entry.config):
            module: Attention = entry.module(config, sizes)
            return module
    raise TypeError(f"no mechanism for {type(config).__name__}")
