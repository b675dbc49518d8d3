"""From stored rows to thresholds: the fewest heads that solve a task, by the best seed and by the median."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headcount.theory.fits import Fit, fit_ceiling_law

NOT_THE_PROBLEM = ("task.", "model.")
"""Columns with these beginnings say what was asked and of whom; model.heads is what a threshold is over."""


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with an outcome. A NaN outcome counts as an infinite error: it was tried and failed."""
    done = rows[rows["status"].isin(["done", "nan"])].copy()
    done["best_error"] = done["best_error"].fillna(np.inf)
    return done


def by_heads(rows: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """One row for each problem and head count, over seeds and training settings.

    Adds: seeds (number of trials), best, median (errors; of the weights that were best on validation),
    stderr (of the best), success (share of trials with error <= tolerance), parameters.
    """
    done = finished(rows)
    if done.empty:
        return done
    keys = [column for column in done.columns if column.startswith(NOT_THE_PROBLEM)]
    keys = [column for column in keys if done[column].map(_hashable).nunique(dropna=False) > 1 or column in _ALWAYS]
    done["solved"] = done["best_error"] <= tolerance
    grouped = done.sort_values("best_error").groupby(keys, dropna=False, sort=True)
    return grouped.agg(
        seeds=("seed", "size"),
        best=("best_error", "first"),
        stderr=("best_stderr", "first"),
        median=("best_error", "median"),
        success=("solved", "mean"),
        parameters=("parameters", "first"),
        ids=("id", list),
    ).reset_index()


_ALWAYS = (
    "task.name",
    "task.tokens",
    "task.k",
    "task.operator",
    "task.target",
    "model.attention",
    "model.heads",
)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def thresholds(rows: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """One row for each problem (everything but the head count).

    Adds:
        id: of one of its trials, to ask for task and model.
        heads: fewest heads whose best seed is within tolerance (representability), NaN if none.
        heads_median: fewest heads whose median seed is (learnability), NaN if none.
        failing: most heads below `heads` that were tried and failed; 0 if none was, since no head
            at all answers zero. The threshold lies in (failing, heads].
        success: share of trials within tolerance at `heads`.
        best_below: best error at `failing`.
        parameters: of the model at `heads`.
        seeds: trials at `heads`.
    """
    table = by_heads(rows, tolerance)
    if table.empty:
        return table
    statistics = ["seeds", "best", "stderr", "median", "success", "parameters", "ids", "model.heads"]
    keys = [column for column in table.columns if column not in statistics]
    found = []
    for key, part in table.groupby(keys, dropna=False, sort=True):
        part = part.sort_values("model.heads")
        solved = part[part["best"] <= tolerance]
        learned = part[part["median"] <= tolerance]
        heads = float(solved["model.heads"].iloc[0]) if len(solved) else np.nan
        below = part[part["model.heads"] < heads] if len(solved) else part
        row = dict(zip(keys, key, strict=True))
        row["heads"] = heads
        row["id"] = part["ids"].iloc[0][0]
        row["heads_median"] = float(learned["model.heads"].iloc[0]) if len(learned) else np.nan
        row["failing"] = int(below["model.heads"].max()) if len(below) else 0
        row["best_below"] = float(below["best"].iloc[-1]) if len(below) else np.nan
        row["success"] = float(solved["success"].iloc[0]) if len(solved) else 0.0
        row["parameters"] = float(solved["parameters"].iloc[0]) if len(solved) else np.nan
        row["seeds"] = int(solved["seeds"].iloc[0]) if len(solved) else int(part["seeds"].max())
        found.append(row)
    return pd.DataFrame(found)


def fit_heads(table: pd.DataFrame, size: str) -> Fit:
    """The power law of the thresholds of a table against its column `size`; unsolved sizes bound it from below.

    Raises:
        FitRefused: see `fit_ceiling_law`.
    """
    return fit_ceiling_law(table[size].tolist(), table["failing"].tolist(), table["heads"].fillna(np.inf).tolist())
