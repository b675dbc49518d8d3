"""`headcount reproduce`, from the command to the summary, and where its time goes."""

from __future__ import annotations

import cProfile
import inspect
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
from headcount import api, figures
from headcount.experiments import Execution, gradients, memory, optimiser, store, sweep, training


def _profile(preset: str, folder: str) -> None:
    """Reproduce in this process with one worker, and write seconds by part to stdout as JSON."""
    profile = cProfile.Profile()
    profile.runcall(api.reproduce, preset, folder, Execution("cpu", 1))
    timings: dict[Any, Any] = pstats.Stats(profile).stats

    def key(function: Callable[..., Any]) -> tuple[str, int, str]:
        # torch.no_grad wraps every function in the same one.
        code = inspect.unwrap(function).__code__
        return code.co_filename, code.co_firstlineno, code.co_name

    def spent(*functions: Callable[..., Any], called_by: Callable[..., Any] | None = None) -> float:
        """Cumulative seconds; of the calls from one function alone, if given."""
        found = 0.0
        for function in functions:
            _, _, _, cumulative, callers = timings.get(key(function), (0, 0, 0.0, 0.0, {}))
            found += cumulative if called_by is None else callers.get(key(called_by), (0, 0, 0.0, 0.0))[3]
        return found

    stack, stored = training._Stack, store.Store
    recording, updates = spent(gradients.recorded_gradients), spent(optimiser.StackedAdam.step)
    held_out = spent(training._Data.draw, called_by=stack.__init__)
    parts = {
        "planning": spent(sweep.Sweep.trials) + spent(stored.plan),
        "data": spent(training._Data.batches) + held_out,
        "memory needed": spent(memory.needed),
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
    total = spent(api.reproduce)
    print(json.dumps({**parts, "rest": total - sum(parts.values()), "all": total}))


def reproduce(options: Options) -> Iterator[Row]:
    """Wall seconds of `headcount reproduce`, interpreter start included, with a worker for each core, and of
    the import alone; then, by cProfile, seconds of every part in one process with one worker. Profiling makes Python
    slower: read its shares, not its seconds.
    """
    preset = "smoke" if options.quick else "quick"
    command = ["-m", "headcount", "reproduce", "--preset", preset, "--workers", str(cores()), "--device", "cpu"]
    yield _wall(f"preset {preset}, workers: {cores()}", options, *command, "--results")
    yield _wall("import", options, "-c", "import headcount")
    with TemporaryDirectory() as folder:
        text = _run("-m", "benchmarks.chain", preset, folder)
    parts = json.loads(text.splitlines()[-1])
    total = parts.pop("all")
    for name, seconds in parts.items():
        yield {"part": f"profile: {name}", "s": seconds, "share": seconds / total}
    yield {"part": "profile: all", "s": total, "share": 1.0}


def _wall(part: str, options: Options, *arguments: str) -> Row:
    """The time of a command that is given a new folder as its last argument."""
    taken = []
    for _ in range(options.rounds):
        with TemporaryDirectory() as folder:
            started = time.perf_counter()
            _run(*arguments, folder)
            taken.append(time.perf_counter() - started)
    return {"part": f"{part}, wall", "s": median(taken), "seconds": {"wall": taken}}


def _run(*arguments: str) -> str:
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    _profile(*sys.argv[1:])
