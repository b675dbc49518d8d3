"""What is shown: one function a figure or table, reading stored rows and theory only."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headcount.config import choose, file_errors
from headcount.figures.laws import LAW_FIGURES
from headcount.figures.overview import iha_overview
from headcount.figures.published import PUBLISHED_FIGURES
from headcount.figures.relation import RELATION_FIGURES
from headcount.figures.samples import task_samples
from headcount.figures.style import NothingToDraw, paper_style, save
from headcount.figures.tables import TABLES, to_latex, to_markdown
from headcount.theory.claims import Evidence

FIGURES = {
    "fig1": iha_overview, **PUBLISHED_FIGURES, **RELATION_FIGURES, **LAW_FIGURES, "task-samples": task_samples,
}  # fmt: skip
"""Every figure by name: evidence -> figure."""


def caption(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def draw(names: list[str], evidence: Evidence, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw figures and write tables by name; an empty list, or "all" among the names, means every one.

    A figure is written as PNG, PDF and SVG, a table as Markdown and LaTeX. Beside each, NAME.json lists the run ids
    of the rows it could read.

    Returns:
        Files written, and names for which the store holds no rows.

    Raises:
        BadInput: on an unknown name, or if the folder cannot be written.
    """
    known = [*FIGURES, *TABLES]
    for name in names:
        choose(name, [*known, "all"], "figure or table")
    written, missing = [], []
    with file_errors(folder, f"'{folder}' cannot be used for figures"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in known if not names or "all" in names else names:
            try:
                written += _draw_one(name, evidence.recording(), folder)
            except NothingToDraw:
                missing.append(name)
    return written, missing


def _draw_one(name: str, recorder: Evidence, folder: Path) -> list[Path]:
    if name in TABLES:
        written = _write_table(name, recorder, folder)
    else:
        with paper_style():
            written = save(FIGURES[name](recorder), folder / name)
    side = folder / f"{name}.json"
    side.write_text(json.dumps({"figure": name, "runs": sorted(recorder.read)}, indent=1) + "\n")
    return [*written, side]


def _write_table(name: str, evidence: Evidence, folder: Path) -> list[Path]:
    table, words = TABLES[name](evidence), caption(TABLES[name])
    texts = {".md": to_markdown(table, words), ".tex": to_latex(table, words, name)}
    for suffix, text in texts.items():
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    return [folder / f"{name}{suffix}" for suffix in texts]


__all__ = ["FIGURES", "TABLES", "NothingToDraw", "caption", "draw"]
