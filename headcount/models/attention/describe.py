"""All mechanisms side by side: what they cost, and which of them compute nothing that multi-head attention cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headcount.models.attention.config import Sizes
from headcount.models.attention.registry import ATTENTION


@dataclass(frozen=True)
class MechanismDescription:
    """One row of the table of mechanisms.

    Attributes:
        attention: name in configurations.
        label: name in words.
        parameters: trained numbers at the given sizes.
        flops: operations of one forward pass of one sequence.
        memory: how the largest intermediate grows.
        folds: whether the mechanism can be rewritten as multi-head attention with other weights.
        source: where it is defined.
    """

    attention: str
    label: str
    parameters: int
    flops: int
    memory: str
    folds: str
    source: str


def describe_mechanisms(
    sizes: Sizes, heads: int = 1, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> list[MechanismDescription]:
    """Every mechanism with `heads` heads and otherwise default choices.

    Args:
        sizes: tokens, input width and output width.
        heads: H, for all.
        changes: other choices, by mechanism: {"gqa": {"groups": 2}}.
    """
    rows = []
    for name, entry in ATTENTION.items():
        config = entry.config.parse({"heads": heads, **(changes or {}).get(name, {})})
        rows.append(
            MechanismDescription(
                attention=name,
                label=config.label,
                parameters=config.parameters(sizes),
                flops=config.flops(sizes),
                memory=config.memory,
                folds=config.folds,
                source=config.source,
            )
        )
    return rows
