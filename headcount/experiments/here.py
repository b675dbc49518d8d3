"""Train groups in this process: claim each before it starts, write each as it ends."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from headcount.experiments.attempt import attempt
from headcount.experiments.execution import Execution
from headcount.experiments.store import Store
from headcount.experiments.training import resolve_device
from headcount.experiments.trial import SCHEMA, Trial

BEAT_SECONDS = 5.0
TELL_SECONDS = 0.2


def environment(device: torch.device, compiled: bool = False) -> dict[str, str | int]:
    """What a row records of the machine it came from, and of the program that trained it."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "schema": SCHEMA,
        **({"compiled": 1} if compiled else {}),
    }


def run_here(waiting: list[list[Trial]], store: Store, execution: Execution, tell: Callable[[int, str], None]) -> int:
    """Train groups one after the other with one thread.

    Args:
        execution: with its device, timeout, fail_fast (stop after the first group in which a trial failed) and
            compiled.
        tell: called with optimiser steps done, and what is training.

    Returns:
        How many trials failed.
    """
    threads, device = torch.get_num_threads(), resolve_device(execution.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    done = failures = 0
    try:
        for group in waiting:
            by_id = {trial.id: trial for trial in group}
            mine = [by_id[key] for key in store.claim(list(by_id))]
            on_step = _signs_of_life(store, tell, done, label(group[0]))
            attempts = attempt(mine, device, on_step, execution.timeout, execution.compiled) if mine else ()
            for part, outcomes in attempts:
                store.finish(part, outcomes, environment(device, execution.compiled))
                failures += sum(outcome.status == "failed" for outcome in outcomes)
            done += group[0].training.steps
            tell(done, "")
            if failures and execution.fail_fast:
                break
    finally:
        store.release()
        torch.set_num_threads(threads)
    return failures


def label(trial: Trial) -> str:
    """What a progress line says is training."""
    task, fields = trial.task, trial.flat()
    return f"{task.name} N={task.length} outputs={task.output_width} {fields['model.attention']} H={fields.get('model.heads', 1)}"


def _signs_of_life(store: Store, tell: Callable[[int, str], None], done: int, text: str) -> Callable[[int], None]:
    last_beat = last_tell = time.monotonic()

    def on_step(step: int) -> None:
        nonlocal last_beat, last_tell
        now = time.monotonic()
        if now - last_tell > TELL_SECONDS:
            tell(done + step, text)
            last_tell = now
        if now - last_beat > BEAT_SECONDS:
            store.beat()
            last_beat = now

    return on_step
