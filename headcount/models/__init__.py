"""What answers: attention mechanisms, the small network around them, and stacks of many; no task is known here."""

from headcount.models.attention import (
    ATTENTION,
    MECHANISMS,
    AnyMechanism,
    AttentionConfig,
    MechanismDescription,
    Sizes,
    build_mechanism,
    describe_mechanisms,
)
from headcount.models.ensemble import Ensemble, build_ensemble
from headcount.models.layer import Layer, ModelConfig
from headcount.models.network import Network, NetworkConfig

__all__ = [
    "ATTENTION",
    "MECHANISMS",
    "AnyMechanism",
    "AttentionConfig",
    "Ensemble",
    "Layer",
    "MechanismDescription",
    "ModelConfig",
    "Network",
    "NetworkConfig",
    "Sizes",
    "build_ensemble",
    "build_mechanism",
    "describe_mechanisms",
]
