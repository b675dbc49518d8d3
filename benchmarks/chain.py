"""`headcount reproduce`, from the command to the summary, and where its time goes."""

from __future__ import annotations

import cProfile
import json
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Options, Row, cores


def _profile(preset: str, folder: str) -> None:
    """Reproduce in this process with one worker, and write seconds by part to stdout as JSON."""
    started = time.perf_counter()
    from headcount import api, figures
    from headcount.experiments import optimiser, store, sweep, training

    imported = time.perf_counter() - started
    profile = cProfile.Profile()
    profile.enable()
    api.reproduce(preset, folder, "cpu", 1)
    profile.disable()
    table = pstats.Stats(profile)
    timings: dict[Any, Any] = table.stats

    def key(function: Callable[..., Any]) -> tuple[str, int, str]:
        code = function.__code__
        return code.co_filename, code.co_firstlineno, code.co_name

    def spent(*functions: Callable[..., Any], called_by: Callable[..., Any] | None = None) -> float:
        """Cumulative seconds; of the calls from one function alone, if given."""
        found = 0.0
        for function in functions:
            _, _, _, cumulative, callers = timings.get(key(function), (0, 0, 0.0, 0.0, {}))
            found += cumulative if called_by is None else callers.get(key(called_by), (0, 0, 0.0, 0.0))[3]
        return found

    stack, stored = training._Stack, store.Store
    recording, updates = spent(training.recorded_gradients), spent(optimiser.StackedAdam.step)
    held_out = spent(training._Data.draw, called_by=stack.__init__)
    parts = {
        "import": imported,
        "planning": spent(sweep.Sweep.trials) + spent(stored.plan),
        "data": spent(training._Data.batches) + held_out,
        "models": spent(stack.__init__) - held_out,
        "recording of steps": recording,
        "forward and backward": spent(stack.step) - recording - updates,
        "optimiser": updates,
        "evaluation": spent(stack.evaluate, stack.outcomes),
        "store": spent(stored.claim, stored.finish, stored.beat, stored.release, stored.statuses),
        "claims": spent(api.Results.check),
        "figures": spent(figures.draw, called_by=api.Results.draw),
        "report": spent(api.Results.report),
    }
    total = imported + table.total_tt
    print(json.dumps({**parts, "rest": total - sum(parts.values()), "all": total}))


def reproduce(options: Options) -> Iterator[Row]:
    """Wall seconds of `headcount reproduce`, interpreter start included, with a worker for each core and with one; then,
    by cProfile, seconds of every part in one process with one worker. Profiling makes Python slower: read its shares,
    not its seconds.
    """
    preset = "smoke" if options.quick else "quick"
    for workers in sorted({cores(), 1}, reverse=True):
        taken = []
        for _ in range(options.rounds):
            with TemporaryDirectory() as folder:
                started = time.perf_counter()
                command = ["reproduce", "--preset", preset, "--results", folder, "--workers", str(workers)]
                _run("-m", "headcount", *command, "--device", "cpu")
                taken.append(time.perf_counter() - started)
        yield {"part": f"preset {preset}, {workers} workers, wall", "s": median(taken), "seconds": {"wall": taken}}
    with TemporaryDirectory() as folder:
        text = _run("-m", "benchmarks.chain", preset, folder)
    parts = json.loads(text.splitlines()[-1])
    total = parts.pop("all")
    for name, seconds in parts.items():
        yield {"part": f"profile: {name}", "s": seconds, "share": seconds / total}
    yield {"part": "profile: all", "s": total, "share": 1.0}


def _run(*arguments: str) -> str:
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    _profile(*sys.argv[1:])
