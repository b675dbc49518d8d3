"""Relation composition (paper App. D): final accuracies, learning curves, and accuracy against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from scipy import stats

from headcount.figures.style import COLOURS, COLUMN, DOUBLE, HATCHES, LABELS, MARKERS, NothingToDraw, legend_below
from headcount.models import NetworkConfig, Sizes
from headcount.tasks import Relation, Task, describe, random_stream
from headcount.theory.claims import Evidence

TITLES = {2: "binary", 3: "ternary"}
"""What the paper calls two and three hops."""

RATE = "training.learning_rate"
PAPER_HEADS = 8
FLOORS = {"majority": ":", "own token": "-.", "degrees": "--"}
"""Shortcuts of the task that are drawn, with their line styles."""

SPLITS = {"train_error": ("training", ":"), "error": ("validation", "-"), "test_error": ("test", "--")}
FEW_SEEDS, FEW_MECHANISMS = 5, 6
"""With more of either, learning curves of single seeds are not drawn; with more mechanisms bars have smaller dots."""

NETWORK = [f"model.{name}" for name in NetworkConfig.model_fields if name != "mechanisms"]
"""Columns that describe a network but for its mechanisms."""


# --------------------------------------------------------------------------------------------------
# Which rows belong together


def alike(rows: pd.DataFrame, like: pd.Series, columns: Sequence[str]) -> pd.DataFrame:
    """Rows that agree with `like` in these columns, two missing values being equal."""
    for column in columns:
        rows = rows[rows[column].isna() if pd.isna(like[column]) else rows[column] == like[column]]
    return rows


def protocol_columns(rows: pd.DataFrame) -> list[str]:
    """Columns that say what was asked and how it was trained, but for the learning rate."""
    return [column for column in rows.columns if column.startswith(("task.", "training.")) and column != RATE]


def mechanism_names(rows: pd.DataFrame) -> pd.Series:
    """How a figure calls the mechanism of each row: its label, and the fields in which rows of it differ."""
    outside = {*NETWORK, "model.attention", "model.heads"}
    fields = [column for column in rows.columns if column.startswith("model.") and column not in outside]
    names = pd.Series("", index=rows.index)
    for attention, part in rows.groupby("model.attention"):
        label = pd.Series(" + ".join(LABELS.get(one, one) for one in str(attention).split("+")), index=part.index)
        for field in fields:
            if part[field].nunique(dropna=False) > 1:
                default = "H" if field == "model.pseudo_heads" else "default"
                symbol = "P" if field == "model.pseudo_heads" else field.removeprefix("model.").replace("_", " ")
                values = [default if pd.isna(value) else _plain(value) for value in part[field]]
                label += [f", {symbol} = {value}" for value in values]
        names[part.index] = label
    return names


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def largest_experiment(rows: pd.DataFrame, free: Sequence[str] = (), prefer: pd.Series | None = None) -> pd.DataFrame:
    """Of the experiments in these rows, the one with most mechanisms and rates; it gains a column `mechanism`.

    In an experiment only the mechanism, the learning rate, the seed and the columns in `free` differ.

    Args:
        prefer: a number for each row; experiments with a larger one come first.
    """
    if rows.empty:
        return rows.assign(mechanism="")
    keys = [*protocol_columns(rows), *(column for column in NETWORK if column in rows.columns), "model.heads"]
    keys = [key for key in keys if key not in free and rows[key].nunique(dropna=False) > 1]
    parts = [part for _, part in rows.groupby(keys, dropna=False)] if keys else [rows]

    def rank(part: pd.DataFrame) -> tuple[float, int, int]:
        first = 0.0 if prefer is None else float(prefer[part.index[0]])
        return first, len(part[["model.attention", RATE]].drop_duplicates()), len(part)

    chosen = max(parts, key=rank)
    return chosen.assign(mechanism=mechanism_names(chosen))


def relation_experiment(evidence: Evidence, hops: int) -> pd.DataFrame:
    """The experiment of relation composition that is shown: at the paper's sizes where it is stored, and of
    those the one with most mechanisms and learning rates (see `largest_experiment`)."""
    rows = evidence.where(task__name="relation", task__hops=hops, task__relations="same")
    if rows.empty:
        return rows
    paper = Relation.parse({"name": "relation", "hops": hops})
    at_sizes = [rows[f"task.{field}"] == getattr(paper, field) for field in ("smallest", "largest", "density")]
    prefer = 2 * np.logical_and.reduce(at_sizes) + (rows["model.heads"] == PAPER_HEADS)
    return largest_experiment(rows, prefer=prefer)


def every_size(evidence: Evidence, hops: int) -> pd.DataFrame:
    """All networks trained as in `relation_experiment`, with their costs.

    Adds: mechanism, flops and attention_flops (of one forward pass of one sequence of the longest length), and
    network, which is equal for equal networks.
    """
    shown = relation_experiment(evidence, hops)
    if shown.empty:
        return shown
    rows = evidence.where(task__name="relation", task__hops=hops)
    rows = alike(rows, shown.iloc[0], protocol_columns(rows))
    costs = []
    for run in rows["id"]:
        task, network = evidence.task_of(run), evidence.model_of(run)
        assert isinstance(network, NetworkConfig)
        sizes = Sizes(task.length, task.input_width, task.output_width)
        flops = network.flops(sizes, task.vocabulary)
        costs.append((flops, network.attention_flops(sizes), network.model_dump_json()))
    rows = rows.assign(mechanism=mechanism_names(rows))
    return rows.assign(**dict(zip(("flops", "attention_flops", "network"), zip(*costs, strict=True), strict=True)))


def at_best_rate(rows: pd.DataFrame, evidence: Evidence, network: str) -> pd.DataFrame:
    """For each value of the column `network`, rows at the learning rate with the least mean validation error; a rate
    at which a run diverged comes last."""
    lowest = evidence.curves().groupby("id")["error"].min()
    error = rows["id"].map(lowest).astype(float)
    rows = rows.assign(validation=error.where(rows["best_accuracy"].notna(), np.inf))
    means = rows.groupby([network, RATE], as_index=False)["validation"].mean().sort_values(["validation", RATE])
    return rows.merge(means.drop_duplicates(network)[[network, RATE]], on=[network, RATE])


# --------------------------------------------------------------------------------------------------
# Numbers


def mean_interval(values: pd.Series) -> tuple[float, float, float]:
    """Mean over seeds and its 95 % t interval, which is NaN for a single seed."""
    values = values.dropna()
    if values.empty:
        return math.nan, math.nan, math.nan
    mean, half = float(values.mean()), math.nan
    if len(values) > 1:
        half = float(stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5)
    return mean, mean - half, mean + half


@cache
def shortcut_floors(task: Task) -> dict[str, float]:
    """Accuracy that the shortcuts of `FLOORS` reach on 1024 fresh examples."""
    found = describe.floors(task, 1024, random_stream(0, "validation"))
    return {name: found[name] for name in FLOORS if name in found}


def nodes_words(row: pd.Series) -> str:
    """The range of m."""
    smallest, largest = int(row["task.smallest"]), int(row["task.largest"])
    return f"m = {smallest} to {largest}" if smallest < largest else f"m = {smallest}"


def setting_words(row: pd.Series) -> str:
    """Sizes of the experiment of a row."""
    return f"{TITLES[int(row['task.hops'])]}, {nodes_words(row)}, H = {int(row['model.heads'])}, D = {int(row['model.width'])}"


# --------------------------------------------------------------------------------------------------
# Drawing


def in_order(rows: pd.DataFrame) -> dict[str, str]:
    """Names of the mechanisms in rows -> their attention, in the order of `LABELS`."""
    pairs = rows[["mechanism", "model.attention"]].drop_duplicates().itertuples(index=False)
    known = list(LABELS)
    first = {str(name): str(attention).split("+")[0] for name, attention in pairs}
    return dict(sorted(first.items(), key=lambda pair: (known.index(pair[1]), pair[0])))


def colours_of(names: dict[str, str]) -> dict[str, str]:
    """A colour for each name; several names of one attention get lighter and lighter ones."""
    before: dict[str, int] = {}
    colours = {}
    for name, attention in names.items():
        index = before.get(attention, 0)
        before[attention] = index + 1
        red, green, blue = (1 - 0.6**index * (1 - part) for part in to_rgb(COLOURS[attention]))
        colours[name] = to_hex((red, green, blue))
    return colours


def grouped_bars(axis: Axes, rows: pd.DataFrame, column: str, names: dict[str, str]) -> list[BarContainer]:
    """Bars of mean test accuracy, grouped by `column`, one for each name: 95 % t interval, seeds as dots.

    Returns:
        A container for each name, with the bars of the groups that have rows.
    """
    groups, width = sorted(rows[column].unique()), 0.84 / len(names)
    colours, drawn = colours_of(names), []
    for index, (name, attention) in enumerate(names.items()):
        places, heights = [], []
        for place, group in enumerate(groups):
            values = rows.loc[(rows[column] == group) & (rows["mechanism"] == name), "best_accuracy"].dropna()
            if values.empty:
                continue
            at = place + (index - (len(names) - 1) / 2) * width
            mean, low, high = mean_interval(values)
            places.append(at)
            heights.append(mean)
            if len(values) > 1:
                axis.plot([at, at], [low, high], color="black", lw=0.9, zorder=3)
            spread = np.linspace(-0.25, 0.25, len(values)) * width if len(values) > 1 else [0.0]
            size = 5 if len(names) <= FEW_MECHANISMS else 1.5
            axis.scatter(at + np.asarray(spread), values, s=size, fc="white", ec="black", lw=0.5, zorder=4)
        drawn.append(
            axis.bar(places, heights, 0.9 * width, color=colours[name], hatch=HATCHES[attention], ec="white", lw=0)
        )
    axis.set_xticks(range(len(groups)), [f"{group:g}" for group in groups])
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.grid(False, axis="x")
    return drawn


def bar_legend(figure: Figure, names: dict[str, str]) -> None:
    """What the colours of `grouped_bars` mean, below the figure."""
    colours = colours_of(names)
    handles: list[Patch | Line2D] = [
        Patch(fc=colours[name], hatch=HATCHES[attention], ec="white", lw=0, label=name)
        for name, attention in names.items()
    ]
    handles.append(Line2D([], [], color="black", lw=0.9, label="95 % interval of the mean"))
    handles.append(Line2D([], [], marker="o", ms=2.5, mfc="white", mec="black", mew=0.5, ls="", label="single seeds"))
    legend_below(figure, handles, 5)


def accuracy_axis(axis: Axes, rows: pd.DataFrame, column: str, floors: Sequence[float] = ()) -> None:
    """Limits just around the single seeds, the intervals of `grouped_bars` and the floors; the label says where
    the axis starts."""
    values = rows["best_accuracy"].dropna()
    ends = [end for _, part in rows.groupby([column, "mechanism"]) for end in mean_interval(part["best_accuracy"])]
    shown = [value for value in (*values, *ends, *floors) if value == value]
    low = max(0.0, math.floor(20 * min(shown) - 0.4) / 20)
    axis.set_ylim(low, min(1.005, math.ceil(20 * max(shown) + 0.4) / 20))
    axis.set_ylabel(f"test accuracy (axis starts at {low:g})" if low else "test accuracy")


def floor_lines(axis: Axes, task: Task) -> None:
    """Shortcut floors across a panel, named at its right edge; call it when the limits of y are set."""
    low, high = axis.get_ylim()
    gap, last, named = 0.05 * (high - low), -math.inf, dict[float, str]()
    for name, value in shortcut_floors(task).items():
        axis.axhline(value, color=COLOURS["rule"], lw=0.8, ls=FLOORS[name], zorder=2.5)
        same = next((known for known in named if abs(known - value) < 0.004), value)
        named[same] = f"{named[same]}, {name}" if same in named else name
    for value, words in sorted(named.items()):
        last = max(value, last + gap)
        axis.annotate(
            f"{words.replace(', ', ',' + chr(10))} {value:.2f}", (1, last), (3, 0), fontsize=6, va="center",
            xycoords=("axes fraction", "data"), textcoords="offset points", annotation_clip=False, color="#555555",
        )  # fmt: skip
        last += gap * words.count(",")


def say(axis: Axes, text: str) -> None:
    """Words in place of a panel."""
    axis.set_axis_off()
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, color="#555555")


def final_accuracy(evidence: Evidence) -> Figure:
    """Test accuracy of relation composition by mechanism and learning rate (paper Fig. 3): means over seeds with 95 % intervals, and what shortcuts reach.

    The weights are those that were best on validation.
    """
    found = {hops: relation_experiment(evidence, hops) for hops in TITLES}
    if all(rows.empty for rows in found.values()):
        raise NothingToDraw
    everything = pd.concat([rows for rows in found.values() if not rows.empty])
    figure, axes = plt.subplots(1, 2, figsize=(DOUBLE, 3.0))
    for axis, (hops, rows) in zip(axes, found.items(), strict=True):
        if rows.empty:
            say(axis, f"{TITLES[hops]}: no rows yet, run\nheadcount sweep relation\n--preset quick")
            continue
        task = evidence.task_of(rows["id"].iloc[0])
        floors = shortcut_floors(task).values()
        grouped_bars(axis, rows, RATE, in_order(rows))
        accuracy_axis(axis, rows, RATE, list(floors))
        floor_lines(axis, task)
        axis.set_title(setting_words(rows.iloc[0]))
        axis.set_xlabel("learning rate")
    bar_legend(figure, in_order(everything))
    return figure


def _learning_curves(evidence: Evidence, hops: int) -> Figure:
    rows = relation_experiment(evidence, hops)
    rows = rows if rows.empty else rows[rows["best_accuracy"].notna()]
    if rows.empty:
        raise NothingToDraw
    curves = evidence.curves().merge(rows[["id", "mechanism", RATE]], on="id")
    if curves.empty:
        raise NothingToDraw
    fixed = rows.get("training.training_examples", pd.Series([math.nan])).iloc[0]
    per_epoch = 1 if pd.isna(fixed) else int(fixed) // int(rows["training.batch"].iloc[0])
    names, rates = in_order(rows), sorted(rows[RATE].unique())
    colours, shown = colours_of(names), set()
    columns = min(2, len(rates))
    height = -(-len(rates) // columns)
    figure, axes = plt.subplots(
        height, columns, figsize=(COLUMN if columns == 1 else DOUBLE, 0.5 + 2.6 * height), sharey=True, squeeze=False
    )
    for axis, rate in zip(axes.flat, rates, strict=False):
        for name, attention in names.items():
            part = curves[(curves["mechanism"] == name) & (curves[RATE] == rate)]
            for split, (words, style) in SPLITS.items():
                by_seed = 1 - part.pivot(index="step", columns="id", values=split).astype(float)
                by_seed = by_seed.dropna(axis=1, how="all").set_axis(by_seed.index / per_epoch)
                if by_seed.empty:
                    continue
                shown.add(words)
                if split == "error" and 1 < by_seed.shape[1] <= FEW_SEEDS and len(names) <= FEW_MECHANISMS:
                    axis.plot(by_seed, color=colours[name], lw=0.4, alpha=0.5)
                # Where a seed has stopped early, a mean over the others would jump.
                mean = by_seed.dropna().mean(axis=1)
                axis.plot(
                    mean, color=colours[name], ls=style, marker=MARKERS[attention] if split == "error" else "",
                    ms=3, markevery=max(1, len(mean) // 6),
                )  # fmt: skip
        axis.set_title(f"learning rate {rate:g}")
        axis.set_xlabel("step" if per_epoch == 1 else "epoch")
    for axis in axes.flat[len(rates) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    figure.suptitle(setting_words(rows.iloc[0]), fontsize=8)
    handles = [Line2D([], [], color=colours[n], marker=MARKERS[a], ms=3, label=n) for n, a in names.items()]
    handles += [
        Line2D([], [], color=COLOURS["rule"], ls=style, label=words)
        for words, style in SPLITS.values()
        if words in shown
    ]
    legend_below(figure, handles, 2 if columns == 1 else 5)
    return figure


def binary_curves(evidence: Evidence) -> Figure:
    """Learning curves of binary relation composition (paper Fig. 4): mean over seeds, one panel for each learning rate, one line style for each split.

    Thin lines are the validation accuracies of single seeds; a mean ends where the first seed stops.
    """
    return _learning_curves(evidence, 2)


def ternary_curves(evidence: Evidence) -> Figure:
    """Learning curves of ternary relation composition (paper Fig. 5): mean over seeds, one panel for each learning rate, one line style for each split.

    Thin lines are the validation accuracies of single seeds; a mean ends where the first seed stops.
    """
    return _learning_curves(evidence, 3)


def _cost_axis(axis: Axes) -> None:
    """Log where costs differ much, with ticks that can be read."""
    axis.margins(x=0.12)
    low, high = axis.dataLim.intervalx
    if high > 3 * low:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_minor_locator(NullLocator())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def accuracy_against_cost(evidence: Evidence) -> Figure:
    """Test accuracy of relation composition against parameters and against FLOPs of the attention layers, so that mechanisms can be compared at equal cost.

    One point for each network, at its learning rate with the best validation accuracy: mean over seeds with its
    95 % interval. FLOPs are of one forward pass of one sequence of the longest length, projections included.
    """
    found = {hops: every_size(evidence, hops) for hops in TITLES}
    found = {hops: at_best_rate(rows, evidence, "network") for hops, rows in found.items() if not rows.empty}
    if not found:
        raise NothingToDraw
    names = in_order(pd.concat(found.values()))
    colours = colours_of(names)
    figure, axes = plt.subplots(
        len(found), 2, figsize=(DOUBLE, 0.6 + 2.3 * len(found)), sharey="row", sharex="col", squeeze=False
    )
    costs = {"parameters": "parameters", "attention_flops": "FLOPs of the attention layers"}
    for index, (line, (hops, rows)) in enumerate(zip(axes, found.items(), strict=True)):
        for axis, (cost, words) in zip(line, costs.items(), strict=True):
            for (_, name), part in rows.groupby(["network", "mechanism"]):
                mean, low, high = mean_interval(part["best_accuracy"])
                x, colour = part[cost].iloc[0], colours[name]
                if low < high:
                    axis.plot([x, x], [low, high], color=colour, lw=0.9, alpha=0.7)
                axis.plot(x, mean, MARKERS[names[name]], color=colour, ms=5, zorder=3)
            _cost_axis(axis)
            if index == len(found) - 1:
                axis.set_xlabel(words)
        line[0].set_ylabel(f"{TITLES[hops]}: test accuracy")
    handles = [Line2D([], [], color=colours[n], marker=MARKERS[a], ms=5, ls="", label=n) for n, a in names.items()]
    legend_below(figure, handles, 6)
    return figure


RELATION_FIGURES = {
    "fig3": final_accuracy,
    "fig4": binary_curves,
    "fig5": ternary_curves,
    "relation-cost": accuracy_against_cost,
}
