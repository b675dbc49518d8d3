"""Interleaved head attention against an einsum that holds the (N P) x (N P) maps."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import Options, Row, alternate, medians, memory_bytes, times
from headcount.models import Sizes, build_mechanism
from headcount.models.attention.iha import InterleavedConfig, InterleavedHeadAttention
from headcount.models.attention.scores import HELD

HEADS, WIDTH = 4, 64

MAPS_HELD = 4
"""Maps of every head that naive training holds at once: scores, weights, and the gradients of both."""


def layer(tokens: int, pseudo: int) -> InterleavedHeadAttention:
    """H = 4, D = 64, with random weights."""
    built = build_mechanism(InterleavedConfig(heads=HEADS, pseudo_heads=pseudo), Sizes(tokens, WIDTH, WIDTH))
    assert isinstance(built, InterleavedHeadAttention)
    built.reset(torch.Generator().manual_seed(0))
    return built


def naive(layer: InterleavedHeadAttention, x: Tensor) -> Tensor:
    """The definition, word for word, with every map in memory."""
    sides = []
    for name in ("query", "key", "value"):
        base = torch.einsum("bnf,hfw->bhnw", x, getattr(layer, name).features)
        sides.append(torch.einsum("mhp,bmnw->bhnpw", getattr(layer, f"mix_{name}"), base).flatten(2, 3))
    queries, keys, values = sides
    weights = (torch.einsum("bhiw,bhjw->bhij", queries, keys) * layer.inverse_temperature).softmax(-1)
    outputs = torch.einsum("bhij,bhjw->bhiw", weights, values).unflatten(2, (x.shape[1], -1))
    collapsed = torch.einsum("hgp,bgnpw->bhnw", layer.collapse, outputs)
    return torch.einsum("bhnw,hwo->bno", collapsed, layer.join.weight)


def passes(way: str, tokens: int, pseudo: int) -> dict[str, Callable[[], object]]:
    """Forward alone without gradients, and forward with backward, of one sequence."""
    attention, x = layer(tokens, pseudo), torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(1))
    call = attention if way == "ours" else lambda x: naive(attention, x)

    def both() -> None:
        call(x).sum().backward()

    return {"forward": torch.no_grad()(lambda: call(x)), "forward and backward": both}


def _resident(field: str) -> float:
    """VmRSS, memory in use, or VmHWM, its peak, of this process in MiB."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 2**10


def _peak(way: str, which: str, tokens: int, pseudo: int) -> float:
    torch.set_num_threads(1)
    # What is loaded at the first use is no part of the pass. Shorter sequences take another path.
    passes(way, 2 * HELD, 1)[which]()
    call = passes(way, tokens, pseudo)[which]
    # The peak so far is that of the imports; 5 sets it back (proc(5)).
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def peak(way: str, which: str, tokens: int, pseudo: int) -> float:
    """MiB by which one pass raises the resident memory of a fresh process at its peak; needs Linux."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak, way, which, tokens, pseudo).result()


def iha(options: Options) -> Iterator[Row]:
    """Seconds and peak memory in MiB of one interleaved attention layer, H = 4, D = 64, softmax, one sequence of N
    tokens, one thread: `headcount.models.attention.iha` against an einsum that builds all H maps of (N P) x (N P).
    Memory is the peak resident size (VmHWM, set back before the pass) minus the size before it, in a process of its own
    for each number. The naive way is left out where its maps would take more than half of the machine's memory.
    Outputs are compared before timing.
    """
    cases = [(n, p) for n in (128, 256, 512, 1024, 2048) for p in (1, 2, 4, 8)]
    for tokens, pseudo in [(128, 2)] if options.quick else cases:
        maps = MAPS_HELD * HEADS * (tokens * pseudo) ** 2 * 4
        ways = ["ours", "naive"] if maps < memory_bytes() / 2 else ["ours"]
        if len(ways) == 2:
            x = torch.randn(1, tokens, WIDTH)
            with torch.no_grad():
                torch.testing.assert_close(layer(tokens, pseudo)(x), naive(layer(tokens, pseudo), x))
        for which in ("forward", "forward and backward"):
            contenders = {way: times(passes(way, tokens, pseudo)[which]) for way in ways}
            seconds = alternate(contenders, options)
            taken = medians(seconds)
            memory = {way: peak(way, which, tokens, pseudo) for way in ways}
            row: Row = {"N": tokens, "P": pseudo, "pass": which}
            for way in ("ours", "naive"):
                row[f"{way} s"], row[f"{way} MiB"] = taken.get(way), memory.get(way)
            if len(ways) == 2:
                row["time ratio"] = taken["naive"] / taken["ours"]
            yield {**row, "seconds": seconds}
