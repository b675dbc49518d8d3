"""The report: one self-contained HTML page of verdicts, laws, figures, runs, and what was not tested."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from numbers import Real
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from headcount.figures import FIGURES, TABLES, NothingToDraw, caption
from headcount.figures.style import DOUBLE, paper_style
from headcount.theory.claims import Claim, Evidence, Finding, Verdict
from headcount.theory.thresholds import thresholds

MOST_RUNS, MOST_LINES, MOST_CAUSES = 2000, 500, 30
"""Lines of the run table, lines of every other table, and causes of failure that the page shows; it says how many
it leaves out."""

MEANING = {
    Verdict.HOLDS: "decided exactly, by compiled weights or by enumeration",
    Verdict.SUPPORTED: "rests on trained models: they agree with the prediction and exclude its rival",
    Verdict.CONDITION: "holds where the named condition is met; both sides are tested",
    Verdict.REFUTED: "the statement as given is false; a counterexample is shown",
    Verdict.UNRESOLVED: "there are rows, and they decide nothing",
    Verdict.NO_EVIDENCE: "no row speaks to it; the command to run is named",
    Verdict.NOT_TESTED: "out of reach here",
}
"""What each verdict means, in the order in which the page counts them."""

OPEN = (Verdict.UNRESOLVED, Verdict.NO_EVIDENCE, Verdict.NOT_TESTED)

HEAD_LAWS = ("law-poly-mha", "law-poly-iha", "law-cpm3-mha", "law-cpm3-iha")
PARAMETER_LAWS = ("poly-theta", "poly-theta-n")
"""Claims whose evidence holds a fit."""

COLUMNS = {
    "heads": "found", "heads_median": "learned", "solving": "seeds", "failing": "fails at",
    "best_below": "error there", "parameters": "parameters",
}  # fmt: skip
"""Columns of a table of thresholds, and what the page calls them."""

ABSENT = "\N{EN DASH}"


@dataclass(frozen=True)
class Table:
    """Cells as text.

    Attributes:
        columns: names.
        numeric: of each column, whether it holds numbers alone.
        rows: cells.
        left_out: rows there are beside these.
    """

    columns: list[str]
    numeric: list[bool]
    rows: list[list[str]]
    left_out: int = 0

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], most: int = MOST_LINES) -> Table:
        """The table of records; columns in order of first appearance."""
        columns = list(dict.fromkeys(str(key) for record in records for key in record))
        shown = [{str(key): value for key, value in record.items()} for record in records[:most]]
        numeric = [all(_is_number(row.get(name)) for row in shown) for name in columns]
        rows = [[cell(row.get(name)) for name in columns] for row in shown]
        return cls(columns, numeric, rows, len(records) - len(shown))


@dataclass(frozen=True)
class Block:
    """A named piece of evidence: a table, a value, or further pieces."""

    name: str
    table: Table | None = None
    text: str = ""
    parts: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Drawn:
    """A figure as an image address that holds the whole image, or a table, with its caption.

    Attributes:
        runs: rows it could read.
        wide: whether it spans two columns of a paper.
    """

    name: str
    caption: str
    runs: int
    image: str = ""
    wide: bool = False
    table: Table | None = None


def cell(value: Any) -> str:
    """A value of a table or of a claim's details, for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {cell(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"({cell(inner)})" if isinstance(inner, (list, tuple)) else cell(inner) for inner in value)
    if not isinstance(value, Real):
        return ABSENT if value is None or value is pd.NA else str(value)
    number = float(value)
    if math.isnan(number):
        return ABSENT
    return f"{number:,.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.4g}"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, Real) and not isinstance(value, bool))


