"""Stories of people who only move: types 1, 9, 10, 11, 12, 13 and 14."""

from __future__ import annotations

from headcount.tasks.babi.draft import Clause, Draft, Question
from headcount.tasks.babi.grammar import TIMES, Fact, pronoun


class Walk:
    """People in places. Where they start is hidden; nobody goes where they already are."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.people, self.places, _ = draft.config.cast()
        self.place = {person: draft.one(self.places) for person in self.people}
        self.told: dict[str, tuple[int, ...]] = {}

    def elsewhere(self, *people: str) -> str:
        """A place where none of `people` is."""
        taken = {self.place[person] for person in people}
        return self.draft.one([place for place in self.places if place not in taken])

    def go(self, *people: str) -> str:
        """Move people, all to one place they are not in, and return it; telling is up to the caller."""
        place = self.elsewhere(*people)
        self.place.update(dict.fromkeys(people, place))
        return place

    def where(self, clause: Clause) -> Question:
        """Where somebody is whose every move is told."""
        person = clause.fact.subject
        return Question(Fact(person, "where?"), (self.place[person],), self.told[person])


def single_moves(draft: Draft) -> None:
    """Type 1: "Mary moved to the bathroom. John went to the hallway. Where is Mary? bathroom 1"."""
    walk = Walk(draft)

    def tell() -> None:
        person = draft.one(walk.people)
        walk.told[person] = (draft.state(Fact(person, "move", walk.go(person))),)

    draft.interview(tell, walk.where)


def pronoun_pairs(draft: Draft) -> None:
    """Type 11: "John moved to the office. Then he went to the hallway. Where is John? hallway 1 2"."""
    walk = Walk(draft)

    def tell() -> None:
        person = draft.one(walk.people)
        first = draft.state(Fact(person, "move", walk.go(person)))
        second = draft.state(Fact(pronoun(person), "move", walk.go(person)), [person])
        walk.told[person] = (first, second)

    draft.interview(tell, walk.where)


def conjunctions(draft: Draft) -> None:
    """Type 12: "Mary and Daniel went to the office. Where is Daniel? office 1"."""
    walk = Walk(draft)

    def tell() -> None:
        first, second = draft.shuffled(walk.people)[:2]
        number = draft.state(Fact(first, "move", walk.go(first, second), second), [first, second])
        walk.told[first] = walk.told[second] = (number,)

    draft.interview(tell, walk.where)


def conjunction_pairs(draft: Draft) -> None:
    """Type 13: "Mary and John went to the office. Then they moved to the garden.
    Where is John? garden 1 2".
    """
    walk = Walk(draft)

    def tell() -> None:
        first, second = draft.shuffled(walk.people)[:2]
        number = draft.state(Fact(first, "move", walk.go(first, second), second), [first, second])
        then = draft.state(Fact("they", "move", walk.go(first, second)), [first, second])
        walk.told[first] = walk.told[second] = (number, then)

    draft.interview(tell, walk.where)


def negations(draft: Draft) -> None:
    """Type 9: "Sandra is no longer in the bedroom. Is Sandra in the bedroom? no 1".

    Every sentence is a move; a negated one names the place that was left, even where nobody told of it.
    """
    walk = Walk(draft)
    last: dict[str, Clause] = {}

    def tell() -> None:
        person = draft.one(walk.people)
        left = walk.place[person]
        place = walk.go(person)
        kind = draft.one(("move", "move", "in", "not in"))
        fact = Fact(person, kind, left if kind == "not in" else place)
        last[person] = Clause(draft.state(fact), fact)

    def about(clause: Clause) -> Question:
        person = clause.fact.subject
        number, fact = last[person]
        if fact.relation == "not in":
            return Question(Fact(person, "in?", fact.object), ("no",), (number,))
        here = draft.chance(0.5)
        place = fact.object if here else walk.elsewhere(person)
        return Question(Fact(person, "in?", place), ("yes" if here else "no",), (number,))

    draft.interview(tell, about)


def indefinites(draft: Draft) -> None:
    """Type 10: "Bill is either in the school or the office. Is Bill in the office? maybe 1".

    One of the two places is the true one; the other is drawn freely and may be the same.
    """
    walk = Walk(draft)
    last: dict[str, Clause] = {}

    def tell() -> None:
        person = draft.one(walk.people)
        place = walk.go(person)
        kind = draft.one(("move", "move", "in", "either in"))
        fact = Fact(person, kind, place)
        if kind == "either in":
            fact = Fact(person, kind, *draft.shuffled((place, draft.one(walk.places))))
        last[person] = Clause(draft.state(fact), fact)

    def about(clause: Clause) -> Question:
        person = clause.fact.subject
        number, fact = last[person]
        # The released answers are 41 % yes, 44 % no and 15 % maybe, which an even coin does not give.
        place = walk.place[person] if draft.chance(0.55) else walk.elsewhere(person)
        named = place in (fact.object, fact.extra)
        answer = "no" if not named else "maybe" if fact.relation == "either in" else "yes"
        return Question(Fact(person, "in?", place), (answer,), (number,))

    draft.interview(tell, about)


def times(draft: Draft) -> None:
    """Type 14: "This morning Bill went to the park. Bill moved to the office yesterday.
    Where was Bill before the park? office 1 2".

    The days are lived in order, but what happened since the last question is told in a random order.
    """
    config = draft.config
    walk = Walk(draft)
    visits: dict[str, list[str]] = {person: [] for person in walk.people}
    lived: list[tuple[str, int]] = []
    untold: list[tuple[str, int]] = []
    lines: dict[tuple[str, int], int] = {}
    questions = config.size("questions")

    def live() -> None:
        free = [person for person in walk.people if len(visits[person]) < len(TIMES)]
        if free:
            person = draft.one(free)
            untold.append((person, len(visits[person])))
            visits[person].append(walk.go(person))

    def askable(person: str, time: int) -> bool:
        return time > 0 and visits[person][time] not in visits[person][time + 1 :]

    for count in range(1, questions + 1):
        least = -(-config.size("statements") * count // questions)
        while True:
            live()
            live()
            events = lived + untold
            options = [event for event in events[-5:] if askable(*event)]
            if not options and len(events) == len(TIMES) * len(walk.people):
                options = [event for event in events if askable(*event)]
            if len(events) >= least and options:
                break
        for person, time in draft.shuffled(untold):
            lines[person, time] = draft.state(Fact(person, "move", visits[person][time], TIMES[time]))
        lived, untold = events, []
        person, time = draft.one(options)
        question = Fact(person, "before?", visits[person][time])
        support = (lines[person, time], lines[person, time - 1])
        draft.ask(Question(question, (visits[person][time - 1],), support))
