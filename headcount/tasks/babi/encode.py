"""Stories as integer tensors: one position a word, or one position a statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations, product
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headcount.config import BadInput
from headcount.tasks.babi import grammar
from headcount.tasks.babi.config import Babi
from headcount.tasks.babi.format import Line, Story
from headcount.tasks.babi.grammar import Fact, understand

Layout = Literal["words", "statements"]

_COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Vocabulary:
    """Words, symbols and answers of some story types; the number of each is its place.

    Attributes:
        words: lower-case words of all sentences; the first is padding.
        symbols: symbols of all facts; the first is padding and the empty symbol.
        answers: answers in lower case, those of several words joined by commas.
    """

    words: tuple[str, ...]
    symbols: tuple[str, ...]
    answers: tuple[str, ...]

    @cached_property
    def word_number(self) -> Mapping[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def symbol_number(self) -> Mapping[str, int]:
        """Number of each symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @cached_property
    def answer_number(self) -> Mapping[str, int]:
        """Number of each answer."""
        return {answer: number for number, answer in enumerate(self.answers)}


def vocabulary(*configs: Babi) -> Vocabulary:
    """Everything that stories of these configurations can contain, whether or not a sample shows it.

    Example: `vocabulary(Babi(story_type=1))` has 20 words (19 and the padding) and 6 answers.
    """
    words: set[str] = set()
    symbols: set[str] = set()
    answers: set[str] = set()
    for config in configs:
        facts = grammar.vocabulary_facts(config.story_type, config.cast())
        words.update(*(grammar.words_of(fact, config.story_type) for fact in facts))
        symbols.update(*facts)
        answers.update(possible_answers(config))
    return Vocabulary(("", *sorted(words - {""})), ("", *sorted(symbols - {""})), tuple(sorted(answers)))


def possible_answers(config: Babi) -> list[str]:
    """Every answer that stories of this configuration can have, in lower case."""
    people, places, objects = config.cast()
    match config.story_type:
        case 5:
            return [*people, *objects]
        case 6 | 9 | 17 | 18:
            return ["no", "yes"]
        case 7:
            return list(_COUNTS[: len(objects) + 1])
        case 8:
            lists = (names for size in range(1, len(objects) + 1) for names in permutations(objects, size))
            return ["nothing", *(",".join(names) for names in lists)]
        case 10:
            return ["maybe", "no", "yes"]
        case 15:
            return list(grammar.PLURALS)
        case 16:
            return list(grammar.COLOURS)
        case 19:
            ways = product(grammar.DIRECTIONS, repeat=config.size("hops"))
            forward = (way for way in ways if all(a != grammar.opposite(b) for a, b in pairwise(way)))
            return [",".join(step[0] for step in way) for way in forward]
        case 20:
            return [*grammar.MOTIVES, *places]
    return list(places)


def symbols(line: Line) -> Fact:
    """The four symbols of a statement or a question, for instance (john, move, office, "")."""
    return understand(line.text)


class Encoded(NamedTuple):
    """Questions as tensors. Each row holds the statements above a question, the question, and padding.

    Attributes:
        tokens: numbers of words, or of the four symbols of each statement.
        valid: False on padding.
        sentence: which statement a position belongs to, from 0, the question being the last; 0 on padding.
        support: whether a position belongs to a supporting statement.
        answer: number of the answer.
    """

    tokens: Int[Tensor, "questions positions"] | Int[Tensor, "questions positions 4"]
    valid: Bool[Tensor, "questions positions"]
    sentence: Int[Tensor, "questions positions"]
    support: Bool[Tensor, "questions positions"]
    answer: Int[Tensor, " questions"]


def encode(
    stories: Sequence[Story],
    vocabulary: Vocabulary,
    layout: Layout = "statements",
    *,
    last: int | None = None,
    length: int | None = None,
) -> Encoded:
    """Turn every question of some stories into one row.

    Example: the story "1 Mary went to the office. 2 Where is Mary? office 1" has 2 positions of 4 symbols in
    the layout "statements" and 8 positions in the layout "words"; `support` is True on the first statement.

    Args:
        stories: of any types that the vocabulary covers.
        vocabulary: see `vocabulary`.
        layout: "words" gives one position a word, "statements" one position a statement of four symbols.
        last: keep only so many statements above a question; None keeps all.
        length: positions of a row; None takes the longest row.

    Raises:
        BadInput: if a word or an answer is not in the vocabulary, or a row is longer than `length`.
    """
    if last is not None and last < 1:
        raise BadInput(f"last = {last} keeps no statement; allowed: 1 or more")
    rows: list[list[tuple[int, bool, tuple[int, ...]]]] = []
    answers: list[int] = []
    numbers = vocabulary.word_number if layout == "words" else vocabulary.symbol_number
    for story in stories:
        for question, above in story.asked():
            kept = above if last is None else above[-last:]
            row = []
            for order, line in enumerate((*kept, question)):
                supports = line.number in question.support and line is not question
                for position in _positions(line, layout, numbers):
                    row.append((order, supports, position))
            rows.append(row)
            answers.append(_number(vocabulary.answer_number, str(question.answer).lower(), "answer"))
    if not rows:
        raise BadInput("expected stories with at least one question, found none")
    longest = max(map(len, rows))
    if length is not None and length < longest:
        raise BadInput(f"length = {length} is too short for the longest row; allowed: {longest} or more")
    shape = (len(rows), length or longest)
    tokens = torch.zeros(*shape, 1 if layout == "words" else 4, dtype=torch.long)
    valid, support = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    sentence = torch.zeros(shape, dtype=torch.long)
    for index, row in enumerate(rows):
        size = len(row)
        tokens[index, :size] = torch.tensor([position for _, _, position in row])
        sentence[index, :size] = torch.tensor([order for order, _, _ in row])
        support[index, :size] = torch.tensor([supports for _, supports, _ in row])
        valid[index, :size] = True
    if layout == "words":
        tokens = tokens.squeeze(-1)
    return Encoded(tokens, valid, sentence, support, torch.tensor(answers))


def _positions(line: Line, layout: Layout, numbers: Mapping[str, int]) -> list[tuple[int, ...]]:
    if layout == "words":
        return [(_number(numbers, word, "word"),) for word in grammar.words(line.text)]
    return [tuple(_number(numbers, symbol, "symbol") for symbol in understand(line.text))]


def _number(numbers: Mapping[str, int], name: str, what: str) -> int:
    try:
        return numbers[name]
    except KeyError:
        raise BadInput(f"the {what} '{name}' is not in the vocabulary of these story types") from None
