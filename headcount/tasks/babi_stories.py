"""bAbI stories as a task: read the statements above a question and the question, say the answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks import babi
from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch, random_stream

_SETTINGS = ("story_type", "noise", "people", "places", "objects", "hops", "statements", "questions")

_FIXED = {1: 10, 4: 2, 9: 10, 10: 10, 11: 10, 12: 10, 13: 10, 15: 8, 16: 9, 17: 2, 19: 5, 20: 12}
"""Statements of a story of the released settings, where all have equally many or few differ."""

_FACTS = dict.fromkeys((2, 11, 13, 14, 15, 17, 18, 19), "2") | {3: "3", 16: "3", 7: "1 to 10", 8: "1 to 8"}
"""Supporting statements of a question of the released stories, where not 1."""

_MEMORY = 50
"""Statements kept otherwise: no supporting statement of the released stories lies further back."""


class BabiStories(Described):
    """One example is one question: the statements above it, the question, then padding.

    Example, layout "statements": (john, move, office, -), (john, where, -, -) is answered office at the
    second position. Consecutive examples may be questions of one story.

    Attributes:
        story_type, noise, people, places, objects, hops, statements, questions: see `babi.Babi`.
        layout: "statements" gives one position of four symbols to a statement; "words" one to a word.
        last: statements kept above a question; see `memory`.
    """

    name: Literal["babi"] = "babi"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    story_type: int = pydantic.Field(default=1, ge=1, le=20)
    noise: Literal["released", "clean"] = "released"
    people: int | None = None
    places: int | None = None
    objects: int | None = None
    hops: int | None = None
    statements: int | None = None
    questions: int | None = None
    layout: Literal["statements", "words"] = "statements"
    last: int | None = pydantic.Field(default=None, ge=1, le=1000)

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        self._babi()
        return self

    def _babi(self) -> babi.Babi:
        return babi.Babi.parse({setting: getattr(self, setting) for setting in _SETTINGS})

    @cached_property
    def told(self) -> babi.Vocabulary:
        """Words, symbols and answers that these stories may contain."""
        return babi.vocabulary(self._babi())

    @property
    def memory(self) -> int:
        """`last`; if not given, all statements of a story with the released settings where they are few, else 50."""
        if self.last is not None:
            return self.last
        released = all(getattr(self, setting) is None for setting in _SETTINGS[2:])
        return _FIXED.get(self.story_type, _MEMORY) if released else _MEMORY

    @property
    def length(self) -> int:
        longest = babi.RELEASED[self.story_type].longest_sentence if self.layout == "words" else 1
        return (self.memory + 1) * longest

    @property
    def vocabulary(self) -> int:
        return len(self.told.words if self.layout == "words" else self.told.symbols)

    @property
    def input_width(self) -> int:
        return 1 if self.layout == "words" else 4

    @property
    def output_width(self) -> int:
        return len(self.told.answers)

    @property
    def asks(self) -> str:
        return f"the answer to a question about a story of type {self.story_type}, {self._slug}"

    @property
    def _slug(self) -> str:
        return babi.SLUGS[self.story_type].replace("-", " ")

    @property
    def theory(self) -> str:
        facts = _FACTS.get(self.story_type, "1")
        return f"no bound is known; an answer rests on {facts} statement(s), each of which is one more lookup"

    def _stories(self, generator: torch.Generator) -> Iterator[babi.Story]:
        """Endless stories; each has its own seed from the generator."""
        config = self._babi()
        while True:
            seed = int(torch.randint(2**62, (1,), generator=generator))
            yield from babi.stories(config, 1, seed)

    def _enough(self, examples: int, generator: torch.Generator) -> list[babi.Story]:
        chosen, asked = [], 0
        for story in self._stories(generator):
            if asked >= examples:
                break
            chosen.append(story)
            asked += len(story.questions)
        return chosen

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        stories = self._enough(examples, generator)
        encoded = babi.encode(stories, self.told, self.layout, last=self.memory, length=self.length)
        tokens, valid = encoded.tokens[:examples], encoded.valid[:examples]
        targets = torch.full(valid.shape, IGNORED)
        targets.scatter_(1, valid.sum(-1, keepdim=True) - 1, encoded.answer[:examples, None])
        return Batch(tokens[..., None] if self.layout == "words" else tokens, targets)

    def floors(self, examples: int = 4096, generator: torch.Generator | None = None) -> dict[str, float]:
        """Accuracy of the shortcuts of `babi.floors` on so many questions, or a few more."""
        return babi.floors(self._enough(examples, generator or random_stream(0, "validation")))

    def show(self, seed: int = 0, n: int = 1) -> str:
        """`n` stories in the released format: question, answer, and the numbers of the supporting lines."""
        stories = self._stories(random_stream(seed, "train"))
        return babi.render(next(stories) for _ in range(n))

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        names = self.told.words if self.layout == "words" else self.told.symbols
        shown = [" ".join(names[number] for number in token if number) for token in inputs.tolist() if any(token)]
        answer = self.told.answers[int(targets[targets != IGNORED])]
        return f"{(' ' if self.layout == 'words' else '; ').join(shown)} -> {answer}"
