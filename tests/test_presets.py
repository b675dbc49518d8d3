"""Every preset that ships parses, plans, and names every mechanism where it says so."""

import pytest

from headcount.experiments import load_preset, preset_names
from headcount.models import ATTENTION


@pytest.mark.parametrize("name", preset_names())
def test_presets_plan(name):
    sweeps = load_preset(name)
    assert len({made.name for made in sweeps}) == len(sweeps)
    assert all(made.trials() for made in sweeps)


def test_mechanisms_preset_covers_every_mechanism_on_three_tasks():
    seen = {}
    for made in load_preset("mechanisms"):
        for trial in made.trials():
            fields = trial.flat()
            assert (fields["model.heads"], fields["model.width"], fields["model.depth"]) == (4, 32, 1)
            seen.setdefault(trial.task.name, set()).add(fields["model.attention"])
    assert len(seen) == 3
    assert all(names == set(ATTENTION) for names in seen.values())
