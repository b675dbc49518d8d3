"""bAbI stories as a task: read the statements above a question and the question, say the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.config import BadInput
from headcount.tasks import babi
from headcount.tasks.described import Described
from headcount.tasks.operators import file_digest
from headcount.tasks.task import IGNORED, Batch, Split, random_stream

_SETTINGS = ("story_type", "noise", "people", "places", "objects", "hops", "statements", "questions")

_FIXED = {1: 10, 4: 2, 9: 10, 10: 10, 11: 10, 12: 10, 13: 10, 15: 8, 16: 9, 17: 2, 19: 5, 20: 12}
"""Statements of a story of the released settings, where all have equally many or few differ."""

SUPPORTS = dict.fromkeys((2, 11, 13, 14, 15, 17, 18, 19), "2") | {3: "3", 16: "3", 7: "1 to 10", 8: "1 to 8"}
"""Supporting statements of a question of the released stories, where not 1."""

_MEMORY = 50
"""Statements kept otherwise: no supporting statement of the released stories lies further back."""


def _files(folder: str, story_type: int) -> dict[str, Path]:
    return {split: Path(folder) / babi.file_name(story_type, split) for split in ("train", "test")}


def _digest(folder: str, story_type: int) -> str:
    return "".join(file_digest(str(path))[:8] for path in _files(folder, story_type).values())


@lru_cache(maxsize=8)
def _questions(task: BabiStories, split: Split) -> Batch:
    """The questions of one split of a user's files."""
    assert task.path is not None
    if _digest(task.path, task.story_type) != task.path_digest:
        raise BadInput(f"the bAbI files in '{task.path}' changed since this run was planned")
    files = _files(task.path, task.story_type)
    stories = babi.read(files["test" if split == "test" else "train"], task.story_type)
    if split != "test":
        kept = len(stories) - max(1, len(stories) // 10)
        stories = stories[:kept] if split == "train" else stories[kept:]
    if not any(story.questions for story in stories):
        raise BadInput(f"the bAbI files in '{task.path}' hold no question for the {split} split")
    return task.encode(stories)


class BabiStories(Described):
    """One example is one question: the statements above it, the question, then padding.

    Example, layout "statements": (john, move, office, -), (john, where, -, -) is answered office at the
    second position. Consecutive examples may be questions of one story.

    Attributes:
        story_type, noise, people, places, objects, hops, statements, questions: see `babi.Babi`.
        layout: "statements" gives one position of four symbols to a statement; "words" one to a word.
        last: statements kept above a question; see `memory`.
        path: folder with qaN_.._train.txt and qaN_.._test.txt of this type, to learn from these instead of
            generated stories. The last tenth of the training stories is the validation split.
        path_digest: of the two files, so that other files are another run.
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
    path: str | None = None
    path_digest: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fix_files(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("path") is None:
            return data
        if wrong := [setting for setting in _SETTINGS[2:] if data.get(setting) is not None]:
            raise ValueError(f"'{wrong[0]}' is of generated stories; stories from a path are as they are")
        # A stored configuration knows its digest and can be read where the files are not.
        if data.get("path_digest") is None:
            return {**data, "path_digest": _digest(data["path"], data.get("story_type", 1))}
        return data

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
        facts = SUPPORTS.get(self.story_type, "1")
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
        return self.draw("train", examples, generator)

    def draw(self, split: Split, examples: int, generator: torch.Generator) -> Batch:
        if self.path is None:
            return Batch(*(part[:examples] for part in self.encode(self._enough(examples, generator))))
        inputs, targets = _questions(self, split)
        chosen = torch.randint(len(inputs), (examples,), generator=generator)
        return Batch(inputs[chosen], targets[chosen])

    def encode(self, stories: Sequence[babi.Story]) -> Batch:
        """Every question of some stories as an example."""
        encoded = babi.encode(stories, self.told, self.layout, last=self.memory, length=self.length)
        targets = torch.full(encoded.valid.shape, IGNORED)
        targets.scatter_(1, encoded.valid.sum(-1, keepdim=True) - 1, encoded.answer[:, None])
        return Batch(encoded.tokens[..., None] if self.layout == "words" else encoded.tokens, targets)

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
