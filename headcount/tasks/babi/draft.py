"""A story in the making: facts told so far, who knows which line, and when a question is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from headcount.tasks.babi.config import Babi
from headcount.tasks.babi.format import Line, Story, blank_before_answer
from headcount.tasks.babi.grammar import ANSWER_PEOPLE, Fact, say

Item = TypeVar("Item")

WINDOW = 5
"""Released questions start from one of the last five clauses; two people who move together are two."""


class Question(NamedTuple):
    """A question with its answer in words and the numbers of its supporting lines."""

    fact: Fact
    answer: tuple[str, ...]
    support: tuple[int, ...]


class Clause(NamedTuple):
    """What one person did in the line of that number."""

    number: int
    fact: Fact


class Draft:
    """Collects the lines of one story in symbols and puts them into words at the end."""

    def __init__(self, config: Babi, generator: np.random.Generator) -> None:
        self.config = config
        self.generator = generator
        self.clauses: list[Clause] = []
        self.statements = 0
        self._entries: list[Fact | Question] = []

    def one(self, items: Sequence[Item]) -> Item:
        """One of `items`, uniformly."""
        return items[int(self.generator.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.generator.random() < probability)

    def shuffled(self, items: Iterable[Item]) -> list[Item]:
        """`items` in random order."""
        known = list(items)
        return [known[i] for i in self.generator.permutation(len(known))]

    def state(self, fact: Fact, people: Sequence[str] = ()) -> int:
        """Add a statement and return its line number; it is one clause for each of `people`, at least one."""
        self._entries.append(fact)
        self.statements += 1
        number = len(self._entries)
        for person in people or (fact.subject,):
            self.clauses.append(Clause(number, fact._replace(subject=person)))
        return number

    def ask(self, question: Question) -> None:
        """Add a question."""
        self._entries.append(question)

    def interview(self, tell: Callable[[], None], about: Callable[[Clause], Question | None]) -> None:
        """Tell two statements at a time, then ask about a random recent clause, if any allows it.

        Args:
            tell: adds one statement, or a pair of them.
            about: the question that a clause gives rise to, or None if it cannot be asked.
        """
        questions = self.config.size("questions")
        for count in range(1, questions + 1):
            least = math.ceil(self.config.size("statements") * count / questions)
            while True:
                before = self.statements
                tell()
                if self.statements == before + 1:
                    tell()
                if self.statements < least:
                    continue
                candidates = (about(clause) for clause in self.shuffled(self.clauses[-WINDOW:]))
                question = next((found for found in candidates if found is not None), None)
                if question is not None:
                    self.ask(question)
                    break

    def story(self) -> Story:
        """The story in words."""
        story_type = self.config.story_type
        blank = blank_before_answer(story_type)
        lines: list[Line] = []
        for number, entry in enumerate(self._entries, start=1):
            if isinstance(entry, Question):
                text = say(entry.fact, story_type, self.generator)
                named = [word.capitalize() if word in ANSWER_PEOPLE else word for word in entry.answer]
                lines.append(Line(number, text, ",".join(named), entry.support, blank))
            else:
                lines.append(Line(number, say(entry, story_type, self.generator)))
        return Story(story_type, tuple(lines))
