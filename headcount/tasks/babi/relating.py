"""Stories of how things stand to each other: types 4, 15, 16, 17, 18 and 19."""

from __future__ import annotations

from itertools import pairwise

from headcount.tasks.babi.draft import Draft, Question
from headcount.tasks.babi.grammar import (
    ANIMALS,
    COLOURS,
    CONTAINERS,
    DIRECTIONS,
    PLURALS,
    SWEETS,
    Fact,
    opposite,
)

_STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_OFFSETS = {"above": (0, 1), "below": (0, -1), "left": (-1, 0), "right": (1, 0)}
_CONVERSE = {"above": "below", "below": "above", "left": "right", "right": "left"}


def neighbours(draft: Draft) -> None:
    """Type 4: "The hallway is east of the office. The garden is west of the office.
    What is the office east of? garden 2".

    The places stand in one line and each statement is about two next to each other. The answer is always
    the subject of its statement; the outer place is the subject in about 65 % of the released statements.
    """
    facts = draft.config.size("statements")
    line = draft.shuffled(draft.config.cast().places)[: facts + 1]
    towards = draft.one(DIRECTIONS)
    told: list[Fact] = []
    for step, (near, far) in enumerate(pairwise(line)):
        outer_is_far = 2 * step + 1 >= facts
        far_first = draft.chance(0.65) == outer_is_far
        told.append(Fact(far, towards, near) if far_first else Fact(near, opposite(towards), far))
    told = draft.shuffled(told)
    numbers = [draft.state(fact) for fact in told]
    asked = int(draft.generator.integers(facts))
    subject, direction, target, _ = told[asked]
    if draft.chance(0.5):
        question = Fact("", f"{direction}?", target)
    else:
        question = Fact(target, f"{opposite(direction)}?")
    draft.ask(Question(question, (subject,), (numbers[asked],)))


def deductions(draft: Draft) -> None:
    """Type 15: "Sheep are afraid of mice. Winona is a sheep. What is winona afraid of? mouse 2 1"."""
    people, species = draft.config.cast().people, list(PLURALS)
    kind = {person: draft.one(species) for person in people}
    feared = {animal: draft.one([other for other in species if other != animal]) for animal in species}
    facts = [Fact(person, "is", animal) for person, animal in kind.items()]
    facts += [Fact(animal, "fears", other) for animal, other in feared.items()]
    line = {fact.subject: draft.state(fact) for fact in draft.shuffled(facts)}
    questions = draft.config.size("questions")
    asked = [draft.one(people) for _ in range(questions)]
    # A quarter of the released stories ask everybody once, far more than independent draws would.
    if questions == len(people) and draft.chance(0.17):
        asked = draft.shuffled(people)
    for person in asked:
        question = Fact(person, "fears?")
        draft.ask(Question(question, (feared[kind[person]],), (line[person], line[kind[person]])))


def inductions(draft: Draft) -> None:
    """Type 16: "Lily is a swan. Lily is gray. Greg is a swan. What color is Greg? gray 3 1 2".

    The one whose colour is left out shares the animal with one other, sometimes with three or four, never
    with two. With released noise an individual may differ in colour from its kind; the answer then follows
    the last one introduced.
    """
    people = draft.config.cast().people
    order: list[str] = []
    unfinished = list(people)
    while len(order) < 2 * len(people) - 1:
        person = draft.one(unfinished)
        order.append(person)
        if order.count(person) == 2:
            unfinished.remove(person)
    (asked,) = unfinished
    others = draft.shuffled(person for person in people if person != asked)
    groups = [(size, share) for size, share in ((1, 0.895), (3, 0.095), (4, 0.01)) if size <= len(others)]
    total = sum(share for _, share in groups)
    alike = groups[int(draft.generator.choice(len(groups), p=[share / total for _, share in groups]))][0]
    kind_asked = draft.one(ANIMALS)
    kind = dict.fromkeys([asked, *others[:alike]], kind_asked)
    for person in others[alike:]:
        kind[person] = draft.one([animal for animal in ANIMALS if animal != kind_asked])
    usual = {animal: draft.one(COLOURS) for animal in ANIMALS}
    faithful = 1.0 if draft.config.noise == "clean" else 0.67
    colour = {person: usual[kind[person]] if draft.chance(faithful) else draft.one(COLOURS) for person in others}
    introduced: dict[str, int] = {}
    coloured: dict[str, int] = {}
    for person in order:
        if person not in introduced:
            introduced[person] = draft.state(Fact(person, "is", kind[person]))
        else:
            coloured[person] = draft.state(Fact(person, "color", colour[person]))
    model = max(others[:alike], key=lambda person: introduced[person])
    support = (introduced[asked], introduced[model], coloured[model])
    draft.ask(Question(Fact(asked, "color?"), (colour[model],), support))


