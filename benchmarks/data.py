"""How fast examples are made and labelled."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Options, Row, alternate, medians, times
from headcount.tasks import TASKS, random_stream
from headcount.tasks.cpm3 import pair_counts, pair_counts_brute

EXAMPLES = 256
MULTIPLIER, MODULUS = 75, 37


def data(options: Options) -> Iterator[Row]:
    """Examples per second of every task at its default sizes, labels included, in draws of 256, on one thread."""
    for name, kind in TASKS.items():
        task = kind.parse({"name": name})
        seconds = alternate(
            {"sample": times(lambda task=task: task.draw("train", EXAMPLES, random_stream(0, "train")))}, options
        )
        rate = EXAMPLES / medians(seconds)["sample"]
        yield {
            "task": name, "N": task.length, "examples/s": rate, "tokens/s": rate * task.length, "seconds": seconds,
        }  # fmt: skip


def labels(options: Options) -> Iterator[Row]:
    """CPM-3 counts (M = 37) by histogram, in O(N + M^2), against enumeration of all triples, on one thread, in seconds a
    sequence. The histogram labels 64 sequences at once. Counts are compared before timing.
    """
    for tokens in (16, 64) if options.quick else (16, 64, 128, 256, 512):
        batch = torch.randint(0, 1000, (64, tokens), generator=torch.Generator().manual_seed(0))
        one = batch[0].numpy()
        if pair_counts(batch[0], MULTIPLIER, MODULUS).tolist() != pair_counts_brute(one, MULTIPLIER, MODULUS):
            raise RuntimeError(f"labels of N = {tokens} differ")
        seconds = alternate(
            {
                "histogram": times(lambda batch=batch: pair_counts(batch, MULTIPLIER, MODULUS)),
                "enumeration": times(lambda one=one: pair_counts_brute(one, MULTIPLIER, MODULUS)),
            },
            options,
        )
        taken = medians(seconds)
        fast, slow = taken["histogram"] / len(batch), taken["enumeration"]
        yield {
            "N": tokens, "histogram s": fast, "enumeration s": slow, "ratio": slow / fast, "seconds": seconds,
        }  # fmt: skip
