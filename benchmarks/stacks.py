"""Model-steps per second of stacked training against the same models one after another, in one run.

`python -m benchmarks.stacks [--device cpu|cuda] [--output FILE]`. Settings are those of the quick preset; the two
ways alternate, and medians of five are compared as ratios.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from headcount.experiments.runner import environment
from headcount.experiments.sweep import defaults
from headcount.experiments.training import resolve_device, train
from headcount.experiments.trial import Trial

SHAPES = {
    "polynomial k=25 mha H=25": ("polynomial", {"k": 25, "tokens": 26}, {"attention": "mha", "heads": 25}),
    "polynomial k=25 iha H=5": ("polynomial", {"k": 25, "tokens": 26}, {"attention": "iha", "heads": 5}),
    "cpm3 N=16 mha H=16": ("cpm3", {"tokens": 16}, {"attention": "mha", "heads": 16}),
    "cpm3 N=16 iha H=4": ("cpm3", {"tokens": 16}, {"attention": "iha", "heads": 4}),
}


def trials(shape, members, steps):
    task, fields, model = SHAPES[shape]
    base, _ = defaults(task)
    training = {"steps": steps, "batch": 32, "evaluations": 1, "validation_examples": 2, "test_examples": 2}
    return [
        Trial.build({"task": {"name": task, **fields}, "model": {**base, **model}, "training": training, "seed": seed})
        for seed in range(members)
    ]


def seconds(call, device):
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    torch.set_num_threads(1)
    rows = []
    for shape in SHAPES:
        for members in arguments.members:
            made = trials(shape, members, arguments.steps)
            train(trials(shape, 1, 5), device)
            stacked, single = [], []
            for _ in range(arguments.repeats):
                stacked.append(seconds(lambda made=made: train(made, device), device))
                single.append(seconds(lambda made=made: [train([one], device) for one in made], device))
            total = members * arguments.steps
            row = {
                "shape": shape, "members": members, "stacked model-steps/s": total / statistics.median(stacked),
                "one by one model-steps/s": total / statistics.median(single),
                "ratio": statistics.median(single) / statistics.median(stacked),
            }  # fmt: skip
            rows.append(row)
            print(
                {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        result = {"environment": environment(device), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
