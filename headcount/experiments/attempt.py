"""Train a group whatever happens: a failure is a row with its cause, and takes no stack mate with it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence

import torch

from headcount.experiments.store import StoreError
from headcount.experiments.training import Outcome, train
from headcount.experiments.trial import Trial

OUT_OF_MEMORY = "out of memory"
TIMEOUT = "timeout"
"""Causes of a failed trial that are not named by the class of an exception."""

Results = tuple[list[Trial], list[Outcome]]


class Overtime(Exception):
    """A trial took longer than it may."""


def cause_of(error: Exception) -> str:
    """What a row says of an exception: out of memory, timeout, or its class."""
    if isinstance(error, Overtime):
        return TIMEOUT
    text = str(error).lower()
    lacking = isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)
    if lacking or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    return type(error).__name__


def failed(members: Sequence[Trial], cause: str, text: str) -> Results:
    """The rows of trials that gave no number."""
    return list(members), [Outcome(status="failed", cause=cause, traceback=text, stack=len(members)) for _ in members]


def halves(group: Sequence[Trial]) -> list[list[Trial]]:
    """A group of two or more in two parts."""
    middle = len(group) // 2
    return [list(group[:middle]), list(group[middle:])]


def attempt(
    group: Sequence[Trial], device: torch.device, on_step: Callable[[int], None], timeout: float | None = None,
    compiled: bool = False,
) -> Iterator[Results]:  # fmt: skip
    """Train a group, and yield each part of it as it ends.

    A stack that fails, for want of memory or by an exception, is trained again in halves, down to single
    trials; only those that fail alone are failed rows. Members of a stack take the same time, so one that
    times out is not tried again.

    Args:
        on_step, compiled: as in `train`.
        timeout: seconds that a trial may take: the time of its stack divided by the members, as rows record it.
            Looked at between optimiser steps.
    """
    waiting = [list(group)]
    while waiting:
        part = waiting.pop()
        try:
            outcomes = train(part, device, _timed(on_step, timeout, len(part)), compiled)
        except StoreError:
            raise
        except Exception as error:
            cause, text = cause_of(error), traceback.format_exc()
        else:
            yield part, outcomes
            continue
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if len(part) > 1 and cause != TIMEOUT:
            waiting += reversed(halves(part))
        else:
            yield failed(part, cause, text)


def _timed(on_step: Callable[[int], None], timeout: float | None, members: int) -> Callable[[int], None]:
    if timeout is None:
        return on_step
    started = time.monotonic()

    def step(number: int) -> None:
        if time.monotonic() - started > timeout * members:
            raise Overtime(f"more than {timeout:g} s a trial, after {number} steps of a stack of {members}")
        on_step(number)

    return step
