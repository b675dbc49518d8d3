"""How much of the machine's own batched matrix product the training step reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import Options, Row, alternate, medians, times
from benchmarks.stacks import BATCHES, ENSEMBLES, Stacked, trials
from headcount.experiments.gradients import gradients

Shape = tuple[int, int, int, int]
"""(b, m, k, n): b products of (m, k) with (k, n)."""

LARGE: Shape = (4, 1024, 1024, 1024)

MODELS = (
    "polynomial k=9 MHA H=9", "polynomial k=9 IHA H=3", "polynomial k=25 MHA H=25", "polynomial k=25 IHA H=5",
    "network D=64 MHA",
)  # fmt: skip

_aten = torch.ops.aten


class Products(TorchDispatchMode):
    """Counts the shapes of all matrix products that run under it; those inside of fused attention are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[Shape] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}
        if func in places:
            left, right = (args[places[func] + side].shape for side in (0, 1))
            batch = left[0] if len(left) == 3 else 1
            self.shapes[batch, left[-2], left[-1], right[-1]] += 1
        return func(*args, **(kwargs or {}))


def step_flops(stacked: Stacked) -> tuple[int, Counter[Shape]]:
    """Operations of one step, forward and backward, a multiply-add being two, and its matrix products."""
    task = stacked.task
    arguments = (stacked.ensemble, task, stacked.weights, stacked.inputs[0], stacked.targets[0])
    counter = FlopCounterMode(display=False)
    with counter:
        gradients(*arguments)
    with Products() as products:
        gradients(*arguments)
    return counter.get_total_flops(), products.shapes


def flops(shape: Shape) -> int:
    """Of one batched product."""
    b, m, k, n = shape
    return 2 * b * m * k * n


def operands(shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Random factors of a batched product."""
    b, m, k, n = shape
    return torch.randn(b, m, k, device=device).to(dtype), torch.randn(b, k, n, device=device).to(dtype)


def matmul(options: Options) -> Iterator[Row]:
    """GFLOP per second of the stacked training step (forward and backward as torch.utils.flop_counter counts them; time
    includes loss and optimiser), against torch.bmm on one thread in the same run: the step's own matrix products,
    each at its size, and four products of 1,024 x 1,024 matrices. "Time in products" is the share of the step's time that
    its own products alone would take so; a step takes less than that where it does large ones by other means.
    """
    models, ensembles = (MODELS[1:2], (4,)) if options.quick else (MODELS, ENSEMBLES)
    large = operands(LARGE, options.device)
    for model in models:
        for members in ensembles:
            stacked = Stacked(trials(model, members), options.device)
            counted, shapes = step_flops(stacked)
            pairs = [(operands(shape, options.device), count) for shape, count in shapes.items()]

            def products(pairs: Any = pairs) -> None:
                for pair, count in pairs:
                    for _ in range(count):
                        torch.bmm(*pair)

            seconds = alternate(
                {"step": stacked.train, "own": times(products), "large": times(lambda: torch.bmm(*large))}, options
            )
            taken = medians(seconds)
            step = taken["step"] / BATCHES
            rates = {
                "step": counted / step / 1e9,
                "own products": sum(flops(shape) * count for shape, count in shapes.items()) / taken["own"] / 1e9,
                "large products": flops(LARGE) / taken["large"] / 1e9,
            }
            yield {
                "model": model, "ensemble": members, "MFLOP a step": counted / 1e6, **rates,
                "share of own": rates["step"] / rates["own products"],
                "share of large": rates["step"] / rates["large products"],
                "time in products": taken["own"] / step, "seconds": seconds,
            }  # fmt: skip
