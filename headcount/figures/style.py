"""One place for how every figure looks: size, fonts, and the label, colour and marker of each condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: told apart with every common form of colour blindness."""

_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK = SERIES
# Name: label, colour, marker, hatch. Fourteen mechanisms share seven colours: those of one kind have one colour,
# and differ in marker and hatch.
_LOOKS = {
    "mha": ("MHA", _BLUE, "o", ""),
    "mqa": ("Multi-query", _BLUE, "v", "////"),
    "gqa": ("Grouped-query", _BLUE, "^", "...."),
    "iha": ("IHA", _RED, "s", ""),
    "virtual-heads": ("Virtual heads", _RED, "p", "////"),
    "explicit": ("Explicit heads", _RED, "h", "...."),
    "simplicial": ("2-simplicial", _GREEN, "D", ""),
    "third-order": ("Third-order", _GREEN, "d", "////"),
    "clift": ("Clift", _GREEN, "X", "...."),
    "strassen": ("Strassen", _PINK, "P", ""),
    "talking-heads": ("Talking heads", _ORANGE, "<", ""),
    "knocking-heads": ("Knocking heads", _ORANGE, ">", "////"),
    "multi-token": ("Multi-token", _SKY, "*", ""),
    "differential": ("Differential", _BLACK, "8", ""),
}
COLOURS = {name: look[1] for name, look in _LOOKS.items()} | {"rule": "#555555"}
LABELS = {name: look[0] for name, look in _LOOKS.items()}
MARKERS = {name: look[2] for name, look in _LOOKS.items()}
HATCHES = {name: look[3] for name, look in _LOOKS.items()}
COLUMN, DOUBLE = 3.4, 7.0
"""Widths in inches of one and two columns of a paper."""


class NothingToDraw(Exception):
    """The store holds no row for this figure or table."""


@contextmanager
def paper_style() -> Iterator[None]:
    """Matplotlib settings for a figure that is read at its printed size, and is the same bytes every time."""
    settings: dict[Any, Any] = {
        "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 4,
        "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "grid.linewidth": 0.5, "figure.constrained_layout.use": True, "savefig.dpi": 200,
        "hatch.linewidth": 0.5, "svg.hashsalt": "headcount", "svg.fonttype": "none", "pdf.fonttype": 42,
    }  # fmt: skip
    with plt.rc_context(settings):
        yield


def legend_below(figure: Figure, handles: Sequence[Artist], most: int) -> None:
    """A legend under the panels, of rows as equal in length as can be and at most `most` entries long."""
    lines = -(-len(handles) // most)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // lines))


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
