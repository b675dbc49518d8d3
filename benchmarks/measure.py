"""What every piece of the suite shares: options, the clock, turns, and a description of the machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")

Row = dict[str, Any]
"""One line of a piece's table; what is a list or a mapping is kept in the JSON alone."""

Contender = Callable[[int], object]
"""Does its work that many times, and returns when all of it is done."""


@dataclass(frozen=True)
class Options:
    """How much is measured: `quick` sees whether everything works, its times mean nothing."""

    quick: bool = False
    device: torch.device = CPU

    @property
    def rounds(self) -> int:
        """Turns of every contender."""
        return 2 if self.quick else 5

    @property
    def least(self) -> float:
        """Seconds that one turn lasts at least."""
        return 0.01 if self.quick else 0.25 if self.device.type == "cpu" else 0.1


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_jax() -> bool:
    """Whether the extra `bench` is installed."""
    return importlib.util.find_spec("jax") is not None


def memory_bytes() -> int:
    """Main memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine(device: torch.device) -> dict[str, str | int | float]:
    """What timings depend on. It names no host and no path."""
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found: dict[str, str | int | float] = {
        "processor": names[0] if names else platform.machine(),
        "cores": cores(),
        "memory GiB": round(memory_bytes() / 2**30, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "load before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    if has_jax():
        found["jax"] = importlib.metadata.version("jax")
    return found


def times(call: Callable[[], object]) -> Contender:
    """A call without arguments as a contender."""

    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    return repeat


def clock(contender: Contender, count: int) -> float:
    """Seconds of `count` times."""
    started = time.perf_counter()
    contender(count)
    return time.perf_counter() - started


def alternate(contenders: Mapping[str, Contender], options: Options) -> dict[str, list[float]]:
    """Seconds that one time takes, in every round. Contenders take turns, and another one begins each round, so
    that a machine that slows down slows all of them."""
    counts = {}
    for name, contender in contenders.items():
        contender(1)
        counts[name] = max(1, math.ceil(options.least / clock(contender, 1)))
    found: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(options.rounds):
        for name in order:
            found[name].append(clock(contenders[name], counts[name]) / counts[name])
        order = order[1:] + order[:1]
    return found


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median round of every contender."""
    return {name: statistics.median(values) for name, values in seconds.items()}
