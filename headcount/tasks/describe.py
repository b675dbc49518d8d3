"""One way to ask any task what it is about: what it asks, what theory says, shortcuts, samples, statistics."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch

from headcount.tasks import described
from headcount.tasks.cpm3 import Cpm3
from headcount.tasks.described import Described, real_floors
from headcount.tasks.filters import rows_picture
from headcount.tasks.polynomial import Polynomial
from headcount.tasks.task import Task, random_stream


def asks(task: Task) -> str:
    """What has to be answered, in one line."""
    if isinstance(task, Described):
        return task.asks
    if isinstance(task, Polynomial):
        return f"X, A X, .., A^{task.k - 1} X for the operator '{task.operator}'"
    if isinstance(task, Cpm3):
        return _CPM3[task.target][0].format(task=task)
    raise TypeError(f"{type(task).__name__} has no description")


def theory(task: Task) -> str:
    """What theory says about the heads and layers that are needed, in one line."""
    if isinstance(task, Described):
        return task.theory
    if isinstance(task, Polynomial):
        return (
            f"position-only attention, one layer: k = {task.k} standard or ceil(sqrt k) = {ceil(task.k**0.5)} "
            "interleaved heads; heads that read content need k - 1 and ceil(sqrt(k - 1)), in the limit"
        )
    if isinstance(task, Cpm3):
        return _CPM3[task.target][1].format(task=task, root=ceil(task.tokens**0.5))
    raise TypeError(f"{type(task).__name__} has no description")


_CPM3 = {
    "workspace": (
        "all {task.tokens} cyclic shifts of the token values",
        "fixed patterns: N = {task.tokens} standard or ceil(sqrt N) = {root} interleaved heads in one layer",
    ),
    "count": (
        "the number of ordered pairs with x_i + {task.multiplier} x_j1 + x_j2 = 0 mod {task.modulus}",
        "one uniform head over one-hot residues and an MLP can, for residues depend on their histogram only",
    ),
}


def floors(task: Task, examples: int = 4096, generator: torch.Generator | None = None) -> dict[str, float]:
    """What shortcuts reach, measured: accuracy, or the relative error of a "real" task (1 is worst)."""
    return task.floors(examples, generator) if isinstance(task, Described) else real_floors(task, examples, generator)


def show(task: Task, seed: int = 0, n: int = 1) -> str:
    """`n` examples of the training split for a human reader."""
    if isinstance(task, Described):
        return task.show(seed, n)
    batch = task.sample(n, random_stream(seed, "train"))
    return "\n\n".join(rows_picture(*example) for example in zip(*batch, strict=True))


def statistics(task: Task, examples: int = 4096, seed: int = 0) -> dict[str, Any]:
    """Label balance, lengths, duplicates and overlap between splits; see `described.statistics`."""
    return (
        task.statistics(examples, seed) if isinstance(task, Described) else described.statistics(task, examples, seed)
    )
