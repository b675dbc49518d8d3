"""The figures of the scaling laws, one function each, drawn from stored rows and theory alone."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from headcount.figures.style import COLOURS, COLUMN, DOUBLE, LABELS, MARKERS, SERIES, NothingToDraw
from headcount.tasks import Polynomial
from headcount.theory.claims import Evidence
from headcount.theory.claims.laws import error_by_heads, longest_series, predicted_parameters
from headcount.theory.fits import FitRefused, fit_power_law
from headcount.theory.floors import epsilon_rank, floor
from headcount.theory.thresholds import fit_heads, thresholds

LEAST_SHOWN = 1e-4
"""Errors below this are drawn here: the last steps of training decide them."""


def _number_axis(axis: Axes, x: bool = True, y: bool = True) -> None:
    """Log axes with plain numbers at the data's own sizes."""
    if x:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_locator(NullLocator())
    if y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_locator(NullLocator())


def _ticks(values: list[float], least_ratio: float = 1.18) -> list[float]:
    """Values far enough apart on a log axis for their labels not to touch."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value / kept[-1] >= least_ratio:
            kept.append(value)
    return kept


def error_against_heads(evidence: Evidence) -> Figure:
    """Relative error of the best seed against heads on polynomial filters, one curve for each k, with the certified
    floor and the tolerance; errors below 0.0001 are drawn there."""
    rows = evidence.where(task__name="polynomial", task__operator="cyclic", model__content="positions")
    if rows.empty:
        raise NothingToDraw
    rows = longest_series(rows, "task.k")
    sizes = sorted(rows["task.k"].unique())
    chosen = sizes[:: max(1, len(sizes) // 4)][-4:]
    if sizes[-1] not in chosen:
        chosen[-1] = sizes[-1]
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.9), sharey=True)
    for axis, attention in zip(axes, ("mha", "iha"), strict=True):
        for colour, size in zip(SERIES, chosen, strict=False):
            part = rows[(rows["task.k"] == size) & (rows["model.attention"] == attention)]
            if part.empty:
                continue
            table = error_by_heads(replace(evidence.recording(), rows=part))
            heads = table["model.heads"].to_numpy()
            axis.plot(heads, np.maximum(table["best"], LEAST_SHOWN), color=colour, marker=MARKERS[attention], lw=0.8)
            task, model = evidence.task_of(part["id"].iloc[0]), evidence.layer_of(part["id"].iloc[0])
            every = np.arange(1, heads.max() + 1)
            floors = [floor(task, model.changed(heads=int(h))) or 0.0 for h in every]
            axis.plot(every, [value if value > LEAST_SHOWN else np.nan for value in floors], color=colour, ls=":")
        axis.axhline(evidence.tolerance, color=COLOURS["rule"], lw=0.8, ls="--")
        axis.set_yscale("log")
        axis.set_ylim(0.7 * LEAST_SHOWN, 1.6)
        axis.set_xlabel("heads H" + (" (P = H)" if attention == "iha" else ""))
        axis.set_title(LABELS[attention])
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("relative error, best seed")
    entries = [(colour, "-", f"k = {int(size)}") for colour, size in zip(SERIES, chosen, strict=False)]
    entries += [(COLOURS["rule"], ":", "certified floor"), (COLOURS["rule"], "--", f"solved: {evidence.tolerance:g}")]
    handles = [Line2D([], [], color=colour, ls=style, label=label) for colour, style, label in entries]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _heads_figure(evidence: Evidence, rows: pd.DataFrame, size: str, symbol: str) -> Figure:
    if rows.empty:
        raise NothingToDraw
    figure, axis = plt.subplots(figsize=(COLUMN, 2.8))
    every: set[float] = set()
    for attention in ("mha", "iha"):
        part = rows[rows["model.attention"] == attention]
        if part.empty:
            continue
        table = thresholds(longest_series(part, size), evidence.tolerance).sort_values(size)
        solved = table[table["heads"].notna()]
        every |= set(solved[size])
        try:
            fit = fit_heads(table, size)
            label = f"{LABELS[attention]}: exponent {fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
        except FitRefused:
            label = LABELS[attention]
        # Where both need as many heads the circle of MHA lies on the square of IHA, and its corners show.
        axis.plot(
            solved[size], solved["heads"], MARKERS[attention], color=COLOURS[attention], label=label,
            ms=3.5 if attention == "mha" else 5, zorder=4 if attention == "mha" else 3,
        )  # fmt: skip
        learned = table[table["heads_median"].notna() & (table["heads_median"] > table["heads"])]
        axis.plot(
            learned[size],
            learned["heads_median"],
            MARKERS[attention],
            mfc="none",
            mec=COLOURS[attention],
            zorder=2,
        )
        grid = np.arange(table[size].min(), table[size].max() + 1)
        law = grid if attention == "mha" else np.ceil(np.sqrt(grid))
        axis.step(grid, law, where="mid", color=COLOURS[attention], lw=0.8, alpha=0.6)
    _number_axis(axis)
    ticks = _ticks(sorted(every))
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlabel(symbol)
    axis.set_ylabel("heads of the smallest solving model")
    axis.plot(
        [],
        [],
        color=COLOURS["rule"],
        lw=0.8,
        label=r"laws: {0} and $\lceil\sqrt{{{0}}}\rceil$".format("N" if symbol[0] == "N" else "k"),
    )
    axis.plot([], [], "o", mfc="none", mec=COLOURS["rule"], label="hollow: median seed, where it needs more")
    axis.set_ylim(top=axis.get_ylim()[1] * 3.2)
    axis.legend(loc="upper left")
    return figure


def heads_against_terms(evidence: Evidence) -> Figure:
    """Heads of the smallest model that solves a polynomial filter, against its number of terms k, with both laws."""
    rows = evidence.where(task__name="polynomial", task__operator="cyclic", model__content="positions")
    return _heads_figure(evidence, rows, "task.k", "k, terms of the polynomial")


def heads_against_length(evidence: Evidence) -> Figure:
    """Heads of the smallest model that builds the workspace of CPM-3, against its length N_max, with both laws."""
    rows = evidence.where(task__name="cpm3", task__target="workspace", model__content="positions")
    return _heads_figure(evidence, rows, "task.tokens", "N_max, tokens of CPM-3")


def parameters_of_smallest(evidence: Evidence) -> Figure:
    """Parameters of the smallest model that solves a polynomial filter, against k and against N; lines are the exact
    count of a model with the predicted heads."""
    rows = evidence.where(task__name="polynomial", task__operator="cyclic", model__content="positions")
    if rows.empty:
        raise NothingToDraw
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.7))
    for axis, size, symbol in zip(axes, ("task.k", "task.tokens"), ("k", "N"), strict=True):
        for attention in ("mha", "iha"):
            part = longest_series(rows[rows["model.attention"] == attention], size)
            if part.empty:
                continue
            table = thresholds(part, evidence.tolerance).sort_values(size)
            table = table[table["heads"].notna()]
            formula = predicted_parameters(table, evidence)
            try:
                fit = fit_power_law(table[size].tolist(), table["parameters"].tolist())
                label = f"{LABELS[attention]}: exponent {fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
            except FitRefused:
                label = LABELS[attention]
            axis.plot(table[size], formula, color=COLOURS[attention], lw=0.9, alpha=0.7)
            axis.plot(table[size], table["parameters"], MARKERS[attention], color=COLOURS[attention], label=label)
        axis.set_yscale("log")
        _number_axis(axis, y=False)
        ticks = _ticks(sorted(set(longest_series(rows, size)[size])))
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xlabel(f"{symbol} ({'N' if symbol == 'k' else 'k'} fixed)")
        axis.legend(loc="upper left")
        axis.set_ylim(top=axis.get_ylim()[1] * 4)
    axes[0].set_ylabel("parameters, smallest solving model")
    return figure


def epsilon_rank_of_graphs(evidence: Evidence) -> Figure:
    """Lines are theory: the eps-rank of I, A, .., A^(k-1) against k for real graphs. Points, where rows are stored,
    are the fewest heads of trained models within the tolerance."""
    graphs = {
        "karate": "karate club",
        "les-miserables": "Les Miserables",
        "davis": "Davis",
        "florentine": "Florentine",
    }
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.7), sharey=True)
    rows = evidence.where(task__name="polynomial", task__operator=list(graphs), model__content="positions")
    terms = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    for axis, (operator, title) in zip(axes, list(graphs.items())[:2], strict=True):
        axis.plot(terms, terms, color=COLOURS["rule"], ls="--", lw=0.8, label="theory: k, orthogonal A")
        for colour, tolerance in zip(SERIES[2:], (0.001, 0.01, 0.1), strict=False):
            ranks = [epsilon_rank(Polynomial.parse({"operator": operator, "k": k}), tolerance) for k in terms]
            axis.plot(terms, ranks, color=colour, label=f"theory: eps-rank at {tolerance:g}")
        part = rows[rows["task.operator"] == operator] if not rows.empty else rows
        for attention in ("mha", "iha"):
            found = part[part["model.attention"] == attention] if not part.empty else part
            table = thresholds(found, evidence.tolerance) if not found.empty else found
            if not table.empty:
                axis.plot(
                    table["task.k"], table["heads"], MARKERS[attention], color=COLOURS[attention], zorder=3,
                    label=f"trained {LABELS[attention]}, {evidence.tolerance:g}",
                )  # fmt: skip
        _number_axis(axis)
        axis.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        axis.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        axis.set_xlabel("k, terms of the polynomial")
        axis.set_title(title)
    axes[0].set_ylabel("operators or heads needed")
    axes[0].legend(loc="upper left")
    if rows.empty:
        axes[1].text(0.03, 0.97, "no trained rows stored", transform=axes[1].transAxes, va="top", color=COLOURS["rule"])
    return figure


def border(evidence: Evidence) -> Figure:
    """Content-reading linear heads on the cyclic shift: error against heads, and weight norm against error."""
    rows = evidence.where(
        task__name="polynomial",
        task__operator="cyclic",
        model__content="full",
        model__score="linear",
        model__output="mixed",
    )
    if rows.empty:
        raise NothingToDraw
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.9))
    tokens = sorted(rows["task.tokens"].unique())
    for colour, length in zip(SERIES, tokens, strict=False):
        for attention in ("mha", "iha"):
            part = rows[(rows["task.tokens"] == length) & (rows["model.attention"] == attention)]
            best = part.groupby("model.heads")["best_error"].min()
            axes[0].plot(best.index, best, color=colour, marker=MARKERS[attention], lw=0.8)
            need = part["task.k"] - 1 if attention == "mha" else np.ceil(np.sqrt(part["task.k"] - 1))
            at = part[part["model.heads"] == need].sort_values("error")
            axes[1].plot(at["error"], at["weight_norm"], MARKERS[attention], color=colour)
    for attention in ("mha", "iha"):
        part = rows[rows["model.attention"] == attention]
        if part.empty:
            continue
        task, model = evidence.task_of(part["id"].iloc[0]), evidence.layer_of(part["id"].iloc[0])
        heads = np.arange(1, part["model.heads"].max() + 1)
        positional = model.changed(content="positions")
        floors = [floor(task, positional.changed(heads=int(h))) or np.nan for h in heads]
        axes[0].plot(
            heads, [value if value > LEAST_SHOWN else np.nan for value in floors], color=COLOURS["rule"], ls=":"
        )
    axes[0].axhline(evidence.tolerance, color=COLOURS["rule"], lw=0.8, ls="--")
    axes[0].set_yscale("log")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_xlabel("heads H")
    axes[0].set_ylabel("relative error, best run")
    _number_axis(axes[1], y=False)
    axes[1].xaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0]))
    axes[1].set_xlabel("relative error at k - 1 heads (IHA: ceil(sqrt(k - 1)))")
    axes[1].set_ylabel("norm of all weights")
    handles = [Line2D([], [], color=c, label=f"N = {int(n)}") for c, n in zip(SERIES, tokens, strict=False)]
    handles += [
        Line2D([], [], color=COLOURS["rule"], marker=MARKERS[a], ls="", label=LABELS[a]) for a in ("mha", "iha")
    ]
    handles.append(Line2D([], [], color=COLOURS["rule"], ls=":", label="floor if positions only"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


LAW_FIGURES = {
    "border": border,
    "error-heads": error_against_heads,
    "heads-k": heads_against_terms,
    "heads-n": heads_against_length,
    "parameters": parameters_of_smallest,
    "eps-rank": epsilon_rank_of_graphs,
}
