"""The file format of the bAbI tasks v1.2: numbered lines, questions with answer and supporting lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headcount.config import BadInput, file_errors, whole_file

SLUGS = {
    1: "single-supporting-fact",
    2: "two-supporting-facts",
    3: "three-supporting-facts",
    4: "two-arg-relations",
    5: "three-arg-relations",
    6: "yes-no-questions",
    7: "counting",
    8: "lists-sets",
    9: "simple-negation",
    10: "indefinite-knowledge",
    11: "basic-coreference",
    12: "conjunction",
    13: "compound-coreference",
    14: "time-reasoning",
    15: "basic-deduction",
    16: "basic-induction",
    17: "positional-reasoning",
    18: "size-reasoning",
    19: "path-finding",
    20: "agents-motivations",
}
"""Story types and the words that stand in their file names."""

_NO_BLANK = frozenset({4, 15, 16, 17, 18, 19, 20})


def blank_before_answer(story_type: int) -> bool:
    """Whether the released files of this type put a space between question mark and tab."""
    return story_type not in _NO_BLANK


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story: a statement, or a question with its answer.

    Attributes:
        number: its place in the story, counted from 1 over statements and questions alike.
        text: the sentence with its full stop or question mark.
        answer: of a question, comma-joined without spaces where it has several words; else None.
        support: numbers of the lines a question rests on, in the order of the reasoning.
        blank: whether a space stands between the question mark and the tab.
    """

    number: int
    text: str
    answer: str | None = None
    support: tuple[int, ...] = ()
    blank: bool = False

    def __str__(self) -> str:
        if self.answer is None:
            return f"{self.number} {self.text}"
        support = " ".join(map(str, self.support))
        return f"{self.number} {self.text}{' ' * self.blank}\t{self.answer}\t{support}"


@dataclass(frozen=True, slots=True)
class Story:
    """A story of one type. A question sees only the statements above it."""

    story_type: int
    lines: tuple[Line, ...]

    @property
    def statements(self) -> tuple[Line, ...]:
        """The lines that are not questions."""
        return tuple(line for line in self.lines if line.answer is None)

    @property
    def questions(self) -> tuple[Line, ...]:
        """The questions; a story may have none."""
        return tuple(line for line in self.lines if line.answer is not None)

    def asked(self) -> Iterator[tuple[Line, tuple[Line, ...]]]:
        """Each question with the statements above it."""
        above: list[Line] = []
        for line in self.lines:
            if line.answer is None:
                above.append(line)
            else:
                yield line, tuple(above)


def file_name(story_type: int, split: str = "test") -> str:
    """Name of a released file: `file_name(1)` is `qa1_single-supporting-fact_test.txt`."""
    return f"qa{story_type}_{SLUGS[story_type]}_{split}.txt"


def type_of(path: str | Path) -> int:
    """The story type a file name states: 7 for `qa7_counting_train.txt`.

    Raises:
        BadInput: if the name does not begin with `qa1_` to `qa20_`.
    """
    found = re.match(r"qa(\d+)_", Path(path).name)
    if not found or int(found[1]) not in SLUGS:
        raise BadInput(f"{path}: the file name does not tell the story type; expected qa1_... to qa20_...")
    return int(found[1])


def read(path: str | Path, story_type: int | None = None) -> list[Story]:
    """Read a file of stories; the type comes from its name unless given.

    Lines may end in LF or CR LF, sentences in blanks, and the file in empty lines; stories without a
    question are kept.

    Raises:
        BadInput: naming file, line and what was expected.
    """
    path = Path(path)
    story_type = type_of(path) if story_type is None else story_type
    if story_type not in SLUGS:
        raise BadInput(f"story type {story_type} does not exist; allowed: 1 to 20")
    with file_errors(path, f"{path}: cannot be read"):
        raw = path.read_bytes()
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise BadInput(f"{path}, line {line}: expected UTF-8 text, found byte 0x{byte:02x}") from None
    return parse(content, story_type, str(path))


def parse(content: str, story_type: int, source: str = "text") -> list[Story]:
    """The stories that `content` holds; see `read`. `source` is how messages name it."""
    stories: list[Story] = []
    lines: list[Line] = []
    raws = content.split("\n")
    while len(raws) > 1 and not raws[-1].strip():
        raws.pop()
    for position, raw in enumerate(raws, start=1):
        try:
            line = _line(raw.removesuffix("\r"), lines)
        except _Malformed as error:
            raise BadInput(f"{source}, line {position}: {error}") from None
        if line.number == 1 and lines:
            stories.append(Story(story_type, tuple(lines)))
            lines = []
        lines.append(line)
    return [*stories, Story(story_type, tuple(lines))]


class _Malformed(Exception):
    """What is wrong with a line; the caller knows which line."""


def _line(raw: str, above: list[Line]) -> Line:
    """`raw` as the line after `above`, the part of the story read so far."""
    head, _, rest = raw.partition(" ")
    following = above[-1].number + 1 if above else 1
    expected = "1" if following == 1 else f"{following} or 1"
    if not re.fullmatch(r"[1-9][0-9]*", head) or int(head) not in (1, following):
        raise _Malformed(f"expected line number {expected} and a space, found {raw[:40]!r}")
    number = int(head)
    sentence, *fields = rest.split("\t")
    text = sentence.rstrip()
    if not text:
        raise _Malformed("expected a sentence after the line number")
    if not "".join(fields).strip() and not text.endswith("?"):
        return Line(number, text)
    if len(fields) != 2:
        raise _Malformed(f"expected question, tab, answer, tab, support; found {len(fields)} tabs")
    if not text.endswith("?"):
        raise _Malformed(f"expected a question mark before the answer, found {text[-20:]!r}")
    answer, support = fields[0].strip(), fields[1].split()
    if not answer or not all(answer.split(",")):
        raise _Malformed(f"expected an answer, its words joined by commas, found {fields[0]!r}")
    statements = {line.number for line in above if line.answer is None} if number > 1 else set()
    for item in support:
        if not re.fullmatch(r"[1-9][0-9]*", item) or int(item) not in statements:
            raise _Malformed(f"expected numbers of statements above in this story as support, found {item!r}")
    if not support or len(set(support)) < len(support):
        raise _Malformed(f"expected at least one supporting line and none twice, found {fields[1]!r}")
    return Line(number, text, answer, tuple(map(int, support)), blank=sentence != text)


def render(stories: Iterable[Story]) -> str:
    """The text of a file that holds these stories."""
    return "".join(f"{line}\n" for story in stories for line in story.lines)


def write(path: str | Path, stories: Iterable[Story]) -> None:
    """Write a file of stories: the whole file appears at once, or nothing changes.

    Raises:
        BadInput: if the file cannot be written there.
    """
    with whole_file(Path(path)) as file:
        file.write_text(render(stories), encoding="utf-8", newline="")
