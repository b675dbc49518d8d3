"""Both sides of a condition, on trained models: position-only against content-reading attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headcount.theory.claims.claim import Claim, Evidence, Finding, Verdict, no_evidence
from headcount.theory.floors import family_floor, floor, operator_dimension, operator_family

WELL_BELOW = 0.7
"""A trained error below this share of the position-only floor has left the position-only class."""


def position_floor(evidence: Evidence, run: str) -> float:
    """Floor that the same layer would have if its patterns read positions only."""
    family, model = operator_family(evidence.task_of(run)), evidence.layer_of(run)
    assert family is not None
    return family_floor(family, operator_dimension(model)).floor


def check_border_trained(evidence: Evidence) -> Finding:
    """Content-reading, mixed, linear heads on the cyclic shift: errors below k heads, and the growth of weights."""
    sweeps = ("border-mha", "border-iha")
    predicted = "k - 1 heads (IHA ceil(sqrt(k-1))) go below the position-only floor"
    rows = evidence.where(
        task__name="polynomial",
        task__operator="cyclic",
        model__content="full",
        model__score="linear",
        model__output="mixed",
    )
    if rows.empty:
        return no_evidence(predicted, sweeps)
    rows = rows.assign(floor=[position_floor(evidence, run) for run in rows["id"]])
    keys = ["model.attention", "task.k", "task.tokens", "model.heads"]
    table = rows.sort_values("best_error").groupby(keys, dropna=False).first().reset_index()
    k, heads = table["task.k"], table["model.heads"]
    at_border = np.where(table["model.attention"] == "mha", heads == k - 1, heads == np.ceil(np.sqrt(k - 1)))
    below = table[at_border & (table["floor"] > 0)]
    if below.empty:
        return no_evidence(predicted, sweeps)
    left = below["best_error"] < WELL_BELOW * below["floor"]
    enough = table[np.where(table["model.attention"] == "mha", heads == k, heads == np.ceil(np.sqrt(k)))]
    growth, growth_enough = _growth(rows, below), _growth(rows, enough)
    thresholds = {f"{tolerance:g}": _solved_from(table, tolerance) for tolerance in (0.3, 0.1, 0.05)}
    details: dict[str, Any] = {
        "best errors": table[[*keys, "best_error", "floor", "weight_norm"]].to_dict("records"),
        "fewest heads by tolerance": thresholds,
        "slope of log weight norm in log error, at the border": growth,
        "the same with k heads (IHA: ceil(sqrt k))": growth_enough,
    }
    best = below.sort_values("best_error").iloc[0]
    measured = (
        f"{int(left.sum())} of {len(below)} border settings are below {WELL_BELOW:g} of the floor; best {best['best_error']:.3f} against"
        f" {best['floor']:.3f} ({best['model.attention']}, k = {best['task.k']:.0f}, H = {best['model.heads']:.0f}, N = {best['task.tokens']:.0f});"
        f" weight norm as error^{growth:.2f}, with one head more error^{growth_enough:.2f}"
    )
    if left.all():
        return Finding(Verdict.SUPPORTED, predicted, measured, details)
    return Finding(Verdict.UNRESOLVED, predicted, measured, details)


def _growth(rows: pd.DataFrame, settings: pd.DataFrame) -> float:
    """Slope of log weight norm against log error over all runs of some settings, each about its own mean."""
    keys = ["model.attention", "task.k", "task.tokens", "model.heads"]
    at = rows.merge(settings[keys], on=keys)
    at = at[np.isfinite(at["error"]) & (at["error"] > 0)]
    x, y = np.log(at["error"]), np.log(at["weight_norm"])
    groups = [at[key] for key in keys]
    x, y = x - x.groupby(groups).transform("mean"), y - y.groupby(groups).transform("mean")
    spread = float((x**2).sum())
    return float((x * y).sum() / spread) if spread > 0 else 0.0


def _solved_from(table: pd.DataFrame, tolerance: float) -> list[dict[Any, Any]]:
    keys = ["model.attention", "task.k", "task.tokens"]
    solved = table[table["best_error"] <= tolerance]
    return solved.groupby(keys, dropna=False)["model.heads"].min().reset_index().to_dict("records")


def check_scalar_transport(evidence: Evidence) -> Finding:
    """Softmax heads that read the scalars: on the floor when values read no positions, free of it when they do."""
    sweeps = ("content-features", "content-full")
    predicted = "values without positions: error >= floor; with positions: below it"
    rows = evidence.where(task__name="cpm3", task__target="workspace", model__content="full", model__score="softmax")
    if rows.empty or set(rows["model.value_content"]) != {"features", "full"}:
        return no_evidence(predicted, sweeps)
    scalar = rows[rows["model.value_content"] == "features"]
    scalar = scalar.assign(floor=[floor(evidence.task_of(run), evidence.layer_of(run)) for run in scalar["id"]])
    beaten = scalar[scalar["best_error"] < scalar["floor"] - 4 * scalar["best_stderr"]]
    free = rows[rows["model.value_content"] == "full"]
    free = free.assign(floor=[position_floor(evidence, run) for run in free["id"]])
    free = free[free["floor"] > 0]
    keys = ["model.attention", "task.tokens", "model.heads"]
    best = free.sort_values("best_error").groupby(keys)[["best_error", "floor"]].first().reset_index()
    ratio = best["best_error"] / best["floor"]
    details = {
        "values without positions": scalar.groupby(keys)[["best_error", "floor"]]
        .min()
        .reset_index()
        .to_dict("records"),
        "values with positions": best.to_dict("records"),
        "below the floor though values read no positions": beaten[["id", "best_error", "floor"]].to_dict("records"),
    }
    measured = (
        f"without positions {len(beaten)} of {len(scalar)} trials below the floor; with positions {int((ratio < 0.97).sum())} of {len(best)}"
        f" settings below it, least {ratio.min():.2f} of it"
    )
    if len(beaten):
        return Finding(Verdict.REFUTED, predicted, measured, details, contradicted=True)
    verdict = Verdict.SUPPORTED if (ratio < 0.97).all() else Verdict.UNRESOLVED
    return Finding(verdict, predicted, measured, details)


CONDITIONS = [
    Claim(
        "border-trained",
        "Training finds the border: content-reading mixed heads go below the position-only floor with one head fewer.",
        "ours",
        "The compiled families of the claim 'border' show that k - 1 heads come arbitrarily close, with weights of size "
        "1/eps. Training that finds them must show errors below the position-only floor. How the weight norm grows as "
        "the error falls is measured beside the same slope with one head more, where nothing forces it to grow.",
        check_border_trained,
        ("border-mha", "border-iha"),
    ),
    Claim(
        "cpm3-content",
        "Softmax heads that read the scalars stay on the workspace floor exactly as long as values read no positions.",
        "ours",
        "Without positions in the values a head moves one scalar, so outputs span at most H (IHA: H^2) directions whatever "
        "the attention reads. With them a head can say where it looked, and the bound is gone.",
        check_scalar_transport,
        ("content-features", "content-full"),
    ),
]
