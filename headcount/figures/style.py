"""One place for how every figure looks: size, fonts, and the label, colour and marker of each condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")

# Okabe and Ito's palette: told apart with every common form of colour blindness.
COLOURS = {"mha": "#0072B2", "iha": "#D55E00", "rule": "#555555"}
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LABELS = {"mha": "MHA", "iha": "IHA"}
MARKERS = {"mha": "o", "iha": "s"}
COLUMN, DOUBLE = 3.4, 7.0
"""Widths in inches of one and two columns of a paper."""


@contextmanager
def paper_style() -> Iterator[None]:
    """Matplotlib settings for a figure that is read at its printed size, and is the same bytes every time."""
    settings: dict[Any, Any] = {
        "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 4,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "grid.linewidth": 0.5, "figure.constrained_layout.use": True, "savefig.dpi": 200,
        "svg.hashsalt": "headcount", "svg.fonttype": "none", "pdf.fonttype": 42,
    }  # fmt: skip
    with plt.rc_context(settings):
        yield


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure in every format, without dates, and close it."""
    paths = []
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None},
    }  # fmt: skip
    for suffix in FORMATS:
        path = stem.with_suffix(f".{suffix}")
        figure.savefig(path, metadata=metadata[suffix])
        paths.append(path)
    plt.close(figure)
    return paths