def positions(draft: Draft) -> None:
    """Type 17: "The triangle is above the red square. The red sphere is to the left of the triangle.
    Is the red sphere above the red square? yes 2 1".

    Each statement is one step on a grid, and questions are about the two ends of the chain of statements.
    """
    hops = draft.config.size("hops")
    while True:
        shapes = draft.shuffled(draft.config.cast().objects)[: hops + 1]
        steps = [draft.one(list(_OFFSETS)) for _ in range(hops)]
        offset = [sum(_OFFSETS[step][axis] for step in steps) for axis in (0, 1)]
        if any(offset):
            break
    told: list[tuple[int, Fact]] = []
    for step, (near, far) in enumerate(pairwise(shapes)):
        relation = steps[step]
        forward = draft.chance(0.5)
        told.append((step, Fact(far, relation, near) if forward else Fact(near, _CONVERSE[relation], far)))
    lines = {step: draft.state(fact) for step, fact in draft.shuffled(told)}
    chain = tuple(lines[step] for step in range(hops))
    for _ in range(draft.config.size("questions")):
        swapped = draft.chance(0.5)
        subject, target = (shapes[-1], shapes[0]) if swapped else (shapes[0], shapes[-1])
        sign = 1 if swapped else -1
        true = [name for name, (x, y) in _OFFSETS.items() if sign * (x * offset[0] + y * offset[1]) > 0]
        yes = draft.chance(0.5)
        relation = draft.one(true if yes else [name for name in _OFFSETS if name not in true])
        support = chain[::-1] if swapped else chain
        draft.ask(Question(Fact(subject, f"{relation}?", target), ("yes" if yes else "no",), support))


def sizes(draft: Draft) -> None:
    """Type 18: "The chest is bigger than the box. The box fits inside the suitcase. The chocolate fits
    inside the box. Does the chocolate fit in the suitcase? yes 2 3".

    Statements may repeat each other. Whoever is asked about is linked by two statements.
    """
    order = [*draft.shuffled(CONTAINERS), *SWEETS]
    pairs: list[tuple[str, str]] = []
    chains: list[tuple[str, str]] = []
    while not chains:
        for _ in range(draft.config.size("statements")):
            i, j = sorted(draft.shuffled(range(len(order)))[:2])
            pairs.append((order[i], order[j]))
            big, small = pairs[-1]
            draft.state(Fact(big, "bigger", small) if draft.chance(0.5) else Fact(small, "fits", big))
        chains = sorted({(big, small) for big, mid in pairs for other, small in pairs if mid == other})
    numbered = list(enumerate(pairs, start=1))
    for _ in range(draft.config.size("questions")):
        big, small = draft.one(chains)
        yes = draft.chance(0.5)
        links = [(i, j) for i, (a, mid) in numbered for j, link in numbered if a == big and link == (mid, small)]
        # The release names the latest first line and the earliest second; "no" reads the chain upwards.
        support = max(links, key=lambda link: (link[0], -link[1]) if yes else (link[1], -link[0]))
        support = support if yes else support[::-1]
        if draft.chance(0.5):
            question = Fact(big, "bigger?", small) if yes else Fact(small, "bigger?", big)
        else:
            question = Fact(small, "fits?", big) if yes else Fact(big, "fits?", small)
        draft.ask(Question(question, ("yes" if yes else "no",), support))


def paths(draft: Draft) -> None:
    """Type 19: "The garden is west of the office. The bedroom is north of the office.
    How do you go from the garden to the bedroom? e,n 1 2".

    The path never turns back on itself; every other place hangs on one of the places of the path.
    """
    hops = draft.config.size("hops")
    places = draft.shuffled(draft.config.cast().places)
    path = places[: hops + 1]
    taken: dict[str, set[str]] = {place: set() for place in places}
    edges: list[tuple[str, str, str]] = []
    directions: list[str] = []

    def connect(near: str, far: str) -> str:
        direction = draft.one([way for way in DIRECTIONS if way not in taken[near]])
        taken[near].add(direction)
        taken[far].add(opposite(direction))
        edges.append((near, direction, far))
        return direction

    for near, far in pairwise(path):
        directions.append(connect(near, far))
    for place in places[hops + 1 :]:
        connect(draft.one([node for node in path if len(taken[node]) < len(DIRECTIONS)]), place)
    lines: dict[int, int] = {}
    for edge in draft.shuffled(range(len(edges))):
        near, direction, far = edges[edge]
        forward = draft.chance(0.5)
        fact = Fact(far, direction, near) if forward else Fact(near, opposite(direction), far)
        lines[edge] = draft.state(fact)
    answer = tuple(direction[0] for direction in directions)
    question = Fact(path[0], "path?", path[-1])
    draft.ask(Question(question, answer, tuple(lines[step] for step in range(hops))))
