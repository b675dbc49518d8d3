"""From the JSON files of a results folder to one page of tables and one figure."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

from headcount.api import write_text
from headcount.figures.style import DOUBLE, SERIES, paper_style

FIGURE = "stacks.png"

_LOOKS = {"stacked": SERIES[1], "compiled": SERIES[3], "loop": SERIES[0], "JAX": SERIES[2]}
_LINES = {
    "1 core": (":", "o"),
    "all cores by threads": ("--", "^"),
    "all cores by processes": ("-", "s"),
    "all cores": ("-", "s"),
}


def newest(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Of every piece on every kind of device, the latest that is not quick, else the latest."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        for name, piece in json.loads(path.read_text("utf-8")).items():
            key = name, "cpu" if piece["machine"]["device"] == "cpu" else "gpu"
            if key not in found or _rank(piece) >= _rank(found[key]):
                found[key] = piece
    return found


def _rank(piece: Mapping[str, Any]) -> tuple[bool, str]:
    return not piece["quick"], piece["date"]


def render(folder: Path, pieces: Mapping[str, Callable[..., Any]]) -> None:
    """Write README.md and the figure anew.

    Args:
        pieces: by name, in the order of the page; their docstrings stand above the tables.
    """
    found = newest(folder)
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks` from the JSON files beside it, which hold the time of every round. Contenders take",
        "turns within one run; numbers are medians of the rounds (five, or two in a quick run, whose times mean nothing).",
        "Compare the numbers of one table with each other, not with those of another machine.",
    ]
    if not any(device == "gpu" for _, device in found):
        lines += ["", "No figure of a GPU has been measured: `benchmarks/gpu_check.sh` takes them where there is one."]
    for name, piece in pieces.items():
        for device in ("cpu", "gpu"):
            if part := found.get((name, device)):
                lines += ["", *_section(name, inspect.getdoc(piece) or "", part)]
        if name == "stacks" and (name, "cpu") in found:
            _draw(found[name, "cpu"]["rows"], folder / FIGURE)
            lines += ["", f"![model-steps per second against models in an ensemble]({FIGURE})"]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _section(name: str, text: str, part: Mapping[str, Any]) -> list[str]:
    facts = ", ".join(f"{key} {value}" for key, value in part["machine"].items())
    quick = " Quick run: times mean nothing." if part["quick"] else ""
    return [f"## {name}", "", text, "", f"{part['date']}; {facts}.{quick}", "", *table(part["rows"])]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as a Markdown table; what is a list or a mapping is left out."""
    columns = list(
        dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, dict | list))
    )
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.2e}"
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Model-steps per second against the ensemble, one panel a model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = min(4, len(models))
    lines = -(-len(models) // columns)
    with paper_style():
        figure, axes = plt.subplots(lines, columns, figsize=(DOUBLE, 1.5 * lines + 0.6), squeeze=False)
        for place, (axis, model) in enumerate(zip(axes.flat, models, strict=False)):
            mine = [row for row in rows if row["model"] == model]
            for contender in mine[0]["seconds"]:
                way, where = contender.split(", ", 1)
                style, marker = _LINES[where]
                axis.plot(
                    [row["ensemble"] for row in mine], [row[contender] for row in mine], color=_LOOKS[way],
                    linestyle=style, marker=marker, label=contender,
                )  # fmt: skip
            axis.set(xscale="log", yscale="log")
            axis.set_title(model, fontsize="small")
            ticks = sorted({row["ensemble"] for row in mine})
            axis.set_xticks(ticks, ticks)
            # Less than a decade may hold no power of ten.
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:,.0f}")
            axis.minorticks_off()
            if place % columns == 0:
                axis.set_ylabel("model-steps/s")
            if place + columns >= len(models):
                axis.set_xlabel("models in an ensemble")
        for axis in axes.flat[len(models) :]:
            axis.set_axis_off()
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Software": None})
        plt.close(figure)
