"""One readable example of every task, for a look at what is asked."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from headcount.figures.style import DOUBLE
from headcount.tasks import TASKS, describe
from headcount.theory.claims import Evidence

SHOWN: dict[str, dict[str, Any]] = {
    "polynomial": {"tokens": 5, "k": 3}, "filter": {"operator": "florentine", "k": 3}, "cpm3": {"tokens": 4},
    "cpm3_tokens": {"tokens": 6}, "relation": {"smallest": 4, "largest": 4}, "quotient": {"smallest": 4, "largest": 4},
    "function": {"smallest": 8, "largest": 8}, "match": {"smallest": 8, "largest": 8, "modulus": 19},
    "hops": {"sequence": 16, "most_hops": 3}, "recall": {"tokens": 16, "alphabet": 64, "pairs": 3},
    "retrieval": {"filler": 8}, "tracking": {"chains": 2, "hops": 2, "variables": 12, "values": 8}, "babi": {"story_type": 1},
}  # fmt: skip
"""Sizes small enough to read."""

LINES, COLUMNS = 12, 54


def task_samples(evidence: Evidence) -> Figure:
    """One example of every task; needs no stored rows."""
    figure, axes = plt.subplots(5, 3, figsize=(DOUBLE, 6.4))
    for axis, name in zip(axes.flat, TASKS, strict=False):
        task = TASKS[name].parse({"name": name, **SHOWN.get(name, {})})
        lines = [
            part
            for line in describe.show(task, 0, 1).splitlines()
            for part in textwrap.wrap(line, COLUMNS, subsequent_indent="  ") or [""]
        ]
        text = "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "..."])
        axis.text(0, 1, text, family="monospace", fontsize=5, va="top", ha="left", transform=axis.transAxes)
        axis.set_title(name, loc="left", fontweight="bold")
    for axis in axes.flat:
        axis.set_axis_off()
    return figure
