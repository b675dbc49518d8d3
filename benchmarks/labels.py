"""CPM-3 labels: the histogram path against enumeration, in one run. `python -m benchmarks.labels [N]`."""

import statistics
import sys
import time

import torch

from headcount.tasks.cpm3 import pair_counts, pair_counts_brute


def median_seconds(call, repeats):
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main(tokens: int = 512, multiplier: int = 75, modulus: int = 37) -> None:
    torch.set_num_threads(1)
    batch = torch.randint(0, 1000, (64, tokens), generator=torch.Generator().manual_seed(0))
    fast = median_seconds(lambda: pair_counts(batch, multiplier, modulus), 9) / len(batch)
    one = batch[0].numpy()
    slow = median_seconds(lambda: pair_counts_brute(one, multiplier, modulus), 3)
    assert pair_counts(batch[0], multiplier, modulus).tolist() == pair_counts_brute(one, multiplier, modulus)
    print(
        f"N = {tokens}, M = {modulus}: {fast * 1e6:.1f} us a sequence by histogram, {slow:.2f} s by enumeration, ratio {slow / fast:,.0f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
