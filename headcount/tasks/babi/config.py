"""Which stories to tell: the type, its noise and how hard it is."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import pydantic

from headcount.config import Config
from headcount.tasks.babi.grammar import Cast, cast


class Range(NamedTuple):
    """The released value of a setting and the values it may take."""

    released: int
    lowest: int
    highest: int


_QUESTIONS, _STATEMENTS = Range(5, 1, 50), Range(10, 1, 500)
_WALK = {
    "people": Range(4, 1, 8),
    "places": Range(6, 3, 12),
    "statements": _STATEMENTS,
    "questions": _QUESTIONS,
}
_CARRY = {**_WALK, "objects": Range(3, 1, 8)}
_PAIR = {**_WALK, "people": Range(4, 2, 8)}

SETTINGS: dict[int, dict[str, Range]] = {
    1: _WALK,
    2: _CARRY,
    3: _CARRY,
    4: {"places": Range(6, 3, 12), "statements": Range(2, 2, 11)},
    5: {**_CARRY, "people": Range(4, 2, 8)},
    6: _CARRY,
    7: {**_CARRY, "people": Range(4, 2, 8)},
    8: {**_CARRY, "objects": Range(3, 1, 6)},
    9: _WALK,
    10: _WALK,
    11: _WALK,
    12: _PAIR,
    13: _PAIR,
    14: {**_WALK, "statements": Range(10, 2, 30)},
    15: {"people": Range(4, 1, 8), "questions": Range(4, 1, 50)},
    16: {"people": Range(5, 2, 8)},
    17: {"objects": Range(6, 3, 6), "hops": Range(2, 2, 5), "questions": Range(8, 1, 50)},
    18: {"statements": Range(5, 2, 100), "questions": _QUESTIONS},
    19: {"places": Range(6, 2, 12), "hops": Range(2, 1, 8)},
    20: {"people": Range(4, 1, 8)},
}
"""Settings that make a type harder or easier."""


class Babi(Config):
    """Stories of one type. A setting left out keeps its released value; see `SETTINGS`.

    Example: `Babi(story_type=2, objects=5)` tells stories of two supporting facts over five objects.

    Attributes:
        story_type: 1 to 20, numbered as in the release.
        noise: type 5 "released" sometimes asks for an older gift of the same pair; type 8 lists objects in
            the order in which they were first taken, "clean" in the order in which they were last taken;
            type 16 "released" lets animals of one kind differ in colour. No effect on the other types.
        people: number of people a story is about.
        places: number of places.
        objects: number of objects, or of shapes in type 17.
        hops: statements a question chains together, in types 17 and 19.
        statements: fewest statements of a story, spread evenly over its questions. Types 1-3 and 5-14 add
            pairs of statements until something can be asked; type 18 adds as many again.
        questions: questions asked in a story.
    """

    name: Literal["babi"] = "babi"
    story_type: int = pydantic.Field(ge=1, le=20)
    noise: Literal["released", "clean"] = "released"
    people: int | None = None
    places: int | None = None
    objects: int | None = None
    hops: int | None = None
    statements: int | None = None
    questions: int | None = None

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        allowed = SETTINGS[self.story_type]
        for setting in ("people", "places", "objects", "hops", "statements", "questions"):
            value = getattr(self, setting)
            if value is None:
                continue
            if setting not in allowed:
                names = ", ".join(sorted(allowed))
                raise ValueError(f"story type {self.story_type} has no setting '{setting}'; allowed: {names}")
            self._at_most(setting, allowed[setting].highest, lowest=allowed[setting].lowest)
        match self.story_type:
            case 4:
                self._at_most("statements", self.size("places") - 1, " with so few places")
            case 14:
                self._at_most("statements", 4 * self.size("people") - 2, " with so few people at four times")
            case 17:
                self._at_most("hops", self.size("objects") - 1, " with so few shapes")
            case 19:
                # Each place has four neighbours at most, and what is off the path hangs on it.
                hops = self.size("hops")
                self._at_most("places", 3 * hops + 5, f" with a path of {hops} hops", lowest=hops + 1)
        return self

    def _at_most(self, setting: str, highest: int, why: str = "", lowest: int = 1) -> None:
        value = self.size(setting)
        if not lowest <= value <= highest:
            raise ValueError(
                f"{setting} = {value} is impossible in story type {self.story_type}{why}; "
                f"allowed: {lowest} to {highest}"
            )

    def size(self, setting: str) -> int:
        """The value of a setting, released where it was left out; 1 where the type has no such setting."""
        value: int | None = getattr(self, setting)
        if value is not None:
            return value
        known = SETTINGS[self.story_type].get(setting)
        return known.released if known else 1

    def cast(self) -> Cast:
        """The people, places and objects that these stories may name."""
        everybody = cast(self.story_type)
        settings = SETTINGS[self.story_type]
        return Cast(
            everybody.people[: self.size("people")] if "people" in settings else everybody.people,
            everybody.places[: self.size("places")] if "places" in settings else everybody.places,
            everybody.objects[: self.size("objects")] if "objects" in settings else everybody.objects,
        )
