"""Answers and supporting lines worked out from the sentences alone, one rule per story type.

Nothing here is shared with the telling of stories except the reading of single sentences, so that agreement
between the two is evidence for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from headcount.config import BadInput
from headcount.tasks.babi.format import Line
from headcount.tasks.babi.grammar import MOTIVES, TIMES, Fact, understand

Noise = Literal["released", "clean"]


class Solution(NamedTuple):
    """An answer in lower case, its words joined by commas, and the lines it rests on, in order."""

    answer: str
    support: tuple[int, ...]


Told = Sequence[tuple[int, Fact]]
"""Line numbers and facts of the statements above a question."""


class Unanswerable(BadInput):
    """The statements do not decide the question."""


def solve(story_type: int, statements: Sequence[Line], question: str, noise: Noise = "released") -> Solution:
    """Answer a question of a story of this type from the statements above it.

    Example: the statements "1 John went to the garden." and the question "Where is John?" of type 1 give
    `Solution("garden", (1,))`.

    Args:
        noise: in type 8 "released" lists objects in the order in which they were first taken, "clean" in the
            order in which they were last taken; the other types have one rule for both.

    Raises:
        BadInput: if a sentence is not in the grammar, or the statements do not decide the question.
    """
    told = [(line.number, understand(line.text)) for line in statements]
    asked = understand(question)
    rules: Mapping[int, Callable[[Told, Fact], Solution]] = _RULES_CLEAN if noise == "clean" else _RULES
    if story_type not in rules:
        raise BadInput(f"story type {story_type} does not exist; allowed: 1 to 20")
    try:
        return rules[story_type](told, asked)
    except (LookupError, StopIteration, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise Unanswerable(f"the statements above do not decide the question {question!r}") from None


def _last(told: Told, *, subject: str = "", relation: str = "", target: str = "") -> tuple[int, Fact]:
    for number, fact in reversed(told):
        if subject in ("", fact.subject) and relation in ("", fact.relation) and target in ("", fact.object):
            return number, fact
    raise LookupError


def _place_of_person(told: Told, asked: Fact) -> Solution:
    number, fact = next(
        (number, fact) for number, fact in reversed(told) if asked.subject in (fact.subject, fact.extra)
    )
    return Solution(fact.object, (number,))


def _place_of_object(told: Told, asked: Fact) -> Solution:
    number, fact = next(
        (number, fact)
        for number, fact in reversed(told)
        if fact.relation in ("get", "drop") and fact.object == asked.subject
    )
    until = number if fact.relation == "drop" else told[-1][0] + 1
    known = [item for item in told if item[0] < until]
    moved, move = _last(known, subject=fact.subject, relation="move")
    return Solution(move.object, (number, moved))


def _place_of_object_before(told: Told, asked: Fact) -> Solution:
    thing = asked.subject
    place: dict[str, tuple[str, int]] = {}
    visits: list[tuple[str, int]] = []
    holder = ""
    touched = 0
    for number, (subject, relation, target, _) in told:
        if relation == "move":
            place[subject] = (target, number)
        elif target == thing:
            touched = number
            holder = subject if relation == "get" else ""
        if holder in place and (not visits or visits[-1][0] != place[holder][0]):
            visits.append(place[holder])
    arrival = max(step for step, (where, _) in enumerate(visits) if where == asked.object)
    if arrival == 0:
        raise LookupError
    before, earlier = visits[arrival - 1]
    return Solution(before, (touched, visits[arrival][1], earlier))


def _compass_neighbour(told: Told, asked: Fact) -> Solution:
    converse = {"north": "south", "south": "north", "east": "west", "west": "east"}
    direction = asked.relation.removesuffix("?")
    if asked.subject:
        anchor, direction = asked.subject, converse[direction]
    else:
        anchor = asked.object
    for number, fact in told:
        if fact.relation == direction and fact.object == anchor:
            return Solution(fact.subject, (number,))
        if fact.relation == converse[direction] and fact.subject == anchor:
            return Solution(fact.object, (number,))
    raise LookupError


def _gift(told: Told, asked: Fact) -> Solution:
    for number, (giver, relation, thing, receiver) in reversed(told):
        fits = asked.subject in ("", giver) and asked.object in ("", thing) and asked.extra in ("", receiver)
        if relation == "give" and fits:
            if asked.relation == "receive?" or (asked.subject and asked.object):
                return Solution(receiver, (number,))
            return Solution(thing if asked.subject else giver, (number,))
    raise LookupError


def _presence(told: Told, asked: Fact) -> Solution:
    statements = [item for item in told if item[1].relation not in ("get", "drop", "give")]
    number, fact = _last(statements, subject=asked.subject)
    same = asked.object == fact.object
    match fact.relation:
        case "not in":
            if not same:
                raise LookupError
            return Solution("no", (number,))
        case "either in":
            return Solution("maybe" if asked.object in (fact.object, fact.extra) else "no", (number,))
    return Solution("yes" if same else "no", (number,))


def _load_changes(told: Told, person: str) -> list[tuple[int, str, bool]]:
    """(line, object, whether it came or went) for each change of what a person carries."""
    changes = []
    for number, (subject, relation, target, receiver) in told:
        if relation == "give" and receiver == person:
            changes.append((number, target, True))
        elif relation in ("get", "drop", "give") and subject == person:
            changes.append((number, target, relation == "get"))
    return changes


def _load(told: Told, asked: Fact) -> Solution:
    names = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
    changes = _load_changes(told, asked.subject)
    count = sum(1 if came else -1 for _, _, came in changes)
    return Solution(names[count], tuple(number for number, _, _ in changes))


def _load_list(told: Told, asked: Fact, *, by_first: bool = True) -> Solution:
    changes = _load_changes(told, asked.subject)
    things = list(dict.fromkeys(thing for _, thing, _ in changes))
    state = {thing: (came, number) for number, thing, came in changes}
    held = [thing for thing in things if state[thing][0]]
    if not by_first:
        held.sort(key=lambda thing: state[thing][1])
    support = tuple(number for thing in things for number, other, _ in changes if other == thing)
    return Solution(",".join(held) or "nothing", support)


def _load_list_by_last(told: Told, asked: Fact) -> Solution:
    return _load_list(told, asked, by_first=False)


def _coreference(told: Told, asked: Fact) -> Solution:
    for (first, antecedent), (second, fact) in reversed(list(pairwise(told))):
        if fact.subject in ("he", "she", "they") and asked.subject in (antecedent.subject, antecedent.extra):
            return Solution(fact.object, (first, second))
    raise LookupError


def _place_before(told: Told, asked: Fact) -> Solution:
    visits = sorted(
        (TIMES.index(fact.extra), fact.object, number) for number, fact in told if fact.subject == asked.subject
    )
    arrival = max(step for step, (_, place, _) in enumerate(visits) if place == asked.object)
    if arrival == 0:
        raise LookupError
    _, before, earlier = visits[arrival - 1]
    return Solution(before, (visits[arrival][2], earlier))


def _fear(told: Told, asked: Fact) -> Solution:
    number, kind = _last(told, subject=asked.subject, relation="is")
    rule, fear = _last(told, subject=kind.object, relation="fears")
    return Solution(fear.object, (number, rule))


def _colour(told: Told, asked: Fact) -> Solution:
    number, kind = _last(told, subject=asked.subject, relation="is")
    others = [item for item in told if item[1].subject != asked.subject]
    like, other = _last(others, relation="is", target=kind.object)
    line, colour = _last(told, subject=other.subject, relation="color")
    return Solution(colour.object, (number, like, line))


def _route(told: Told, start: str, goal: str) -> list[tuple[int, str, bool]]:
    """Shortest chain of statements from start to goal as (line, relation, read from object to subject)."""
    back: dict[str, tuple[str, int, str, bool]] = {}
    queue, seen = deque([start]), {start}
    while queue and goal not in seen:
        here = queue.popleft()
        for number, fact in told:
            for near, far, forward in ((fact.object, fact.subject, True), (fact.subject, fact.object, False)):
                if near == here and far not in seen:
                    seen.add(far)
                    back[far] = (here, number, fact.relation, forward)
                    queue.append(far)
    route = []
    while goal != start:
        goal, number, relation, forward = back[goal]
        route.append((number, relation, forward))
    return route[::-1]


def _position(told: Told, asked: Fact) -> Solution:
    steps = {"above": (0, 1), "below": (0, -1), "left": (-1, 0), "right": (1, 0)}
    x = y = 0
    route = _route(told, asked.subject, asked.object)
    for _, relation, forward in route:
        sign = 1 if forward else -1
        x, y = x + sign * steps[relation][0], y + sign * steps[relation][1]
    # x, y lead from the subject to the object; the question is about the way back.
    along = {"above": -y, "below": y, "left": x, "right": -x}[asked.relation.removesuffix("?")]
    return Solution("yes" if along > 0 else "no", tuple(number for number, _, _ in route))


def _size(told: Told, asked: Fact) -> Solution:
    smaller: list[tuple[int, str, str]] = [
        (number, thing, other) if relation == "bigger" else (number, other, thing)
        for number, (thing, relation, other, _) in told
    ]

    def below(big: str) -> set[str]:
        found: set[str] = set()
        edge = {big}
        while edge:
            edge = {small for _, outer, small in smaller if outer in edge} - found
            found |= edge
        return found

    big, small = asked.subject, asked.object
    if asked.relation == "fits?":
        big, small = small, big
    yes = small in below(big)
    if yes == (big in below(small)):
        raise LookupError
    if not yes:
        big, small = small, big
    support: tuple[int, ...] = ()
    for i, a, b in smaller:
        for j, c, d in smaller:
            outer, inner = ((a, b), (c, d)) if yes else ((c, d), (a, b))
            if outer[0] == big and outer[1] == inner[0] and inner[1] == small:
                support = (i, j)
                break
    return Solution("yes" if yes else "no", support)


def _path(told: Told, asked: Fact) -> Solution:
    converse = {"north": "s", "south": "n", "east": "w", "west": "e"}
    route = _route(told, asked.subject, asked.object)
    letters = [relation[0] if forward else converse[relation] for _, relation, forward in route]
    return Solution(",".join(letters), tuple(number for number, _, _ in route))


def _motive(told: Told, asked: Fact) -> Solution:
    number, fact = _last(told, subject=asked.subject, relation="is")
    place, _ = MOTIVES[fact.object]
    return Solution(place if asked.relation == "go?" else fact.object, (number,))


_RULES: dict[int, Callable[[Told, Fact], Solution]] = {
    1: _place_of_person,
    2: _place_of_object,
    3: _place_of_object_before,
    4: _compass_neighbour,
    5: _gift,
    6: _presence,
    7: _load,
    8: _load_list,
    9: _presence,
    10: _presence,
    11: _coreference,
    12: _place_of_person,
    13: _coreference,
    14: _place_before,
    15: _fear,
    16: _colour,
    17: _position,
    18: _size,
    19: _path,
    20: _motive,
}
_RULES_CLEAN = {**_RULES, 8: _load_list_by_last}
