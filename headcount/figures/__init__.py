"""What is shown: one function a figure, reading stored rows and theory only."""

from __future__ import annotations

import json
from pathlib import Path

from headcount.config import BadInput, choose
from headcount.figures.laws import LAW_FIGURES, NothingToDraw
from headcount.figures.samples import task_samples
from headcount.figures.style import paper_style, save
from headcount.theory.claims import Evidence

FIGURES = {**LAW_FIGURES, "task-samples": task_samples}
"""Every figure by name: evidence -> figure."""


def draw(names: list[str], evidence: Evidence, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw figures by name; an empty list means all.

    Beside each figure NAME.json lists the run ids of the rows it could read.

    Returns:
        Files written, and names for which the store holds no rows.

    Raises:
        BadInput: on an unknown name.
    """
    for name in names:
        choose(name, FIGURES, "figure")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"'{folder}' cannot be used for figures: {error.strerror}") from None
    written, missing = [], []
    for name in names or list(FIGURES):
        recorder = evidence.recording()
        try:
            with paper_style():
                written += save(FIGURES[name](recorder), folder / name)
        except NothingToDraw:
            missing.append(name)
            continue
        side = folder / f"{name}.json"
        side.write_text(json.dumps({"figure": name, "runs": sorted(recorder.read)}, indent=1) + "\n")
        written.append(side)
    return written, missing


__all__ = ["FIGURES", "draw"]
