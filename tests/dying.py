"""Worker processes that meet trouble; apart from the tests, so that a process loads little."""

import os
import signal

from headcount.experiments import attempt, processes
from headcount.experiments.store import Store, StoreError
from headcount.experiments.training import train

work = processes.work


def _train_or_die(group, *others):
    if any(trial.seed == 1 for trial in group):
        os.kill(os.getpid(), signal.SIGKILL)
    return train(group, *others)


def deadly(*arguments):
    """`processes.work` where the trial of seed 1 kills its process."""
    attempt.train = _train_or_die
    work(*arguments)


def full(*arguments):
    """`processes.work` on a disk without space."""

    def refuse(*row):
        raise StoreError("no space left")

    Store.finish = refuse
    work(*arguments)
