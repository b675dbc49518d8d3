"""Command line of the suite: `python -m benchmarks [NAME ..] [--quick] [--device cuda] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import bookkeeping, chain, data, gpu, iha, matmul, report, stacks
from benchmarks.measure import Options, Row, machine
from headcount.api import write_text
from headcount.config import BadInput, choose
from headcount.experiments.training import resolve_device

Piece = Callable[[Options], Iterator[Row]]

PIECES: dict[str, Piece] = {
    "stacks": stacks.stacks,
    "matmul": matmul.matmul,
    "iha": iha.iha,
    "data": data.data,
    "labels": data.labels,
    "bookkeeping": bookkeeping.bookkeeping,
    "reproduce": chain.reproduce,
}
ON_DEVICE: dict[str, Piece] = {
    "gpu-agreement": gpu.agreement,
    "gpu-products": gpu.products,
    "gpu-ensembles": gpu.ensembles,
    "gpu-laws": gpu.laws,
    "gpu-relation": gpu.relation,
}
"""Pieces that run when named, on the device of --device."""


def measure(name: str, options: Options, path: Path) -> None:
    """Run one piece with one thread, but for what says otherwise; the file holds its rows as they come, beside those
    of other pieces."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows: list[Row] = []
    stored[name] = {
        "date": time.strftime("%Y-%m-%d"), "quick": options.quick, "machine": machine(options.device), "rows": rows,
    }  # fmt: skip
    for row in {**PIECES, **ON_DEVICE}[name](options):
        rows.append(row)
        stored[name]["minutes"] = (time.perf_counter() - started) / 60
        write_text(path, json.dumps(stored, indent=1) + "\n")
        print(
            f"{name}: " + ", ".join(f"{key} {_short(value)}" for key, value in row.items() if _shown(value)), flush=True
        )


def _shown(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed, as ratios measured within one run."
    )
    every = [*PIECES, *ON_DEVICE]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pieces, all but gpu-* if none: {', '.join(every)}")
    parser.add_argument("--quick", action="store_true", help="see whether everything works; times mean nothing")
    parser.add_argument("--device", default="cpu", help="of the pieces gpu-*: cpu or cuda")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of JSON, tables, figure"
    )
    parser.add_argument("--render", action="store_true", help="write the tables and the figure anew, measure nothing")
    arguments = parser.parse_args(argv)
    try:
        names = [choose(name, every, "benchmark") for name in arguments.names or PIECES]
        if arguments.device != "cpu" and (wrong := next((name for name in names if name in PIECES), None)):
            raise BadInput(f"benchmark '{wrong}' measures the CPU; --device is for gpu-*")
        options = Options(arguments.quick, resolve_device(arguments.device))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    arguments.out.mkdir(parents=True, exist_ok=True)
    kind = f"{options.device.type}{'-quick' if options.quick else ''}"
    path = arguments.out / f"{time.strftime('%Y-%m-%d')}-{kind}.json"
    for name in names if not arguments.render else ():
        measure(name, options, path)
    report.render(arguments.out, {**PIECES, **ON_DEVICE})


if __name__ == "__main__":
    main()
