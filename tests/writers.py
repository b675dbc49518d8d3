"""Several processes run overlapping sets of trials into one store, and one of them is killed on the way.

Long run: python -m tests.writers. Training is replaced by a result that is computed at once from the trial: what
is tested is the store under contention. Every process trains in a way that can be told from the others.
"""

import argparse
import collections
import itertools
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from headcount.experiments import Execution, Store, Sweep, attempt, runner
from headcount.experiments.training import Outcome, Point


def grid(count):
    """`count` distinct trials, in groups of eight."""
    return Sweep.parse(
        {
            "task": {"name": "polynomial", "k": 2, "tokens": 5},
            "model": {"score": "linear", "content": "positions", "value_content": "features"},
            "training": {"steps": 2, "validation_examples": 16, "test_examples": 32},
            "grid": {"training.batch": list(range(1, 1 + -(-count // 8))), "seed": list(range(8))},
        }
    ).trials()[:count]


def instead_of_training(dies_at):
    """A result at once; the process dies in its group number `dies_at`, which it has claimed and not written."""
    groups = itertools.count(1)

    def train(group, *others):
        if next(groups) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        return [
            Outcome("done", error=number_of(trial.id), last_step=2, weight_norm=os.getpid(), curve=[Point(2, 0.5, 0.5)])
            for trial in group
        ]

    return train


def number_of(key):
    return int(key, 16) / 16**16


def write(folder, trials, seed, dies_at, failures):
    """What one process does: its trials in an order of its own."""
    attempt.train = instead_of_training(dies_at)
    try:
        random.Random(seed).shuffle(trials)
        store = Store(folder)
        store.plan(trials, f"writer {seed}")
        runner.run(trials, store, Execution("cpu", 1))
    except BaseException as error:
        failures.put(f"writer {seed}: {type(error).__name__}: {error}")
        raise


def run_writers(count, processes, folder, seed=0):
    """Run `count` trials by `processes` processes that share three quarters of them; one of them dies, and another run ends what is left.

    Returns:
        Counter of trials by the process that wrote them, and what went wrong: list of str.
    """
    trials, choice = grid(count), random.Random(seed)
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    parts = [
        [trial for i, trial in enumerate(trials) if i % processes != (part + 1) % processes]
        for part in range(processes)
    ]
    deaths = [choice.randint(2, 5)] + [0] * (processes - 1)
    made = [context.Process(target=write, args=(folder, parts[i], i, deaths[i], failures)) for i in range(processes)]
    for process in made:
        process.start()
    for process in made:
        process.join()
    made.append(context.Process(target=write, args=(folder, trials, processes, 0, failures)))
    made[-1].start()
    made[-1].join()
    wrong = []
    while not failures.empty():
        wrong.append(failures.get())
    if made[0].exitcode != -signal.SIGKILL:
        wrong.append("the process that was to die had ended before")
    wrong += [f"exit code {one.exitcode}" for one in made[1:] if one.exitcode]
    store = Store(folder)
    rows, curves = store.rows(), store.curves()
    if sorted(rows["id"]) != sorted(trial.id for trial in trials) or set(rows["status"]) != {"done"}:
        wrong.append(f"{len(rows)} rows of {len(trials)} trials: {dict(rows['status'].value_counts())}")
    if any(rows["error"] != [number_of(key) for key in rows["id"]]):
        wrong.append("a row has the numbers of another trial")
    if sorted(curves["id"]) != sorted(rows["id"]):
        wrong.append(f"{len(curves)} points of curves, one for each of {len(rows)} trials expected")
    return collections.Counter(rows["weight_norm"].astype(int)), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shares, wrong = run_writers(arguments.trials, arguments.processes, Path(folder), arguments.seed)
    print(f"{sum(shares.values())} trials by {len(shares)} processes, each {sorted(shares.values())}, one of them killed;"
          f" {len(wrong)} faults; {time.monotonic() - started:.0f} s")  # fmt: skip
    print("\n".join(wrong))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
