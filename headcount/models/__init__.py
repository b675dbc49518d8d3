"""What answers: attention mechanisms, the small network around them, and stacks of many; no task is known here."""

from headcount.models.attention import MECHANISMS, AttentionConfig, Sizes
from headcount.models.ensemble import Ensemble, build_ensemble
from headcount.models.layer import Layer, ModelConfig

__all__ = ["MECHANISMS", "AttentionConfig", "Ensemble", "Layer", "ModelConfig", "Sizes", "build_ensemble"]
