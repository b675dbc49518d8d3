"""What a set of stories is like, whether its labels are right, and what shortcuts reach on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headcount.config import BadInput, file_errors
from headcount.tasks.babi.format import Line, Story, read, type_of
from headcount.tasks.babi.grammar import understand, words
from headcount.tasks.babi.solve import Noise, solve


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A question whose label is not what its story says.

    Attributes:
        story: place of the story in the file, from 1.
        line: number of the question in its story.
        question: the question.
        labelled: answer and supporting lines of the file.
        solved: answer and supporting lines worked out from the sentences.
        reason: why nothing could be worked out, else "".
    """

    story: int
    line: int
    question: str
    labelled: tuple[str, tuple[int, ...]]
    solved: tuple[str, tuple[int, ...]]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """How many labels of one story type agree with the sentences."""

    story_type: int
    questions: int
    right_answers: int
    right_supports: int
    disagreements: tuple[Disagreement, ...]


def check(path: str | Path, noise: Noise = "released") -> list[Report]:
    """Check the labels of a file, or of every file qa*.txt of a folder; one report per file.

    Raises:
        BadInput: if a file cannot be read, or a folder holds no such file.
    """
    path = Path(path)
    with file_errors(path, f"{path}: cannot be read"):
        files = sorted(path.glob("qa*_*.txt"), key=lambda file: (type_of(file), file.name)) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"{path}: no file qa*_*.txt in this folder")
    return [check_stories(read(file), noise) for file in files]


def check_stories(stories: Sequence[Story], noise: Noise = "released") -> Report:
    """Check the labels of stories of one type."""
    story_type = _one_type(stories)
    questions = right_answers = right_supports = 0
    disagreements: list[Disagreement] = []
    for position, story in enumerate(stories, start=1):
        for question, statements in story.asked():
            questions += 1
            labelled = (str(question.answer).lower(), question.support)
            solved: tuple[str, tuple[int, ...]] = ("", ())
            reason = ""
            try:
                answer, support = solve(story_type, statements, question.text, noise)
                solved = (answer, support)
            except BadInput as error:
                reason = str(error)
            right_answers += solved[0] == labelled[0]
            right_supports += solved[1] == labelled[1]
            if solved != labelled:
                disagreements.append(Disagreement(position, question.number, question.text, labelled, solved, reason))
    return Report(story_type, questions, right_answers, right_supports, tuple(disagreements))


def _one_type(stories: Sequence[Story]) -> int:
    types = {story.story_type for story in stories}
    if len(types) != 1:
        raise BadInput(f"expected stories of one type, found {len(types)} types")
    return types.pop()


