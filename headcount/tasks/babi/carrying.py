"""Stories of people who take, drop and give objects: types 2, 3, 5, 6, 7, 8 and 20."""

from __future__ import annotations

from typing import ClassVar

from headcount.tasks.babi.draft import Clause, Draft, Question
from headcount.tasks.babi.grammar import MOTIVES, Fact
from headcount.tasks.babi.walking import Walk

_COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


class World(Walk):
    """People and objects in places, all starting somewhere hidden.

    An object is taken only where it lies and dropped or given only by who holds it, a gift needs both in one
    place, and nobody goes where they already are.

    Attributes:
        spot: where each object lies that nobody holds.
        holder: who holds each object that somebody holds.
        moved: line of each person's last move.
        touched: last taking, dropping or giving of each object.
        carried: moves of the last to hold each object since they took it, as (place, line).
        given: last gift of each object.
        loads: lines that changed what a person carries, by object in the order of the first time.
    """

    # The share of each action among those tried; what is impossible at the moment is drawn again. Fitted
    # to the shares in the released files.
    CHANCES: ClassVar[dict[bool, dict[str, float]]] = {
        False: {"move": 0.53, "get": 0.275, "drop": 0.195},
        True: {"move": 0.345, "get": 0.17, "drop": 0.105, "give": 0.38},
    }

    def __init__(self, draft: Draft, *, gifts: bool = False) -> None:
        super().__init__(draft)
        self.objects = draft.config.cast().objects
        self.spot = {thing: draft.one(self.places) for thing in self.objects}
        self.holder: dict[str, str] = {}
        self.moved: dict[str, int] = {}
        self.touched: dict[str, Clause] = {}
        self.carried: dict[str, list[tuple[str, int]]] = {}
        self.given: dict[str, Clause] = {}
        self.loads: dict[str, dict[str, list[int]]] = {person: {} for person in self.people}
        chances = self.CHANCES[gifts]
        self._actions = list(chances)
        self._chances = list(chances.values())

    def possible(self, action: str) -> list[Fact]:
        """Every fact that this action could be now."""
        match action:
            case "move":
                return [Fact(p, "move", to) for p in self.people for to in self.places if to != self.place[p]]
            case "get":
                free = self.spot.items()
                return [Fact(p, "get", o) for o, spot in free for p in self.people if self.place[p] == spot]
            case "drop":
                return [Fact(p, "drop", o) for o, p in self.holder.items()]
        return [
            Fact(p, "give", o, q)
            for o, p in self.holder.items()
            for q in self.people
            if q != p and self.place[q] == self.place[p]
        ]

    def tell(self) -> None:
        """One random possible action happens and is told."""
        while True:
            action = self._actions[int(self.draft.generator.choice(len(self._actions), p=self._chances))]
            options = self.possible(action)
            if options:
                break
        fact = self.draft.one(options)
        number = self.draft.state(fact)
        person, _, target, receiver = fact
        match action:
            case "move":
                self.place[person], self.moved[person] = target, number
                for thing, holder in self.holder.items():
                    if holder == person:
                        self.carried[thing].append((target, number))
                return
            case "get":
                del self.spot[target]
                self.holder[target], self.carried[target] = person, []
            case "drop":
                del self.holder[target]
                self.spot[target] = self.place[person]
            case "give":
                self.holder[target], self.carried[target] = receiver, []
                self.given[target] = Clause(number, fact)
                self.loads[receiver].setdefault(target, []).append(number)
        self.touched[target] = Clause(number, fact)
        self.loads[person].setdefault(target, []).append(number)


def where_is_the_object(draft: Draft) -> None:
    """Type 2: "Mary got the milk there. Mary went to the hallway. Where is the milk? hallway 1 2"."""
    world = World(draft)

    def about(clause: Clause) -> Question | None:
        thing = clause.fact.object
        if thing not in world.touched:
            return None
        number, fact = world.touched[thing]
        moved = world.moved.get(fact.subject, 0)
        if fact.relation == "get":
            place = world.place[fact.subject]
            return Question(Fact(thing, "where?"), (place,), (number, moved)) if moved > number else None
        before = [seen.number for seen in draft.clauses if seen.fact[:2] == (fact.subject, "move")]
        before = [line for line in before if line < number]
        return Question(Fact(thing, "where?"), (world.spot[thing],), (number, before[-1])) if before else None

    draft.interview(world.tell, about)


def where_was_the_object(draft: Draft) -> None:
    """Type 3: "Mary got the milk. Mary went to the office. Mary moved to the garden. Mary left the milk.
    Where was the milk before the garden? office 4 3 2".

    Only what was carried through two places by one person and then dropped is asked for.
    """
    world = World(draft)

    def about(clause: Clause) -> Question | None:
        thing = clause.fact.object
        if thing not in world.spot or thing not in world.touched:
            return None
        path = world.carried[thing]
        last = {place: step for step, (place, _) in enumerate(path)}
        steps = [step for step in last.values() if step > 0]
        if not steps:
            return None
        # Four in five released questions name the place where the object lies now.
        step = max(steps) if draft.chance(0.4) else draft.one(steps)
        (before, earlier), (place, arrival) = path[step - 1], path[step]
        support = (world.touched[thing].number, arrival, earlier)
        return Question(Fact(thing, "before?", place), (before,), support)

    draft.interview(world.tell, about)