def _is_record(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are_records(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(_is_record, value))


def _is_nested(value: Any) -> bool:
    return _is_record(value) or _are_records(value)


def block(name: str, value: Any) -> Block:
    """A claim's evidence as tables and values."""
    if _are_records(value):
        return Block(name, table=Table.of(value))
    if not _is_record(value):
        return Block(name, text="none" if isinstance(value, (list, tuple)) and not value else cell(value))
    if not value:
        return Block(name, text="none")
    inner = list(value.values())
    if all(_is_record(part) and not any(_is_nested(deep) for deep in part.values()) for part in inner):
        return Block(name, table=Table.of([{"name": str(key), **part} for key, part in value.items()]))
    if any(map(_is_nested, inner)):
        return Block(name, parts=[block(str(key), part) for key, part in value.items()])
    return Block(name, table=Table.of([{"name": str(key), "value": part} for key, part in value.items()]))


def draw_inline(evidence: Evidence) -> tuple[list[Drawn], list[str]]:
    """Every figure as an SVG inside its own address and every table, and the names of those without rows."""
    drawn, missing = [], []
    for name, function in (FIGURES | TABLES).items():
        recorder = evidence.recording()
        try:
            if name in TABLES:
                frame = TABLES[name](recorder)
                table, words = Table.of(frame.to_dict("records")), f"{caption(function)} {frame.attrs['note']}"
                drawn.append(Drawn(name, words, len(recorder.read), table=table, wide=True))
            else:
                image, wide = _image(FIGURES[name], recorder)
                drawn.append(Drawn(name, caption(function), len(recorder.read), image, wide))
        except NothingToDraw:
            missing.append(name)
    return drawn, missing


def _image(function: Callable[[Evidence], Figure], evidence: Evidence) -> tuple[str, bool]:
    """A figure as an image address, and whether it is wider than a column. Letters are outlines: the reader's
    machine may lack the fonts."""
    file = io.StringIO()
    with paper_style(), plt.rc_context({"svg.fonttype": "path"}):
        figure = function(evidence)
        figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    encoded = base64.b64encode(file.getvalue().encode()).decode()
    return f"data:image/svg+xml;base64,{encoded}", figure.get_figwidth() > DOUBLE / 2


def _fit(law: Mapping[str, Any]) -> str:
    return f"{law['exponent']:.3f} [{law['low']:.3f}, {law['high']:.3f}]"


def _solving(row: Mapping[str, Any]) -> str:
    return f"{round(row['success'] * row['seeds'])} of {row['seeds']}"


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    """One size of a head law: what was predicted, what was found, and whether they agree exactly."""
    size, symbol = ("task.k", "k") if "task.k" in row else ("task.tokens", "N")
    exact = bool(row["heads"] == row["predicted"] and row["failing"] == row["predicted"] - 1)
    found = {name: _solving(row) if key == "solving" else row[key] for key, name in COLUMNS.items()}
    return {symbol: row[size], "predicted": row["predicted"], "found": found["found"], "exact": exact, **found}


def head_laws(findings: Mapping[str, tuple[Claim, Finding]]) -> list[dict[str, Any]]:
    """The fitted exponent of each head law, with its thresholds; None where no row carries it."""
    laws = []
    for claim, finding in (findings[key] for key in HEAD_LAWS if key in findings):
        details = finding.details
        points = [_point(row) for row in details.get("thresholds", [])]
        fit = details.get("fit")
        identified = fit and fit["identified"]
        laws.append(
            {
                "claim": claim, "finding": finding, "points": Table.of(points) if points else None,
                "exact": sum(point["exact"] for point in points), "sizes": len(points),
                "exponent": _fit(fit) if fit else details.get("fit refused", ABSENT),
                "identified": f"{identified[0]:.3f} to {identified[1]:.3f}" if identified else ABSENT,
            }
        )  # fmt: skip
    return laws


def parameter_laws(findings: Mapping[str, tuple[Claim, Finding]]) -> Table | None:
    """The fitted exponents of parameters, or None if no row carries one."""
    rows = [
        {
            "claim": claim.id, "mechanism": attention, "exponent [95 %]": _fit(fits["raw"]),
            "the exact formula implies": f"{fits['finite-size']:.3f}",
            "with that taken off [95 %]": _fit(fits["corrected"]), "sizes": fits["raw"]["points"],
        }
        for claim, finding in (findings[key] for key in PARAMETER_LAWS if key in findings)
        for attention, fits in finding.details.items()
        if _is_record(fits)
    ]  # fmt: skip
    return Table.of(rows) if rows else None


def every_threshold(evidence: Evidence) -> Table | None:
    """Thresholds of every problem in the store, whatever its setting; None without finished rows."""
    table = evidence.rows if evidence.rows.empty else thresholds(evidence.rows, evidence.tolerance)
    if table.empty:
        return None
    table["solving"] = [_solving(row) for row in table.to_dict("records")]
    asked = [name for name in table.columns if name.startswith(("task.", "model.")) and table[name].notna().any()]
    asked.sort(key=lambda name: name not in ("task.name", "model.attention"))
    return Table.of(table[[*asked, *COLUMNS]].rename(columns=COLUMNS).to_dict("records"))


def settings(rows: pd.DataFrame) -> pd.Series:
    """For each row the fields, in words, in which trials of its task differ, mechanism, heads and seed aside."""
    text = pd.Series("", index=rows.index, dtype=object)
    for _, part in rows.groupby("task.name", sort=False):
        fields = [name for name in part.columns if name.startswith(("task.", "model.", "training."))]
        fields = [name for name in fields if name not in ("model.attention", "model.heads", "task.graph_digest")]
        varying = [name for name in fields if part[name].map(str).nunique() > 1]
        for run, values in zip(part.index, part[varying].itertuples(index=False, name=None), strict=True):
            words = zip((name.split(".")[1] for name in varying), map(cell, values), strict=True)
            text[run] = ", ".join(f"{field} {value}" for field, value in words if value != ABSENT)
    return text


def run_table(rows: pd.DataFrame, most: int = MOST_RUNS) -> Table | None:
    """One line a trial, in the order planned. If there are too many, all that failed or became NaN come first,
    then the newest; None without any."""
    if rows.empty:
        return None
    trouble = rows["status"].isin(["failed", "nan"])
    newest = rows.assign(trouble=trouble).sort_values(["trouble", "finished_at"], ascending=False, kind="stable")
    shown = rows.loc[newest.index[:most].sort_values()]
    parts = {
        "task": shown["task.name"], "mechanism": shown["model.attention"], "heads": shown["model.heads"],
        "seed": shown["seed"], "best error": shown["best_error"], "accuracy": shown["best_accuracy"],
        "status": shown["status"], "setting": settings(shown), "sweep": shown["sweep"],
        "standard error": shown["best_stderr"], "best step": shown["best_step"], "parameters": shown["parameters"],
        "seconds": shown["seconds"], "run": shown["id"],
    }  # fmt: skip
    if parts["accuracy"].isna().all():
        del parts["accuracy"]
    words = ("sweep", "status", "task", "mechanism", "setting", "run")
    lines = [[cell(value) for value in line] for line in zip(*parts.values(), strict=True)]
    return Table([*parts], [name not in words for name in parts], lines, len(rows) - len(shown))


def troubles(rows: pd.DataFrame) -> tuple[list[dict[str, Any]], int]:
    """Trials that failed or ended in NaN, by cause, the most frequent first; and how many causes are left out."""
    if rows.empty:
        return [], 0
    rows = rows[rows["status"].isin(["failed", "nan"])]
    causes = [_cause(*row) for row in rows[["status", "cause", "traceback"]].itertuples(index=False, name=None)]
    groups = sorted(
        rows.groupby(pd.Series(causes, rows.index, dtype=object), sort=False), key=lambda item: (-len(item[1]), item[0])
    )
    shown = [
        {
            "cause": cause, "count": len(part), "status": part["status"].iloc[0],
            "sweeps": sorted(part["sweep"].unique()),
            "traceback": _text(part["traceback"].iloc[0]),
            "runs": Table.of([{"run": run, "setting": text} for run, text in zip(part["id"], settings(part), strict=True)]),
        }
        for cause, part in groups[:MOST_CAUSES]
    ]  # fmt: skip
    return shown, len(groups) - len(shown)


def _cause(status: str, cause: Any, traceback: Any) -> str:
    """Why a trial has no result, in one line: the last of its traceback, after the cause stored with it."""
    if status == "nan":
        return "the last weights are not finite: training diverged"
    lines = [line.strip() for line in _text(traceback).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return last if _text(cause) in last else ": ".join(part for part in (_text(cause), last) if part)


def _text(value: Any) -> str:
    """A text column's value; empty where the row has none."""
    return value if isinstance(value, str) else ""


def sweep_table(rows: pd.DataFrame, presets: Mapping[str, str]) -> list[dict[str, Any]]:
    """One record a sweep: what it trained, how it ended, and the command that trains it again."""
    if rows.empty:
        return []
    return [
        {
            "sweep": str(name), "trials": len(part), **part["status"].value_counts().sort_index().to_dict(),
            "tasks": ", ".join(sorted(part["task.name"].unique())),
            "mechanisms": ", ".join(sorted(part["model.attention"].unique())),
            "seeds": _ranges(part["seed"]), "training seconds": round(float(part["seconds"].sum())),
            "again": f"headcount sweep --preset {presets[name]} --only {name}" if name in presets else
            "no preset holds it; every row carries its whole configuration",
        }
        for name, part in rows.groupby("sweep", sort=False)
    ]  # fmt: skip


def _ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges: 0 to 2, 5."""
    runs: list[list[int]] = []
    for number in sorted({int(number) for number in numbers}):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    kept = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(kept[:2]) or "0 s"


def environments(rows: pd.DataFrame) -> Table | None:
    """Versions, device and threads that rows were trained with, one line each."""
    if rows.empty or rows["environment"].dropna().empty:
        return None
    counts = rows["environment"].value_counts().sort_index()
    return Table.of([{"trials": int(count), **json.loads(str(text))} for text, count in counts.items()])


def digest(text: str) -> str:
    """The hash by which a Content-Security-Policy lets one inline script or style through."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render(evidence: Evidence, findings: Sequence[tuple[Claim, Finding]], presets: Mapping[str, str]) -> str:
    """The whole page. Equal evidence gives equal text: its date is that of the newest finished row.

    Args:
        evidence: all stored rows.
        findings: claims with their verdicts on it.
        presets: sweep -> the preset that holds all its stored trials; sweeps without one are left out.
    """
    rows, known = evidence.rows, {claim.id: (claim, finding) for claim, finding in findings}
    status = {} if rows.empty else rows["status"].value_counts().to_dict()
    newest = float("nan") if rows.empty else rows["finished_at"].max()
    drawn, missing = draw_inline(evidence)
    sweeps = sweep_table(rows, presets)
    caused, more_causes = troubles(rows)
    whole = set(presets.values()) if len(presets) == len(sweeps) else set()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headcount", "figures"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["digest"] = digest
    return environment.get_template("report.html.jinja").render(
        findings=findings,
        evidence_of={claim.id: [block(*item) for item in finding.details.items()] for claim, finding in findings},
        verdicts=[(verdict, sum(found.verdict == verdict for _, found in findings), MEANING[verdict]) for verdict in MEANING],
        contradicted=[claim for claim, finding in findings if finding.contradicted],
        exact=sum(not claim.sweeps for claim, _ in findings),
        trials=len(rows),
        status={name: status.get(name, 0) for name in ("done", "nan", "failed", "running", "planned")},
        seconds="0 s" if rows.empty else _duration(rows["seconds"].sum()),
        tolerance=evidence.tolerance,
        laws=head_laws(known),
        parameters=parameter_laws(known),
        thresholds=every_threshold(evidence),
        drawn=drawn,
        missing=missing,
        runs=run_table(rows),
        sweeps=sweeps,
        sweep_table=Table.of(sweeps) if sweeps else None,
        command_of_all=f"headcount reproduce --preset {whole.pop()}" if len(whole) == 1 else "",
        environments=environments(rows),
        seeds=_ranges([] if rows.empty else rows["seed"]),
        date=ABSENT if math.isnan(newest) else f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d %H:%M} UTC",
        open=[(claim, finding) for claim, finding in findings if finding.verdict in OPEN],
        partly=[(claim, found.details["not tested here"]) for claim, found in findings if "not tested here" in found.details],
        troubles=caused,
        more_causes=more_causes,
    )  # fmt: skip
