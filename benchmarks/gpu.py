"""What is asked of a GPU, in pieces that end one by one. They run on a CPU too, which shows that they work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.matmul import LARGE, flops, operands, step_flops
from benchmarks.measure import CPU, Options, Row, alternate, medians
from benchmarks.stacks import BATCHES, MODELS, Stacked, check_agreement, trials
from headcount import api
from headcount.experiments import Execution, Store, load_preset, run

SHOWN = (
    "polynomial k=25 MHA H=25", "polynomial k=25 IHA H=5", "CPM-3 N=16 MHA H=16", "CPM-3 N=16 IHA H=4",
    "network D=64 MHA", "network D=128 MHA",
)  # fmt: skip


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device) -> float | None:
    """GiB allocated at most since the last call, on a GPU."""
    if device.type != "cuda":
        return None
    found = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return found


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    yield
    torch.set_float32_matmul_precision(before)


def agreement(options: Options) -> Iterator[Row]:
    """Losses of the first steps on CPU and device, from the same weights on the same data: largest relative
    difference in float32. The piece fails above 1e-4.
    """
    for model in MODELS:
        members = trials(model, 4)
        here, there = Stacked(members, CPU).train(1), Stacked(members, options.device).train(1)
        check_agreement({"cpu": here, str(options.device): there})
        yield {"model": model, "difference": float((abs(there - here) / abs(here)).max())}


def ensembles(options: Options) -> Iterator[Row]:
    """Model-steps per second of the stacked step on the device, GFLOP per second, its share of the device's own rate at
    four float32 products of 1,024 x 1,024 (TF32 off, as in training) in the same turns, and peak memory in GiB.
    """
    large = operands(LARGE, options.device)

    def own(count: int) -> None:
        for _ in range(count):
            torch.bmm(*large)
        _finish(options.device)

    for model in SHOWN[:2] if options.quick else SHOWN:
        for members in (1, 4) if options.quick else (1, 64, 256, 1024):
            _peak(options.device)
            stacked = Stacked(trials(model, members), options.device)
            counted, _ = step_flops(stacked)
            seconds = alternate({"step": stacked.train, "large": own}, options)
            taken = medians(seconds)
            rate, limit = counted * BATCHES / taken["step"] / 1e9, flops(LARGE) / taken["large"] / 1e9
            yield {
                "model": model, "ensemble": members, "model-steps/s": BATCHES * members / taken["step"],
                "GFLOP/s": rate, "large product GFLOP/s": limit, "share": rate / limit,
                "peak GiB": _peak(options.device), "seconds": seconds,
            }  # fmt: skip


def products(options: Options) -> Iterator[Row]:
    """TFLOP per second of torch.bmm on the device, by type of number and size: what shares are shares of."""
    sizes = [(4, 256, 256, 256)] if options.quick else [(64, 256, 256, 256), LARGE, (4, 4096, 4096, 4096)]
    for size in sizes:
        for name, dtype, tf32 in (
            ("float32", torch.float32, False), ("float32 as TF32", torch.float32, True), ("bfloat16", torch.bfloat16, False),
        ):  # fmt: skip
            pair = operands(size, options.device, dtype)

            def multiply(count: int, pair: Any = pair) -> None:
                for _ in range(count):
                    torch.bmm(*pair)
                _finish(options.device)

            with _tf32(tf32):
                seconds = alternate({"bmm": multiply}, options)
            yield {
                "numbers": name, "size": " x ".join(map(str, size)),
                "TFLOP/s": flops(size) / medians(seconds)["bmm"] / 1e12, "seconds": seconds,
            }  # fmt: skip


def laws(options: Options) -> Iterator[Row]:
    """The two scaling laws on the device, from presets smoke and quick: trials, seconds of training and of everything,
    and verdicts of the claims that read trained models.
    """
    for preset in ("smoke",) if options.quick else ("smoke", "quick"):
        with TemporaryDirectory() as folder:
            done = api.reproduce(preset, folder, Execution(options.device.type))
        if done.report.broken:
            raise RuntimeError(f"{done.report.failed} trials failed, {done.report.died} workers died")
        yield {"preset": preset, "trials": done.report.ran, "training s": done.report.seconds, "all s": done.seconds}
        for claim, finding in done.findings:
            if claim.sweeps:
                yield {
                    "preset": preset,
                    "claim": claim.id,
                    "verdict": str(finding.verdict),
                    "measured": finding.measured,
                }


def relation(options: Options) -> Iterator[Row]:
    """Preset relation-paper on the device, cut to 60 steps: model-steps per second, peak memory in GiB, and the hours that
    all steps of the sweep would take if no trial stopped early, evaluations left out.
    """
    cut: dict[str, Any] = {
        "steps": 60,
        "warmup": 1,
        "evaluations": 1,
        "curves": "validation",
        "validation_examples": 256,
        "test_examples": 256,
    }
    sweeps = load_preset("relation-paper")
    if options.quick:
        cut |= {"steps": 2, "batch": 2, "training_examples": 4, "validation_examples": 2, "test_examples": 2}
        sweeps = sweeps[:1]
    for made in sweeps:
        some = made.model_copy(update={"training": made.training | cut}).trials()
        with TemporaryDirectory() as folder, contextlib.closing(Store(folder)) as store:
            store.plan(some, made.name)
            _peak(options.device)
            report = run(some, store, Execution(options.device.type, workers=1))
            parameters = int(store.rows()["parameters"].max())
        if report.ran - report.failed != len(some):
            raise RuntimeError(f"sweep '{made.name}': {report.ran - report.failed} of {len(some)} trials ended well")
        rate = cut["steps"] * len(some) / report.seconds
        yield {
            "sweep": made.name, "trials": len(some), "parameters at most": parameters, "model-steps/s": rate,
            "hours for all": sum(trial.training.steps for trial in made.trials()) / rate / 3600,
            "peak GiB": _peak(options.device),
        }  # fmt: skip