# --------------------------------------------------------------------------------------------------
# Statistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sizes of a set of stories of one type.

    Attributes:
        story_type: 1 to 20.
        stories: number of stories.
        questions_per_story: fewest and most questions of a story.
        statements: fewest, mean and most statements of a story.
        vocabulary: different words in lower case; an answer of several words joined by commas is one.
        longest_sentence: words of the longest statement or question.
        context: mean and most words of the statements above a question and the question.
        answers: different answers.
        majority: share of the most common answer.
        support: fewest and most supporting lines of a question.
        actions: share of each relation among the statements.
    """

    story_type: int
    stories: int
    questions_per_story: tuple[int, int]
    statements: tuple[int, float, int]
    vocabulary: int
    longest_sentence: int
    context: tuple[float, int]
    answers: int
    majority: float
    support: tuple[int, int]
    actions: dict[str, float]


def statistics(stories: Sequence[Story]) -> Statistics:
    """Measure stories of one type."""
    story_type = _one_type(stories)
    asked = [(question, statements) for story in stories for question, statements in story.asked()]
    if not asked:
        raise BadInput("expected stories with at least one question, found none")
    answers = Counter(str(question.answer).lower() for question, _ in asked)
    known = {word for story in stories for line in story.lines for word in words(line.text)}.union(answers)
    contexts = [
        len(words(question.text)) + sum(len(words(line.text)) for line in statements) for question, statements in asked
    ]
    lengths = [len(story.statements) for story in stories]
    per_story = [len(story.questions) for story in stories]
    supports = [len(question.support) for question, _ in asked]
    relations = Counter(understand(line.text).relation for story in stories for line in story.statements)
    return Statistics(
        story_type=story_type,
        stories=len(stories),
        questions_per_story=(min(per_story), max(per_story)),
        statements=(min(lengths), float(np.mean(lengths)), max(lengths)),
        vocabulary=len(known),
        longest_sentence=max(len(words(line.text)) for story in stories for line in story.lines),
        context=(float(np.mean(contexts)), max(contexts)),
        answers=len(answers),
        majority=max(answers.values()) / len(asked),
        support=(min(supports), max(supports)),
        actions={name: count / relations.total() for name, count in relations.most_common()},
    )


@dataclass(frozen=True, slots=True)
class Released:
    """Sizes of a whole released test file of 1000 questions (bAbI v1.2, en); see `Statistics`."""

    stories: int
    questions_per_story: tuple[int, int]
    statements: tuple[int, float, int]
    vocabulary: int
    longest_sentence: int
    context: tuple[float, int]
    answers: int
    majority: float


RELEASED: dict[int, Released] = {
    1: Released(200, (5, 5), (10, 10, 10), 19, 6, (34, 58), 6, 0.187),
    2: Released(200, (5, 5), (10, 22.0, 88), 33, 6, (83, 468), 6, 0.187),
    3: Released(200, (5, 5), (12, 73.5, 228), 34, 7, (258, 1127), 6, 0.215),
    4: Released(1000, (1, 1), (2, 2, 2), 14, 7, (20, 20), 6, 0.177),
    5: Released(200, (5, 5), (10, 26.4, 94), 39, 7, (110, 494), 7, 0.189),
    6: Released(200, (5, 5), (10, 10.2, 14), 35, 6, (37, 77), 2, 0.503),
    7: Released(200, (5, 5), (10, 12.3, 34), 43, 6, (49, 185), 4, 0.488),
    8: Released(200, (5, 5), (10, 13.6, 58), 43, 6, (49, 304), 12, 0.336),
    9: Released(200, (5, 5), (10, 10, 10), 23, 7, (38, 68), 2, 0.638),
    10: Released(200, (5, 5), (10, 10, 10), 24, 9, (41, 79), 3, 0.437),
    11: Released(200, (5, 5), (10, 10, 10), 26, 8, (39, 69), 6, 0.187),
    12: Released(200, (5, 5), (10, 10, 10), 20, 8, (46, 79), 6, 0.189),
    13: Released(200, (5, 5), (10, 10, 10), 26, 8, (45, 77), 6, 0.183),
    14: Released(200, (5, 5), (10, 11.8, 14), 25, 8, (59, 105), 6, 0.177),
    15: Released(250, (4, 4), (8, 8, 8), 17, 5, (41, 41), 4, 0.341),
    16: Released(1000, (1, 1), (9, 9, 9), 17, 4, (36, 36), 4, 0.257),
    17: Released(125, (8, 8), (2, 2, 2), 18, 11, (28, 33), 2, 0.520),
    18: Released(199, (3, 9), (5, 6.1, 15), 18, 9, (51, 123), 2, 0.531),
    19: Released(1000, (1, 1), (5, 5, 5), 31, 10, (45, 45), 12, 0.093),
    20: Released(93, (7, 12), (7, 10.8, 12), 35, 7, (30, 62), 7, 0.180),
}
"""Sizes of the released test files by story type."""


# --------------------------------------------------------------------------------------------------
# Shortcuts


def floors(stories: Sequence[Story]) -> dict[str, float]:
    """Share of questions of one type that each shortcut answers rightly, by name of the shortcut.

    A model that scores no higher than the best of these has not shown that it combines facts:

    - `majority`: always the most common answer of these stories.
    - `question alone`: the most common answer to the same question in the other stories.
    - `latest mention`: the answer mentioned last in the statements.
    - `latest about it`: the answer mentioned last in a statement that shares a name with the question.
    - `most mentioned`: the answer mentioned most often in the statements.
    - `together`: "yes" if one statement names everything the question names, for yes or no questions.

    Where a rule says nothing, the most common answer stands in.
    """
    asked = [(question, statements) for story in stories for question, statements in story.asked()]
    truth = [str(question.answer).lower() for question, _ in asked]
    if not truth:
        raise BadInput("expected stories with at least one question, found none")
    possible = frozenset(truth)
    common = Counter(truth).most_common(1)[0][0]
    guesses = {
        "majority": [common] * len(truth),
        "question alone": _by_question(stories, common),
        "latest mention": [_latest(statements, possible) or common for _, statements in asked],
        "latest about it": [
            _latest(_about(question, statements), possible, _symbols(question)) or common
            for question, statements in asked
        ],
        "most mentioned": [_most_mentioned(statements, possible) or common for _, statements in asked],
    }
    if possible <= {"yes", "no", "maybe"}:
        guesses["together"] = [_together(question, statements) for question, statements in asked]
    return {
        name: sum(guess == right for guess, right in zip(guess_list, truth, strict=True)) / len(truth)
        for name, guess_list in guesses.items()
    }


def _by_question(stories: Sequence[Story], common: str) -> list[str]:
    seen: dict[str, Counter[str]] = {}
    asked = [[(line.text, str(line.answer).lower()) for line in story.questions] for story in stories]
    for pairs in asked:
        for text, answer in pairs:
            seen.setdefault(text, Counter())[answer] += 1
    guesses = []
    for pairs in asked:
        own = Counter(pairs)
        for text, _ in pairs:
            elsewhere = {answer: count - own[text, answer] for answer, count in seen[text].items()}
            best = max(elsewhere, key=lambda answer: (elsewhere[answer], answer == common))
            guesses.append(best if elsewhere[best] else common)
    return guesses


def _symbols(line: Line) -> set[str]:
    fact = understand(line.text)
    return {symbol for symbol in (fact.subject, fact.object, fact.extra) if symbol}


def _mentions(statements: Iterable[Line], possible: frozenset[str]) -> Iterator[str]:
    for line in statements:
        fact = understand(line.text)
        for symbol in (fact.subject, fact.object, fact.extra):
            if symbol in possible:
                yield symbol


def _latest(statements: Iterable[Line], possible: frozenset[str], besides: Iterable[str] = ()) -> str | None:
    mentioned = list(_mentions(statements, possible.difference(besides)))
    return mentioned[-1] if mentioned else None


def _about(question: Line, statements: Sequence[Line]) -> list[Line]:
    names = _symbols(question)
    return [line for line in statements if names & _symbols(line)]


def _most_mentioned(statements: Sequence[Line], possible: frozenset[str]) -> str | None:
    counts = Counter(_mentions(statements, possible))
    return counts.most_common(1)[0][0] if counts else None


def _together(question: Line, statements: Sequence[Line]) -> str:
    names = _symbols(question)
    return "yes" if any(names <= _symbols(line) for line in statements) else "no"