def gifts(draft: Draft) -> None:
    """Type 5: "Fred picked up the milk there. Fred gave the milk to Jeff. Who received the milk? Jeff 2"."""
    world = World(draft, gifts=True)

    def about(clause: Clause) -> Question | None:
        gift = world.given.get(clause.fact.object)
        if clause.fact.relation != "give" or gift is None:
            return None
        kind = draft.one(("what", "what", "from", "from-to", "received", "to"))
        # An older gift of the same pair is asked for in 0.2 % of the released questions.
        if kind == "what" and (draft.config.noise == "clean" or draft.chance(0.7)):
            pair = (gift.fact.subject, gift.fact.extra)
            gift = next(
                seen
                for seen in reversed(draft.clauses)
                if seen.fact.relation == "give" and (seen.fact.subject, seen.fact.extra) == pair
            )
        number, (giver, _, thing, receiver) = gift
        match kind:
            case "what":
                return Question(Fact(giver, "give?", "", receiver), (thing,), (number,))
            case "from":
                return Question(Fact("", "give?", thing), (giver,), (number,))
            case "from-to":
                return Question(Fact("", "give?", thing, receiver), (giver,), (number,))
            case "received":
                return Question(Fact("", "receive?", thing), (receiver,), (number,))
        return Question(Fact(giver, "give?", thing), (receiver,), (number,))

    draft.interview(world.tell, about)


def is_somebody_there(draft: Draft) -> None:
    """Type 6: "John moved to the bedroom. Mary got the milk there. Is John in the kitchen? no 1"."""
    world = World(draft)

    def about(clause: Clause) -> Question | None:
        if clause.fact.relation != "move":
            return None
        person = clause.fact.subject
        here = draft.chance(0.5)
        place = world.place[person] if here else world.elsewhere(person)
        return Question(Fact(person, "in?", place), ("yes" if here else "no",), (world.moved[person],))

    draft.interview(world.tell, about)


def counts(draft: Draft) -> None:
    """Type 7: "Mary got the milk there. Mary gave the milk to John.
    How many objects is Mary carrying? none 1 2"."""
    world = World(draft, gifts=True)

    def about(clause: Clause) -> Question | None:
        if clause.fact.relation == "move":
            return None
        person = clause.fact.subject
        number = list(world.holder.values()).count(person)
        support = sorted(line for lines in world.loads[person].values() for line in lines)
        return Question(Fact(person, "count?"), (_COUNTS[number],), tuple(support))

    draft.interview(world.tell, about)


def lists(draft: Draft) -> None:
    """Type 8: "John got the milk there. John took the apple there. What is John carrying? milk,apple 1 2".

    The released order is that of the first time somebody took each object, even if dropped meanwhile.
    """
    world = World(draft)

    def about(clause: Clause) -> Question | None:
        if clause.fact.relation == "move":
            return None
        person = clause.fact.subject
        held = [thing for thing in world.loads[person] if world.holder.get(thing) == person]
        if draft.config.noise == "clean":
            held.sort(key=lambda thing: world.touched[thing].number)
        support = tuple(line for lines in world.loads[person].values() for line in lines)
        return Question(Fact(person, "carrying?"), tuple(held) or ("nothing",), support)

    draft.interview(world.tell, about)


def motives(draft: Draft) -> None:
    """Type 20: "Sumit is tired. Where will sumit go? bedroom 1. Sumit moved to the bedroom.
    Why did sumit go to the bedroom? tired 1".

    People act in turn at random until nobody has anything left to do; each object is taken once only.
    """
    people = draft.config.cast().people
    motive = {person: draft.one(list(MOTIVES)) for person in people}
    felt: dict[str, int] = {}
    steps = dict.fromkeys(people, 0)
    free = {thing for _, thing in MOTIVES.values()}
    while True:
        able = [p for p in people if steps[p] < 2 or (steps[p] == 2 and MOTIVES[motive[p]][1] in free)]
        if not able:
            break
        person = draft.one(able)
        feeling = motive[person]
        place, thing = MOTIVES[feeling]
        match steps[person]:
            case 0:
                felt[person] = draft.state(Fact(person, "is", feeling))
                draft.ask(Question(Fact(person, "go?"), (place,), (felt[person],)))
            case 1:
                draft.state(Fact(person, "move", place))
                draft.ask(Question(Fact(person, "why-move?", place), (feeling,), (felt[person],)))
            case 2:
                draft.state(Fact(person, "get", thing))
                draft.ask(Question(Fact(person, "why-get?", thing), (feeling,), (felt[person],)))
                free.remove(thing)
        steps[person] += 1
