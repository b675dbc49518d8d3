"""Telling stories: the one function of configuration and random stream that gives a story."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headcount.tasks.babi import carrying, relating, walking
from headcount.tasks.babi.config import Babi
from headcount.tasks.babi.draft import Draft
from headcount.tasks.babi.format import Story

_TELLERS: dict[int, Callable[[Draft], None]] = {
    1: walking.single_moves,
    2: carrying.where_is_the_object,
    3: carrying.where_was_the_object,
    4: relating.neighbours,
    5: carrying.gifts,
    6: carrying.is_somebody_there,
    7: carrying.counts,
    8: carrying.lists,
    9: walking.negations,
    10: walking.indefinites,
    11: walking.pronoun_pairs,
    12: walking.conjunctions,
    13: walking.conjunction_pairs,
    14: walking.times,
    15: relating.deductions,
    16: relating.inductions,
    17: relating.positions,
    18: relating.sizes,
    19: relating.paths,
    20: carrying.motives,
}


def story(config: Babi, generator: np.random.Generator) -> Story:
    """One story; all its randomness comes from `generator`."""
    draft = Draft(config, generator)
    _TELLERS[config.story_type](draft)
    return draft.story()


def stories(config: Babi, count: int, seed: int) -> list[Story]:
    """`count` stories that depend on the configuration and the seed alone.

    Story i has its own random stream, so a longer list begins with a shorter one.
    Example: `stories(Babi(story_type=1), 200, seed=0)` holds 1000 questions, as a released file does.
    """
    streams = np.random.SeedSequence(seed).spawn(count)
    return [story(config, np.random.default_rng(stream)) for stream in streams]
