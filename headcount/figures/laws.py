"""The figures of the scaling laws, one function each, drawn from stored rows and theory alone."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from headcount.figures.style import COLOURS, COLUMN, DOUBLE, LABELS, MARKERS, SERIES
from headcount.tasks import Polynomial
from headcount.theory.claims import Evidence
from headcount.theory.claims.laws import closed_form_parameters, error_by_heads, longest_series
from headcount.theory.fits import FitRefused, fit_ceiling_law, fit_power_law
from headcount.theory.floors import epsilon_rank, floor, predicted_heads
from headcount.theory.thresholds import thresholds


class NothingToDraw(Exception):
    """The store holds no row for this figure."""


def _number_axis(axis: Axes, x: bool = True, y: bool = True) -> None:
    """Log axes with plain numbers at the data's own sizes."""
    if x:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
    if y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(NullFormatter())


def _ticks(values: list[float], least_ratio: float = 1.18) -> list[float]:
    """Values far enough apart on a log axis for their labels not to touch."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value / kept[-1] >= least_ratio:
            kept.append(value)
    return kept


def error_against_heads(evidence: Evidence) -> Figure:
    """Relative error of the best seed against heads, one curve for each k, with floor and tolerance."""
    rows = evidence.where(task__name="polynomial", task__operator="cyclic", model__content="positions")
    if rows.empty:
        raise NothingToDraw
    rows = longest_series(rows, "task.k")
    sizes = sorted(rows["task.k"].unique())
    chosen = sizes[:: max(1, len(sizes) // 4)][-4:]
    if sizes[-1] not in chosen:
        chosen[-1] = sizes[-1]
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.7), sharey=True)
    for axis, attention in zip(axes, ("mha", "iha"), strict=True):
        for colour, size in zip(SERIES, chosen, strict=False):
            part = rows[(rows["task.k"] == size) & (rows["model.attention"] == attention)]
            if part.empty:
                continue
            table = error_by_heads(Evidence(part, evidence.task_of, evidence.model_of, evidence.tolerance))
            heads = table["model.heads"].to_numpy()
            axis.plot(heads, np.maximum(table["best"], 1e-4), color=colour, marker=MARKERS[attention], ls="-")
            task, model = evidence.task_of(part["id"].iloc[0]), evidence.model_of(part["id"].iloc[0])
            every = np.arange(1, heads.max() + 1)
            floors = [floor(task, model.changed(heads=int(h))) for h in every]
            shown = [max(value, 1e-4) if value else np.nan for value in floors]
            axis.plot(every, shown, color=colour, ls=":", lw=1.0)
            axis.plot([], [], color=colour, label=f"k = {int(size)}")
        axis.axhline(evidence.tolerance, color=COLOURS["rule"], lw=0.8, ls="--")
        axis.set_yscale("log")
        axis.set_ylim(8e-5, 1.6)
        axis.set_xlabel("heads H" + (" (P = H)" if attention == "iha" else ""))
        axis.set_title(LABELS[attention])
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("relative error, best seed")
    axes[0].legend(loc="lower left")
    axes[1].plot([], [], color=COLOURS["rule"], ls=":", label="certified floor")
    axes[1].plot([], [], color=COLOURS["rule"], ls="--", lw=0.8, label=f"solved: {evidence.tolerance:g}")
    handles, labels = axes[1].get_legend_handles_labels()
    axes[1].legend(handles[-2:], labels[-2:], loc="lower left")
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
            fit = fit_ceiling_law(
                table[size].tolist(), table["failing"].tolist(), table["heads"].fillna(np.inf).tolist()
            )
            label = f"{LABELS[attention]}: exponent {fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
        except FitRefused:
            label = LABELS[attention]
        axis.plot(solved[size], solved["heads"], MARKERS[attention], color=COLOURS[attention], label=label, zorder=3)
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
    axis.plot([], [], color=COLOURS["rule"], lw=0.8, label="laws: k and ceil(sqrt k)" if symbol[0] != "N" else "laws: N and ceil(sqrt N)")  # fmt: skip
    axis.plot([], [], "o", mfc="none", mec=COLOURS["rule"], label="hollow: median seed, where it needs more")
    axis.set_ylim(top=axis.get_ylim()[1] * 3.2)
    axis.legend(loc="upper left")
    return figure


def heads_against_terms(evidence: Evidence) -> Figure:
    """Heads of the smallest solving model against k, log axes, with both laws."""
    rows = evidence.where(task__name="polynomial", task__operator="cyclic", model__content="positions")
    return _heads_figure(evidence, rows, "task.k", "k, terms of the polynomial")


def heads_against_length(evidence: Evidence) -> Figure:
    """The same for the CPM-3 workspace against N_max."""
    rows = evidence.where(task__name="cpm3", task__target="workspace", model__content="positions")
    return _heads_figure(evidence, rows, "task.tokens", "N_max, tokens of CPM-3")


def parameters_of_smallest(evidence: Evidence) -> Figure:
    """Parameters of the smallest solving model against k and against N, with the exact formula."""
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
            first = part.drop_duplicates(size).set_index(size)["id"]
            formula = []
            for value in table[size]:
                task, model = evidence.task_of(first[value]), evidence.model_of(first[value])
                heads = predicted_heads(task, attention, evidence.tolerance)
                formula.append(closed_form_parameters(task, model.changed(heads=heads)))
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
    """The eps-rank of I, A, .., A^(k-1) against k for real graphs, with the trained thresholds of MHA."""
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
        axis.plot(terms, terms, color=COLOURS["rule"], ls="--", lw=0.8, label="k: orthogonal A")
        for colour, tolerance in zip(SERIES, (0.001, 0.01, 0.1), strict=False):
            ranks = [epsilon_rank(Polynomial.parse({"operator": operator, "k": k}), tolerance) for k in terms]
            axis.plot(terms, ranks, color=colour, label=f"eps-rank, {tolerance:g}")
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
    return figure


FIGURES = {
    "error-heads": error_against_heads,
    "heads-k": heads_against_terms,
    "heads-n": heads_against_length,
    "parameters": parameters_of_smallest,
    "eps-rank": epsilon_rank_of_graphs,
}
