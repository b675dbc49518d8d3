"""A claim: what is said, where, and a check that turns evidence into a verdict and can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pandas as pd

from headcount.models import AttentionConfig, ModelConfig, NetworkConfig
from headcount.tasks import Task
from headcount.theory.constructions import Construction
from headcount.theory.thresholds import finished


class Verdict(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "HOLDS"
    CONDITION = "HOLDS WITH A CONDITION"
    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    UNRESOLVED = "NOT RESOLVED"
    NO_EVIDENCE = "NO EVIDENCE"
    NOT_TESTED = "NOT TESTED HERE"


@dataclass(frozen=True)
class Finding:
    """A verdict with the figures it was computed from.

    Attributes:
        predicted, measured: key figures in words, with intervals.
        details: evidence as plain data: numbers, tables (lists of dictionaries), counterexamples.
        contradicted: whether a law that this project itself states failed.
        corrected: verdict on the corrected form, where the printed one fails.
    """

    verdict: Verdict
    predicted: str
    measured: str
    details: dict[str, Any] = field(default_factory=dict)
    contradicted: bool = False
    corrected: Verdict | None = None


NO_CURVES = pd.DataFrame(columns=["id", "step", "loss", "error", "train_error", "test_error"])


@dataclass(frozen=True)
class Evidence:
    """What checks may read: stored rows, and how to turn a row into its task and model.

    Attributes:
        rows: `Store.rows()`, or an empty table.
        task_of: the task of a stored row, by id.
        model_of: its model configuration.
        read: ids of the rows that `where` has handed out.
        tolerance: relative error that counts as solved.
        curves: learning curves, `Store.curves()`; no rows where none is stored.
    """

    rows: pd.DataFrame
    task_of: Callable[[str], Task]
    model_of: Callable[[str], ModelConfig | NetworkConfig]
    tolerance: float
    curves: Callable[[], pd.DataFrame] = lambda: NO_CURVES
    read: set[str] = field(default_factory=set, compare=False)

    def recording(self) -> Evidence:
        """The same evidence with an empty `read`: the ids of rows that `where` hands out from here on."""
        return replace(self, read=set())

    def layer_of(self, run: str) -> ModelConfig:
        """The configuration of a run that trained a theory layer."""
        model = self.model_of(run)
        assert isinstance(model, ModelConfig)
        return model

    def where(self, **fields: Any) -> pd.DataFrame:
        """Finished rows with these values; `task__k=4` stands for the column task.k, a list for any of its
        values, and None for a field that was left open."""
        rows = self.rows if self.rows.empty else finished(self.rows)
        for key, value in fields.items():
            column = key.replace("__", ".")
            if rows.empty or column not in rows.columns:
                return rows.iloc[0:0]
            if value is None:
                rows = rows[rows[column].isna()]
            else:
                rows = rows[rows[column].isin(value if isinstance(value, list) else [value])]
        self.read.update(rows["id"] if len(rows) else ())
        return rows


def heads_of(construction: Construction) -> int:
    """Heads of a compiled attention layer."""
    config = construction.module.config
    assert isinstance(config, AttentionConfig)
    return config.heads


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes:
        id: short name.
        statement: the claim as it is checked, in one sentence.
        source: where it stands in the paper (arXiv 2602.21371), or "ours".
        derivation: why it should hold or not, in plain words.
        check: evidence -> finding.
        sweeps: sweeps whose rows it reads, of the quick preset or of SWEPT_BY; empty for exact claims.
        printed, corrected: the printed form and ours, where they differ.
    """

    id: str
    statement: str
    source: str
    derivation: str
    check: Callable[[Evidence], Finding]
    sweeps: tuple[str, ...] = ()
    printed: str = ""
    corrected: str = ""

    @property
    def rerun(self) -> str:
        """The command that computes this claim again."""
        return f"headcount check {self.id}" if self.sweeps else f"headcount claims verify {self.id}"

    def finding(self, evidence: Evidence) -> Finding:
        """The verdict on this evidence."""
        return self.check(evidence)


SWEPT_BY = {"border-mha": "conditions", "content-features": "conditions", "relation-binary": "relation-paper"}
"""Preset of sweeps that are not in the quick one."""


def no_evidence(predicted: str, sweeps: tuple[str, ...]) -> Finding:
    """What a check says when no stored row speaks to it: never a pass."""
    command = f"headcount sweep --preset {SWEPT_BY.get(sweeps[0], 'quick')} --only {','.join(sweeps)}"
    return Finding(Verdict.NO_EVIDENCE, predicted, f"run: {command}", {"run": command})
