"""Tables: the published ones recomputed, and relation composition with paired differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import pandas as pd

from headcount.figures.relation import (
    FLOORS,
    NETWORK,
    RATE,
    TITLES,
    alike,
    every_size,
    in_order,
    mean_interval,
    nodes_words,
    shortcut_floors,
)
from headcount.figures.style import NothingToDraw
from headcount.theory.claims import Evidence
from headcount.theory.claims.costs import average_ranks, published

ROUNDING = 0.051
"""Printed numbers have one decimal: a difference above this is no rounding."""

NEAR = 0.05
"""Costs that differ by at most this share of the larger are equal."""


def sft_table(evidence: Evidence) -> pd.DataFrame:
    """The published table of fine-tuned models (paper Table 1), with differences to global attention and average
    ranks recomputed."""
    return _recomputed("table1_sft")


def pretrained_table(evidence: Evidence) -> pd.DataFrame:
    """The published table of pre-trained models (paper Table 2), with differences to global attention and average
    ranks recomputed."""
    return _recomputed("table2_pretrained")


def _recomputed(name: str) -> pd.DataFrame:
    content = published()[name]
    values = pd.DataFrame.from_dict(content["rows"], orient="index", columns=content["columns"], dtype=float)
    # As many decimals as the paper prints in a column.
    decimals = {
        column: max(len(f"{value}".partition(".")[2]) for value in values[column].dropna()) for column in values
    }
    deltas = (values - values.loc["Global Attention"]).round(decimals)
    printed = content.get("printed_delta_vs_global", {})
    places = values.rank(ascending=False, method="min")
    rows = []
    for model in values.index:
        row = {"model": model}
        for column, theirs in itertools.zip_longest(values.columns, printed.get(model, [])):
            row[column] = _cell(values, deltas, places, model, column, theirs, decimals[column])
        ours, rank = (
            average_ranks(values.to_numpy())[values.index.get_loc(model)],
            content["printed_average_rank"][model],
        )
        row["average rank"] = f"{ours:.2f}" + (f" (printed {rank:g})" if abs(ours - rank) > ROUNDING else "")
        rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs["note"] = (
        "Scores are published (arXiv 2602.21371); +/- is the difference to global attention and the rank the mean over "
        "columns, ties shared and missing scores left out, both recomputed. [1] best and [2] second best of a column. "
        "'printed' stands where the paper prints another number."
    )
    return table


def _cell(
    values: pd.DataFrame, deltas: pd.DataFrame, places: pd.DataFrame, model: str, column: str, theirs: float | None,
    decimals: int,
) -> str:  # fmt: skip
    value, delta, place = (frame.loc[model, column] for frame in (values, deltas, places))
    if math.isnan(value):
        return "not reported"
    text = f"{value:.{decimals}f}" + (f" [{place:.0f}]" if place <= 2 else "")
    if model == "Global Attention":
        return text
    differs = theirs is not None and abs(delta - theirs) > ROUNDING
    return f"{text} ({delta:+.{decimals}f}" + (f"; printed {theirs:+g})" if differs else ")")


def relation_table(evidence: Evidence) -> pd.DataFrame:
    """Relation composition (paper App. D): mean test accuracy with its 95 % interval, parameters, FLOPs, and what
    shortcuts reach, for each task, network and learning rate."""
    made = []
    for hops, rows in _networks(evidence).items():
        floors = shortcut_floors(evidence.task_of(rows["id"].iloc[0]))
        for (_, rate), part in rows.groupby(["network", RATE], sort=False):
            first, (mean, low, high) = part.iloc[0], mean_interval(part["best_accuracy"])
            made.append(
                {
                    "task": _task_words(hops, first), "mechanism": first["mechanism"], "heads": int(first["model.heads"]),
                    "width": int(first["model.width"]), "learning rate": rate, "seeds": len(part),
                    "diverged": int(part["best_accuracy"].isna().sum()), "test accuracy": mean, "low": low, "high": high,
                    "parameters": int(first["parameters"]), "FLOPs": int(first["flops"]),
                    "attention FLOPs": int(first["attention_flops"]), **{name: floors[name] for name in FLOORS},
                }
            )  # fmt: skip
    table = pd.DataFrame(made)
    table.attrs["note"] = (
        "Accuracy of the weights that were best on validation; the interval is Student's over seeds. FLOPs are of one "
        "forward pass of one sequence of the longest length, those of attention with its projections. "
        f"{', '.join(FLOORS)}: accuracy of shortcuts."
    )
    return table


def relation_differences(evidence: Evidence) -> pd.DataFrame:
    """Paired differences of test accuracy on relation composition to MHA and to 2-simplicial attention, over seeds
    with 95 % t intervals: at equal heads and width, equal parameters or equal attention FLOPs."""
    made = []
    for hops, rows in _networks(evidence).items():
        for rate, at_rate in rows.groupby(RATE):
            parts = [part for _, part in at_rate.groupby("network", sort=False)]
            bases = [part for part in parts if part["model.attention"].iloc[0] in ("mha", "simplicial")]
            for base, part in itertools.product(bases, parts):
                one, other = part.iloc[0], base.iloc[0]
                equal = _equal(one, other)
                # MHA against 2-simplicial attention would be the same pair again.
                again = (one["model.attention"], other["model.attention"]) == ("mha", "simplicial")
                if one["model.attention"] == other["model.attention"] or again or not equal:
                    continue
                by_seed = [side.set_index("seed")["best_accuracy"] for side in (part, base)]
                gaps = (by_seed[0] - by_seed[1]).dropna()
                mean, low, high = mean_interval(gaps)
                made.append(
                    {
                        "task": _task_words(hops, one), "learning rate": rate, "mechanism": _network_words(one),
                        "against": _network_words(other), "equal": ", ".join(equal), "seeds": len(gaps),
                        "difference": mean, "low": low, "high": high,
                        "parameters, ratio": one["parameters"] / other["parameters"],
                        "attention FLOPs, ratio": one["attention_flops"] / other["attention_flops"],
                    }
                )  # fmt: skip
    if not made:
        raise NothingToDraw
    table = pd.DataFrame(made)
    table.attrs["note"] = (
        "Paired: equal seeds saw the same data. 'equal' says in what the two agree: heads (the same network but for the "
        f"mechanism), parameters or attention FLOPs (within {NEAR:.0%}). Intervals are not widened for the number of comparisons."
    )
    return table


def _networks(evidence: Evidence) -> dict[int, pd.DataFrame]:
    """Rows of `every_size` by hops, in the order of mechanisms, then sizes, then seeds.

    Raises:
        NothingToDraw: if there are none.
    """
    found = {hops: every_size(evidence, hops) for hops in TITLES}
    found = {hops: rows for hops, rows in found.items() if not rows.empty}
    if not found:
        raise NothingToDraw
    for hops, rows in found.items():
        place = rows["mechanism"].map({name: place for place, name in enumerate(in_order(rows))})
        found[hops] = rows.assign(place=place).sort_values(["place", "parameters", "network", RATE, "seed"])
    return found


def _equal(one: pd.Series, other: pd.Series) -> list[str]:
    """In what two networks agree."""
    heads = not alike(other.to_frame().T, one, [*NETWORK, "model.heads"]).empty
    near = {
        name: abs(one[column] - other[column]) <= NEAR * max(one[column], other[column])
        for name, column in (("parameters", "parameters"), ("attention FLOPs", "attention_flops"))
    }
    return ["heads"] * heads + [name for name, holds in near.items() if holds]


def _task_words(hops: int, row: pd.Series) -> str:
    return f"{TITLES[hops]}, {nodes_words(row)}"


def _network_words(row: pd.Series) -> str:
    return f"{row['mechanism']}, H = {int(row['model.heads'])}, D = {int(row['model.width'])}"


TABLES: dict[str, Callable[[Evidence], pd.DataFrame]] = {
    "table1": sft_table,
    "table2": pretrained_table,
    "relation": relation_table,
    "relation-differences": relation_differences,
}
"""Every table by name: evidence -> rows, with a note in `attrs["note"]`."""


# --------------------------------------------------------------------------------------------------
# Writing


def _text(value: Any) -> str:
    if not isinstance(value, Real):
        return str(value)
    if math.isnan(float(value)):
        return ""
    if isinstance(value, Integral):
        return f"{value:,}"
    number = float(value)
    return f"{round(number, 4) if abs(number) >= 0.001 else number:.4g}"


def to_markdown(table: pd.DataFrame, caption: str) -> str:
    """A table with its caption above and its note below."""
    right = [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    lines = [list(table.columns), ["--:" if side else "---" for side in right]]
    lines += [[_text(value) for value in row] for row in table.itertuples(index=False)]
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([caption, "", *body, "", table.attrs.get("note", "")]).rstrip() + "\n"


_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in text)


def to_latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """A table environment in the style of booktabs, every cell escaped."""
    sides = "".join("r" if pd.api.types.is_numeric_dtype(kind) else "l" for kind in table.dtypes)
    rows = [[_text(value) for value in row] for row in table.itertuples(index=False)]
    head, *body = (" & ".join(map(_escape, line)) + r" \\" for line in [list(table.columns), *rows])
    note = _escape(table.attrs.get("note", ""))
    return "\n".join([
        r"\begin{table}", r"\centering", r"\footnotesize", rf"\caption{{{_escape(caption)}}}", rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
        *([rf"\par\smallskip {note}"] if note else []), r"\end{table}", "",
    ])  # fmt: skip
