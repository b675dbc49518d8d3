"""How much memory a stack needs, from its configuration alone, and how much there is."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headcount.config import BadInput
from headcount.experiments.training import CHUNK, EVALUATION_SLICE
from headcount.experiments.trial import Trial

COPIES = 9
"""Tensors as large as all weights: weights, gradient, Adam's two means, best and last weights, and three on the
way of an update."""

SHARE = 0.5
"""Of the memory there is, what stacks are made to fit: the estimate is good within a factor of two or so."""

GIB = 2**30


class Needed(NamedTuple):
    """Bytes that training a stack takes on top of the program itself.

    data: the held-out samples, and the training examples that lie ready. weights: COPIES of all parameters.
    activations: the most that one optimiser step, or the evaluation of one slice, holds at once.
    """

    data: int
    weights: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.3g}" for name, size in self._asdict().items())
        return f"about {self.total / GIB:.3g} GiB ({parts})"


def needed(members: Sequence[Trial]) -> Needed:
    """What one stack of trials of equal `Trial.group` needs."""
    first, count, seeds = members[0], len(members), len({trial.seed for trial in members})
    config = first.training
    example, parameters, activations = _measured(first.changed(seed=0))
    ready = config.training_examples or 2 * CHUNK * config.batch
    # What is drawn lies there seed by seed before it is put together.
    data = seeds * example * (config.validation_examples + config.test_examples + max(ready, config.test_examples))
    return Needed(data, count * COPIES * parameters, count * activations)


def cut(members: Sequence[Trial], room: float, most: int) -> list[list[Trial]]:
    """Trials of equal `Trial.group` as stacks of at most `most` that need no more than `room` bytes, if one can."""
    size = most
    while size > 1 and needed(members[:size]).total > room:
        size //= 2
    return [list(members[start : start + size]) for start in range(0, len(members), size)]


def refuse_what_never_fits(trials: Iterable[Trial], there: float, where: str) -> None:
    """Stop before anything starts if one trial, alone, needs more than the `there` bytes of `where`.

    Raises:
        BadInput: with the estimate.
    """
    for trial in {trial.group: trial for trial in trials}.values():
        need = needed([trial])
        if need.total > there:
            raise BadInput(
                f"a trial of task '{trial.task.name}' with N = {trial.task.length} needs {need}, and {where} has"
                f" {there / GIB:.3g} GiB; choose a smaller size or batch, or fewer heads"
            )


def total(device: torch.device) -> float:
    """Bytes of memory of the device that this process may use at most."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, _container("memory.max", "memory/memory.limit_in_bytes"))


def free(device: torch.device) -> float:
    """Bytes of memory of the device that nobody uses now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limit = _container("memory.max", "memory/memory.limit_in_bytes")
    used = _container("memory.current", "memory/memory.usage_in_bytes") if limit < float("inf") else 0.0
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return total(device)
    return min(available, limit - used)


def _container(*names: str) -> float:
    """A number of the control group (of version 2, or 1) that this process lives in; infinite if there is none."""
    for name in names:
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        return float("inf") if text == "max" else float(text)
    return float("inf")


@lru_cache(maxsize=4096)
def _measured(trial: Trial) -> tuple[int, int, int]:
    """Bytes of one example, of one model's weights, and of the most that is alive during a step or a slice of
    evaluation; found by going through both with tensors that have shapes but no memory."""
    task, config = trial.task, trial.training
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    with torch.device("meta"), _Fused():
        model = trial.build_model().to(dtype)
        parameters = list(model.parameters())

        def batch(examples: int) -> tuple[Tensor, Tensor]:
            inputs = (examples, task.length, task.input_width)
            targets = inputs[:2] if task.kind == "classes" else (*inputs[:2], task.output_width)
            return (
                torch.empty(inputs, dtype=torch.int64 if task.vocabulary else dtype),
                torch.empty(targets, dtype=dtype if task.kind == "real" else torch.int64),
            )

        inputs, targets = batch(config.batch)
        with _Live() as step:
            torch.autograd.grad(task.loss(model(inputs)[None], targets[None]).sum(), parameters, allow_unused=True)
        size = min(EVALUATION_SLICE, max(config.validation_examples, config.test_examples))
        inputs, targets = batch(size)
        with torch.no_grad(), _Live() as evaluation:
            task.mistakes(model(inputs), targets)
    slice_of_data = inputs.nbytes + targets.nbytes
    most = slice_of_data + max(step.most, evaluation.most)
    return slice_of_data // size, sum(parameter.nbytes for parameter in parameters), most


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, size: int) -> None:
        self.now -= size


class _Fused(TorchFunctionMode):
    """The fused kernel holds queries, keys, values and outputs only, which tensors without memory would not
    show: there the weights are written out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            queries, keys, values = args[:3]
            if queries.shape[-1] == values.shape[-1]:
                return queries[..., :1] * values.mean(-2, keepdim=True) * keys.mean()
        return func(*args, **(kwargs or {}))
