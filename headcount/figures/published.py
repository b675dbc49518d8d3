"""Numbers printed in arXiv 2602.21371 beside what this project has of them: RULER, and the cost of the schedule."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headcount.figures.relation import (
    accuracy_axis,
    at_best_rate,
    bar_legend,
    grouped_bars,
    in_order,
    largest_experiment,
    say,
)
from headcount.figures.style import COLOURS, DOUBLE, SERIES, legend_below
from headcount.theory.claims import Evidence
from headcount.theory.claims.costs import published, schedule

SOURCE = "published, arXiv 2602.21371"
MODELS = {"IHA": "iha", "Global Attention": "mha", "Talking Heads": "talking-heads", "Diff Transformer": "differential"}
"""Published models that are mechanisms here."""

MULTI_KEY = ["multi-key-1", "multi-key-2", "multi-key-3"]


def ruler(evidence: Evidence) -> Figure:
    """Multi-key retrieval (paper Fig. 2): the published RULER numbers of models with 2.4B parameters, and beside them
    small models trained here on the task `retrieval`.

    The left two panels show numbers of the paper, the right one stored rows: test accuracy at each mechanism's
    learning rate with the best validation accuracy.
    """
    numbers = published()["figure2_ruler"]
    rows = evidence.where(task__name="retrieval", task__form=MULTI_KEY)
    rows = rows if rows.empty else rows[rows["best_accuracy"].notna()]
    figure, axes = plt.subplots(1, 3, figsize=(DOUBLE, 2.5 if rows.empty else 3.1))
    exact = dict(sorted(numbers["overall_exact_match"].items(), key=lambda item: item[1]))
    colours = [COLOURS[MODELS.get(name, "rule")] for name in exact]
    bars = axes[0].barh(
        [name.replace(" ", "\n").replace("+", "+\n") for name in exact], exact.values(), 0.7, color=colours
    )
    axes[0].bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes[0].set_xlim(0, 1.2 * max(exact.values()))
    axes[0].set_xlabel("RULER, exact match (%)")
    axes[0].grid(False, axis="y")
    gains, (low, high) = numbers["multikey_gain_over_global_percent"], numbers["multikey_gain_in_abstract_percent"]
    bars = axes[1].bar(list(gains), list(gains.values()), 0.6, color=COLOURS["iha"])
    axes[1].bar_label(bars, fmt="+%g", padding=1, fontsize=7)
    axes[1].axhspan(low, high, color=COLOURS["rule"], alpha=0.3, lw=0)
    axes[1].text(0.03, 0.93, f"grey: abstract,\n{low} to {high} %", fontsize=6, transform=axes[1].transAxes, va="top")
    axes[1].set_ylim(0, 1.12 * max(gains.values()))
    axes[1].set_xlabel("context length")
    axes[1].set_ylabel("IHA over global, multi-key (%)")
    axes[1].grid(False, axis="x")
    for axis in axes[:2]:
        axis.set_title(SOURCE)
    if rows.empty:
        say(axes[2], "ours: no rows yet, run\nheadcount sweep\n--preset mechanisms\n--only mechanisms-retrieval")
        return figure
    rows = largest_experiment(rows, free=("task.pairs", "task.filler"))
    rows = rows.assign(tokens=[evidence.task_of(run).length for run in rows["id"]])
    rows = at_best_rate(rows.assign(network=rows["mechanism"] + rows["tokens"].astype(str)), evidence, "network")
    first, names = rows.iloc[0], in_order(rows)
    grouped_bars(axes[2], rows, "tokens", names)
    accuracy_axis(axes[2], rows, "tokens")
    sizes = f"H = {int(first['model.heads'])}, D = {int(first['model.width'])}, layers: {int(first['model.depth'])}"
    axes[2].set_title(f"ours: {first['task.form']}\n{sizes}")
    axes[2].set_xlabel("tokens of an example")
    bar_legend(figure, names)
    return figure


COSTS = {
    "core": ("attention core, as App. C counts", SERIES[0]),
    "with mixing": ("with mixing and collapse", SERIES[1]),
    "whole": ("whole layer, with projections", SERIES[2]),
}
PRINTED = 3 / 5
PAPER, APPENDIX_D = (20, 20, 128), (8, 8, 16)
"""H, P and head width of the paper's 2.4B model, and of its synthetic runs at D = 128."""


def flop_schedule(evidence: Evidence) -> Figure:
    """FLOPs of 4 windowed IHA layers and 1 global layer over 5 global MHA layers (paper App. C), counted in three
    ways, against P and against N; the paper prints 3/5.

    The window has N / (2 P^2) tokens. Where it falls below one token there is no such schedule: shaded, and dotted
    lines. Needs no stored rows.
    """
    heads, _, width = PAPER
    tokens = 8192
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 3.0), sharey=True)
    every_p = np.arange(1, 129)
    _ratios(axes[0], every_p, [schedule(tokens, heads, int(p), width) for p in every_p], "-")
    axes[0].axvspan((tokens / 2) ** 0.5, every_p[-1], color=COLOURS["rule"], alpha=0.12, lw=0)
    axes[0].set_title(f"N = {tokens:,}, H = {heads}, d = {width}")
    axes[0].set_xlabel("P, pseudo-heads per head")
    every_n = np.unique(np.geomspace(16, 65536, 200).astype(int))
    for (h, p, d), style in ((PAPER, "-"), (APPENDIX_D, "--")):
        _ratios(axes[1], every_n, [schedule(int(n), h, p, d) for n in every_n], style)
        axes[1].axvspan(every_n[0], 2 * p**2, color=COLOURS["rule"], alpha=0.12, lw=0)
    axes[1].set_title("solid: H = P = 20, d = 128; dashed: H = P = 8, d = 16")
    axes[1].set_xlabel("N, tokens")
    axes[0].set_ylabel("cost over global MHA")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_yscale("log")
        axis.set_ylim(0.5, 12)
        axis.set_yticks([0.6, 1, 2, 5, 10], ["3/5", "1", "2", "5", "10"])
        axis.minorticks_off()
        axis.axhline(PRINTED, color=COLOURS["rule"], ls="--", lw=0.8)
    handles = [Line2D([], [], color=colour, label=words) for words, colour in COSTS.values()]
    handles.append(Line2D([], [], color=COLOURS["rule"], ls="--", lw=0.8, label="printed: 3/5"))
    handles.append(Line2D([], [], color=COLOURS["rule"], alpha=0.2, lw=6, label="window below one token"))
    legend_below(figure, handles, 3)
    return figure


def _ratios(axis: Axes, sizes: np.ndarray, costs: list[dict[str, float]], style: str) -> None:
    possible = np.array([cost["window"] >= 1 for cost in costs])
    for kind, (_, colour) in COSTS.items():
        ratios = np.array([cost[kind] for cost in costs])
        axis.plot(sizes, np.where(possible, ratios, np.nan), color=colour, ls=style)
        axis.plot(sizes, np.where(possible, np.nan, ratios), color=colour, ls=":", lw=0.8)


PUBLISHED_FIGURES = {"fig2": ruler, "flop-schedule": flop_schedule}
