"""Trials that take milliseconds, and a store that has planned them."""

from headcount.experiments import Store, Sweep


def small_trials(heads=(1, 2), seeds=2, steps=20, grid=None, **training):
    """Polynomial filters of two terms on five tokens; `grid` adds axes, by dotted name."""
    return Sweep.parse(
        {
            "task": {"name": "polynomial", "k": 2, "tokens": 5},
            "model": {"score": "linear", "content": "positions", "value_content": "features"},
            "training": {"steps": steps, "validation_examples": 16, "test_examples": 32, **training},
            "grid": {"model.heads": list(heads), "seed": list(range(seeds)), **(grid or {})},
        }
    ).trials()


def planned(folder, trials):
    """A new store that holds `trials`, none of them run."""
    store = Store(folder)
    store.plan(trials, "s")
    return store
