"""Losses and gradients of a stack, in parts that stay in the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.experiments.recording import Program, fused, record
from headcount.models import Ensemble
from headcount.tasks import Task

CACHE = 16 * 2**20
"""Bytes that a step of one part works in, on a CPU: with more, numbers come from memory, and with much less, calls take
longer than what they do."""

Weights = Sequence[Float[Tensor, "members numbers"]]
"""Blocks of parameters, or of their gradients; see `Ensemble.weights`."""

Part = tuple[slice, Float[Tensor, " some"], Weights]
"""Members, their losses and their gradients; these hold until the next part is asked for."""

Parts = Callable[[Tensor, Tensor], Iterator[Part]]


def gradients(ensemble: Ensemble, task: Task, weights: Weights, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Every member's training loss on its own examples, and its gradient, in blocks as the weights."""
    leaves = [block.detach().requires_grad_() for block in weights]
    losses = task.loss(ensemble(inputs, leaves), targets)
    ones = torch.ones(losses.shape, dtype=losses.dtype, device=losses.device)
    return losses.detach(), *torch.autograd.grad(losses, leaves, ones)


def plain_gradients(ensemble: Ensemble, task: Task, weights: Weights) -> Parts:
    """`gradients` of all members at once, of inputs and targets."""
    return _whole(lambda *batch: gradients(ensemble, task, weights, *batch), slice(0, len(weights[0])))


def recorded_gradients(
    ensemble: Ensemble, task: Task, weights: Weights, inputs: Tensor, targets: Tensor, compiled: bool = False
) -> Parts:
    """`gradients` of inputs and targets of these shapes, recorded or compiled (see `record`, `fused`). The weights are
    read anew at every call."""
    made = fused if compiled else record

    def whole(*batch: Tensor) -> tuple[Tensor, ...]:
        return gradients(ensemble, task, weights, *batch)

    def part(*given: Tensor) -> tuple[Tensor, ...]:
        *blocks, inputs, targets = given
        return gradients(ensemble, task, blocks, inputs, targets)

    recorded = record(whole, inputs, targets)
    rows = _split(len(inputs), recorded.size if inputs.device.type == "cpu" else 0)
    if len(rows) == 1:
        return _whole(made(whole, inputs, targets) if compiled else recorded, rows[0])
    del recorded
    given = (*weights, inputs, targets)
    programs = {some.stop - some.start: made(part, *(tensor[some] for tensor in given)) for some in rows}

    def parts(*batch: Tensor) -> Iterator[Part]:
        for some in rows:
            losses, *gradient = programs[some.stop - some.start](*(tensor[some] for tensor in (*weights, *batch)))
            yield some, losses, gradient

    return parts


def _whole(program: Program, everyone: slice) -> Parts:
    def parts(*batch: Tensor) -> Iterator[Part]:
        losses, *gradient = program(*batch)
        yield everyone, losses, gradient

    return parts


def _split(members: int, size: int) -> list[slice]:
    """The parts of a stack that works in `size` bytes: equal ones, or else of two sizes, each of which has a program."""
    least = min(max(-(-size // CACHE), 1), members)
    count = next((count for count in range(least, 2 * least) if members % count == 0), least)
    bounds = [members * part // count for part in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
