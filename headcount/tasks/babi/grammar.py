"""The sentences of the released bAbI stories: facts, how they are said, and how they are read back.

A fact is a tuple (subject, relation, object, extra) of lower-case symbols, an empty symbol where the
relation needs none. Relations that end in a question mark are questions:

    John went back to the hallway.        (john, move, hallway, )
    Mary and John moved to the kitchen.   (mary, move, kitchen, john)
    Yesterday Bill went to the park.      (bill, move, park, yesterday)
    Fred handed the milk to Jeff.         (fred, give, milk, jeff)
    Where was Bill before the park?       (bill, before?, park, )
    What is north of the garden?          (, north?, garden, )
    What is the garden north of?          (garden, north?, , )
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from headcount.config import BadInput


class Fact(NamedTuple):
    """One statement or question as four symbols."""

    subject: str
    relation: str
    object: str = ""
    extra: str = ""


MOVES = ("went to", "went back to", "journeyed to", "travelled to", "moved to")
GETS = ("picked up", "got", "grabbed", "took")
DROPS = ("put down", "left", "dropped", "discarded")
GIVES = ("gave", "handed", "passed")
ADVERBS = ("afterwards", "after that", "following that", "then")
TIMES = ("yesterday", "this morning", "this afternoon", "this evening")
PRONOUNS = ("he", "she", "they")
DIRECTIONS = ("north", "east", "south", "west")
POSITIONS = {"above": "above", "below": "below", "left": "to the left of", "right": "to the right of"}
PLURALS = {"mouse": "mice", "sheep": "sheep", "wolf": "wolves", "cat": "cats"}
ANIMALS = ("swan", "lion", "frog", "rhino")
COLOURS = ("gray", "white", "yellow", "green")
SHAPES = ("red square", "blue square", "yellow square", "pink rectangle", "red sphere", "triangle")
CONTAINERS = ("suitcase", "container", "chest", "box")
SWEETS = ("box of chocolates", "chocolate")
MOTIVES = {
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "bored": ("garden", "football"),
    "tired": ("bedroom", "pajamas"),
}
"""Motive, and the place and the object it leads to."""

WOMEN = frozenset(
    ("mary", "sandra", "julie", "gertrude", "winona", "jessica", "emily", "lily", "yvonne", "nina", "clara")
)

_COMMON = ("mary", "john", "daniel", "sandra")
_ROOMS = ("bedroom", "bathroom", "kitchen", "office", "garden", "hallway")
_OUTSIDE = ("school", "cinema", "park", "bedroom", "kitchen", "office")
_MORE_ROOMS = ("attic", "cellar", "library", "garage", "balcony", "stable")


class Cast(NamedTuple):
    """The names a story type may use: the released ones first, then more for harder stories."""

    people: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()


def cast(story_type: int) -> Cast:
    """Names of people, places and objects in stories of this type."""
    rooms = (*_ROOMS, *_MORE_ROOMS)
    common = (*_COMMON, "bill", "fred", "jeff", "julie")
    things = ("apple", "football", "milk", "book", "lamp", "basket", "violin", "umbrella")
    match story_type:
        case 1 | 9 | 11 | 12 | 13:
            return Cast(common, rooms)
        case 2 | 3 | 6 | 7 | 8:
            return Cast(common, rooms, things)
        case 4 | 19:
            return Cast(places=rooms)
        case 5:
            return Cast(("fred", "jeff", "bill", "mary", "john", "daniel", "sandra", "julie"), rooms, things)
        case 10 | 14:
            return Cast(
                ("bill", "fred", "julie", "mary", "john", "daniel", "sandra", "jeff"),
                (*_OUTSIDE, *_MORE_ROOMS),
            )
        case 15:
            people = ("gertrude", "winona", "jessica", "emily", "clara", "nina", "oscar", "hugo")
            return Cast(people, objects=tuple(PLURALS))
        case 16:
            return Cast(("lily", "bernhard", "greg", "julius", "brian", "nina", "oscar", "hugo"))
        case 17:
            return Cast(objects=SHAPES)
        case 18:
            return Cast(objects=(*CONTAINERS, *SWEETS))
        case 20:
            return Cast(
                ("jason", "antoine", "sumit", "yann", "yvonne", "nina", "oscar", "hugo"),
                ("kitchen", "garden", "bedroom"),
                ("apple", "milk", "football", "pajamas"),
            )
    raise BadInput(f"story type {story_type} does not exist; allowed: 1 to 20")


ANSWER_PEOPLE = frozenset(cast(5).people)
"""People whose names stand as answers, and are then written with a capital."""


def pronoun(person: str) -> str:
    """What the second sentence of a pair calls a person."""
    return "she" if person in WOMEN else "he"


def opposite(direction: str) -> str:
    """The converse of a compass direction: north gives south."""
    return DIRECTIONS[(DIRECTIONS.index(direction) + 2) % 4]


# --------------------------------------------------------------------------------------------------
# Saying


@dataclass(frozen=True, slots=True)
class Maybe:
    """A piece of a sentence that is said with some probability."""

    text: str
    chance: float


Piece = str | tuple[str, ...] | Maybe
"""What a sentence is made of: fixed text, a choice among equals, or something optional."""


def wordings(fact: Fact, story_type: int) -> list[Piece]:
    """Every way to say a fact, piece by piece.

    Example: (john, drop, milk) gives "John ", one of four verbs, " the milk", perhaps " there", ".".
    """
    subject, relation, target, extra = fact
    name = subject if relation in ("go?", "why-move?", "why-get?", "fears?") else subject.capitalize()
    whom = extra.capitalize()
    match relation:
        case "move" if subject in PRONOUNS:
            adverbs = tuple(adverb.capitalize() for adverb in ADVERBS)
            return [adverbs, f" {subject} ", MOVES, f" the {target}."]
        case "move" if extra in TIMES:
            front = tuple(f"{extra.capitalize()} {name} {verb} the {target}." for verb in MOVES)
            return [(*front, *(f"{name} {verb} the {target} {extra}." for verb in MOVES))]
        case "move":
            return [f"{name} and {whom} " if extra else f"{name} ", MOVES, f" the {target}."]
        case "get":
            return [f"{name} ", GETS, f" the {target}", Maybe(" there", 0.2 if story_type == 3 else 1), "."]
        case "drop":
            return [f"{name} ", DROPS, f" the {target}", Maybe(" there", 0.2), "."]
        case "give":
            return [f"{name} ", GIVES, f" the {target} to {whom}."]
        case "in":
            return [f"{name} is in the {target}."]
        case "not in":
            return [f"{name} is ", ("not", "no longer"), f" in the {target}."]
        case "either in":
            return [f"{name} is either in the {target} or the {extra}."]
        case "is":
            return [f"{name} is {target}." if target in MOTIVES else f"{name} is a {target}."]
        case "fears":
            return [f"{PLURALS[subject].capitalize()} are afraid of {PLURALS[target]}."]
        case "color":
            return [f"{name} is {target}."]
        case "bigger":
            return [f"The {subject} is bigger than the {target}."]
        case "fits":
            return [f"The {subject} fits inside the {target}."]
        case "north" | "east" | "south" | "west":
            return [f"The {subject} is {relation} of the {target}."]
        case "above" | "below" | "left" | "right":
            return [f"The {subject} is {POSITIONS[relation]} the {target}."]
        case "where?":
            return [f"Where is {'the ' + subject if story_type == 2 else name}?"]
        case "before?":
            return [f"Where was {'the ' + subject if story_type == 3 else name} before the {target}?"]
        case "in?":
            return [f"Is {name} in the {target}?"]
        case "count?":
            return [f"How many objects is {name} carrying?"]
        case "carrying?":
            return [f"What is {name} carrying?"]
        case "give?" if subject and target:
            return [f"Who did {name} give the {target} to?"]
        case "give?" if subject:
            return [f"What did {name} give to {whom}?"]
        case "give?":
            return [f"Who gave the {target} to {whom}?" if extra else f"Who gave the {target}?"]
        case "receive?":
            return [f"Who received the {target}?"]
        case "fears?":
            return [f"What is {name} afraid of?"]
        case "color?":
            return [f"What color is {name}?"]
        case "bigger?":
            return [f"Is the {subject} bigger than the {target}?"]
        case "fits?":
            return [f"Does the {subject} fit in the {target}?"]
        case "path?":
            return [f"How do you go from the {subject} to the {target}?"]
        case "north?" | "east?" | "south?" | "west?" if subject:
            return [f"What is the {subject} {relation[:-1]} of?"]
        case "north?" | "east?" | "south?" | "west?":
            return [f"What is {relation[:-1]} of the {target}?"]
        case "above?" | "below?" | "left?" | "right?":
            return [f"Is the {subject} {POSITIONS[relation[:-1]]} the {target}?"]
        case "go?":
            return [f"Where will {name} go?"]
        case "why-move?":
            return [f"Why did {name} go to the {target}?"]
        case "why-get?":
            return [f"Why did {name} get the {target}?"]
    raise ValueError(f"no sentence says {fact}")


def say(fact: Fact, story_type: int, generator: np.random.Generator) -> str:
    """A sentence of the released grammar for a fact, its wording drawn at random.

    Example: `say(Fact("john", "drop", "milk"), 2, generator)` may give "John put down the milk there."
    """
    said = ""
    for piece in wordings(fact, story_type):
        if isinstance(piece, str):
            said += piece
        elif isinstance(piece, Maybe):
            said += piece.text if generator.random() < piece.chance else ""
        else:
            said += piece[int(generator.integers(len(piece)))]
    return said


def words_of(fact: Fact, story_type: int) -> set[str]:
    """The lower-case words of every sentence that can say a fact."""
    found: set[str] = set()
    for piece in wordings(fact, story_type):
        texts = (piece,) if isinstance(piece, str) else (piece.text,) if isinstance(piece, Maybe) else piece
        found.update(*map(words, texts))
    return found


def vocabulary_facts(story_type: int, members: Cast) -> list[Fact]:
    """Facts that together use every word and every symbol of stories with this cast."""
    people, places, objects = members
    first = people[0] if people else ""
    moves = [Fact(person, "move", place) for person in people for place in places]
    gets = [Fact(first, action, thing) for action in ("get", "drop") for thing in objects]
    gifts = [Fact(person, "give", thing, other) for person in people for thing in objects for other in people]
    inside = [Fact(first, relation, place) for relation in ("in", "in?") for place in places]
    match story_type:
        case 1 | 12:
            pairs = [Fact(first, "move", places[0], other) for other in people] if story_type == 12 else []
            return [*moves, *pairs, Fact(first, "where?")]
        case 2:
            return [*moves, *gets, Fact(objects[0], "where?")]
        case 3:
            return [*moves, *gets, Fact(objects[0], "before?", places[0])]
        case 4:
            ways = [Fact(places[0], way, place) for way in DIRECTIONS for place in places]
            asked = [Fact(places[0], f"{way}?") for way in DIRECTIONS]
            asked += [Fact("", f"{way}?", places[0]) for way in DIRECTIONS]
            return [*ways, *asked]
        case 5:
            what, to = Fact(first, "give?", "", first), Fact(first, "give?", objects[0])
            who, received = Fact("", "give?", objects[0]), Fact("", "receive?", objects[0])
            return [*moves, *gets, *gifts, what, to, who, received]
        case 6:
            return [*moves, *gets, Fact(first, "in?", places[0])]
        case 7:
            return [*moves, *gets, *gifts, Fact(first, "count?")]
        case 8:
            return [*moves, *gets, Fact(first, "carrying?")]
        case 9:
            return [*moves, *inside, Fact(first, "not in", places[0])]
        case 10:
            return [*moves, *inside, Fact(first, "either in", places[0], places[0])]
        case 11:
            called = sorted({pronoun(person) for person in people})
            return [*moves, *(Fact(word, "move", places[0]) for word in called), Fact(first, "where?")]
        case 13:
            pairs = [Fact(first, "move", places[0], first), Fact("they", "move", places[0])]
            return [*moves, *pairs, Fact(first, "where?")]
        case 14:
            timed = [fact._replace(extra=time) for fact in moves for time in TIMES]
            return [*timed, Fact(first, "before?", places[0])]
        case 15:
            kinds = [Fact(person, "is", animal) for person in people for animal in PLURALS]
            return [*kinds, *(Fact(animal, "fears", animal) for animal in PLURALS), Fact(first, "fears?")]
        case 16:
            kinds = [Fact(person, "is", animal) for person in people for animal in ANIMALS]
            return [*kinds, *(Fact(first, "color", colour) for colour in COLOURS), Fact(first, "color?")]
        case 17 | 18:
            relations = tuple(POSITIONS) if story_type == 17 else ("bigger", "fits")
            told = [Fact(thing, relation, thing) for relation in relations for thing in objects]
            return [*told, *(fact._replace(relation=f"{fact.relation}?") for fact in told)]
        case 19:
            ways = [Fact(place, way, place) for way in DIRECTIONS for place in places]
            return [*ways, Fact(places[0], "path?", places[0])]
        case 20:
            feelings = [Fact(person, "is", motive) for person in people for motive in MOTIVES]
            taken = [Fact(first, "get", thing) for thing in objects]
            whys = [Fact(first, "why-get?", objects[0]), Fact(first, "why-move?", places[0])]
            return [*moves, *feelings, *taken, *whys, Fact(first, "go?")]
    raise BadInput(f"story type {story_type} does not exist; allowed: 1 to 20")


# --------------------------------------------------------------------------------------------------
# Reading


def _any(words: Sequence[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_MOVE = _any(MOVES)
_POSITION = {phrase: relation for relation, phrase in POSITIONS.items()}
_SINGULAR = {plural: animal for animal, plural in PLURALS.items()}
_S, _O, _E = r"(?P<s>\w+)", r"(?P<o>\w+)", r"(?P<e>\w+)"
_THING, _THING2 = r"the (?P<s>[a-z ]+?)", r"the (?P<o>[a-z ]+)"

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("move", rf"(?P<e>{_any(TIMES)}) {_S} (?:{_MOVE}) the {_O}\."),
    ("move", rf"{_S} (?:{_MOVE}) the {_O} (?P<e>{_any(TIMES)})\."),
    ("move", rf"(?:{_any(ADVERBS)}) (?P<s>he|she|they) (?:{_MOVE}) the {_O}\."),
    ("move", rf"{_S} and {_E} (?:{_MOVE}) the {_O}\."),
    ("move", rf"{_S} (?:{_MOVE}) the {_O}\."),
    ("get", rf"{_S} (?:{_any(GETS)}) the {_O}(?: there)?\."),
    ("drop", rf"{_S} (?:{_any(DROPS)}) the {_O}(?: there)?\."),
    ("give", rf"{_S} (?:{_any(GIVES)}) the {_O} to {_E}\."),
    ("in", rf"{_S} is in the {_O}\."),
    ("not in", rf"{_S} is (?:not|no longer) in the {_O}\."),
    ("either in", rf"{_S} is either in the {_O} or the {_E}\."),
    ("fears", rf"(?P<s>{_any(list(_SINGULAR))}) are afraid of (?P<o>{_any(list(_SINGULAR))})\."),
    ("is", rf"{_S} is a {_O}\."),
    ("is", rf"{_S} is (?P<o>{_any(list(MOTIVES))})\."),
    ("color", rf"{_S} is (?P<o>{_any(COLOURS)})\."),
    ("bigger", rf"{_THING} is bigger than {_THING2}\."),
    ("fits", rf"{_THING} fits inside {_THING2}\."),
    ("{r}", rf"{_THING} is (?P<r>{_any(DIRECTIONS)}) of {_THING2}\."),
    ("{r}", rf"{_THING} is (?P<r>{_any(list(_POSITION))}) {_THING2}\."),
    ("where?", rf"where is (?:the )?{_S}\?"),
    ("before?", rf"where was (?:the )?{_S} before the {_O}\?"),
    ("in?", rf"is {_S} in the {_O}\?"),
    ("count?", rf"how many objects is {_S} carrying\?"),
    ("carrying?", rf"what is {_S} carrying\?"),
    ("give?", rf"what did {_S} give to {_E}\?"),
    ("give?", rf"who did {_S} give the {_O} to\?"),
    ("give?", rf"who gave the {_O}(?: to {_E})?\?"),
    ("receive?", rf"who received the {_O}\?"),
    ("fears?", rf"what is {_S} afraid of\?"),
    ("color?", rf"what color is {_S}\?"),
    ("bigger?", rf"is {_THING} bigger than {_THING2}\?"),
    ("fits?", rf"does {_THING} fit in {_THING2}\?"),
    ("path?", rf"how do you go from {_THING} to {_THING2}\?"),
    ("{r}?", rf"what is (?P<r>{_any(DIRECTIONS)}) of {_THING2}\?"),
    ("{r}?", rf"what is {_THING} (?P<r>{_any(DIRECTIONS)}) of\?"),
    ("{r}?", rf"is {_THING} (?P<r>{_any(list(_POSITION))}) {_THING2}\?"),
    ("go?", rf"where will {_S} go\?"),
    ("why-move?", rf"why did {_S} go to the {_O}\?"),
    ("why-get?", rf"why did {_S} get the {_O}\?"),
)
_COMPILED = tuple((relation, re.compile(pattern)) for relation, pattern in _PATTERNS)


@lru_cache(maxsize=65536)
def understand(sentence: str) -> Fact:
    """The fact that a sentence states or asks for; the inverse of `say`.

    Example: "Fred handed the milk to Jeff." gives ("fred", "give", "milk", "jeff").

    Raises:
        BadInput: if the sentence is not one of the released grammar.
    """
    text = sentence.strip().lower()
    for relation, pattern in _COMPILED:
        found = pattern.fullmatch(text)
        if found:
            part = {key: value or "" for key, value in found.groupdict().items()}
            spoken = part.get("r", "")
            name = relation.replace("{r}", _POSITION.get(spoken, spoken))
            subject, target = part.get("s", ""), part.get("o", "")
            if name == "fears":
                subject, target = _SINGULAR[subject], _SINGULAR[target]
            return Fact(subject, name, target, part.get("e", ""))
    raise BadInput(f"not a sentence of the bAbI stories: {sentence!r}")


def words(text: str) -> list[str]:
    """Lower-case words without punctuation: "Is John here?" gives is, john, here."""
    return re.findall(r"[a-z]+", text.lower())
