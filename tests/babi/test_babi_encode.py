"""Stories as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.config import BadInput
from headcount.tasks.babi import (
    RELEASED,
    SLUGS,
    Babi,
    encode,
    file_name,
    parse,
    possible_answers,
    read,
    stories,
    symbols,
    vocabulary,
)
from headcount.tasks.babi.grammar import words

DATA = Path(__file__).parent / "data"
SMALL = parse(
    "1 Mary went to the office.\n2 John went back to the garden.\n3 Where is Mary? \toffice\t1\n"
    "4 Mary moved to the kitchen.\n5 Where is John? \tgarden\t2\n",
    1,
)


def test_statements_by_hand() -> None:
    known = vocabulary(Babi(story_type=1))
    coded = encode(SMALL, known)
    assert coded.tokens.shape == (2, 4, 4)
    assert coded.valid.tolist() == [[True, True, True, False], [True] * 4]
    assert coded.sentence.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert coded.support.tolist() == [[True, False, False, False], [False, True, False, False]]
    assert [known.answers[number] for number in coded.answer.tolist()] == ["office", "garden"]
    spelled = [[known.symbols[number] for number in position] for position in coded.tokens[0].tolist()]
    assert spelled[0] == ["mary", "move", "office", ""]
    assert spelled[2] == ["mary", "where?", "", ""]
    assert spelled[3] == [""] * 4


def test_words_by_hand() -> None:
    known = vocabulary(Babi(story_type=1))
    coded = encode(SMALL, known, "words")
    spelled = [known.words[number] for number in coded.tokens[0].tolist()]
    assert spelled[:14] == words("Mary went to the office. John went back to the garden. Where is Mary?")
    assert coded.sentence[0, :14].tolist() == [0] * 5 + [1] * 6 + [2] * 3
    assert coded.support[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert coded.valid.sum(1).tolist() == [14, 19]
    assert coded.tokens[~coded.valid].eq(0).all()


def test_last_statements_only() -> None:
    coded = encode(SMALL, vocabulary(Babi(story_type=1)), last=2)
    assert coded.tokens.shape == (2, 3, 4)
    assert coded.support.tolist() == [[True, False, False], [True, False, False]]
    whole = encode(SMALL, vocabulary(Babi(story_type=1)))
    assert torch.equal(coded.tokens[1], whole.tokens[1, 1:])


@pytest.mark.parametrize("layout", ["words", "statements"])
@pytest.mark.parametrize("story_type", SLUGS)
def test_released_and_generated_stories_fit_the_vocabulary(story_type: int, layout: Any) -> None:
    config = Babi(story_type=story_type)
    known = vocabulary(config)
    for told in (read(DATA / file_name(story_type)), stories(config, 30, seed=6)):
        coded = encode(told, known, layout)
        rows, longest = coded.valid.shape
        assert rows == sum(len(story.questions) for story in told)
        assert coded.tokens.dtype == coded.answer.dtype == torch.long
        assert (coded.valid.long().diff(dim=1) <= 0).all(), "padding stands at the end only"
        assert coded.tokens[~coded.valid].eq(0).all()
        assert not coded.support[~coded.valid].any()
        assert (coded.answer < len(known.answers)).all()
        if layout == "statements":
            lines = torch.tensor([len(question.support) for story in told for question in story.questions])
            assert torch.equal(coded.support.sum(1), lines)
        assert longest == int(coded.valid.sum(1).max())


@pytest.mark.parametrize("story_type", SLUGS)
def test_vocabulary_is_exactly_what_stories_use(story_type: int) -> None:
    config = Babi(story_type=story_type)
    known = vocabulary(config)
    told = stories(config, 400, seed=9)
    lines = [line for story in told for line in story.lines]
    assert {word for line in lines for word in words(line.text)} | {""} == set(known.words)
    assert {symbol for line in lines for symbol in symbols(line)} | {""} == set(known.symbols)
    assert {str(line.answer).lower() for line in lines if line.answer} <= set(known.answers)
    if story_type != 8:
        assert len(known.answers) == RELEASED[story_type].answers


def test_answers_count_every_list_and_every_path() -> None:
    assert len(possible_answers(Babi(story_type=8))) == 16
    assert len(possible_answers(Babi(story_type=19))) == 12
    assert len(possible_answers(Babi(story_type=19, hops=3))) == 36
    assert possible_answers(Babi(story_type=7, objects=2)) == ["none", "one", "two"]


def test_joint_vocabulary_covers_all_types() -> None:
    configs = [Babi(story_type=story_type) for story_type in SLUGS]
    known = vocabulary(*configs)
    told = [story for config in configs for story in stories(config, 2, seed=0)]
    coded = encode(told, known, "statements", last=20, length=21)
    assert coded.valid.shape[1] == 21
    assert known.words[0] == known.symbols[0] == ""
    assert len(set(known.words)) == len(known.words)
    assert {word for config in configs for word in vocabulary(config).words} == set(known.words)


def test_bad_requests_are_refused() -> None:
    known = vocabulary(Babi(story_type=1))
    with pytest.raises(BadInput, match="too short for the longest row; allowed: 4 or more"):
        encode(SMALL, known, length=3)
    with pytest.raises(BadInput, match="last = 0"):
        encode(SMALL, known, last=0)
    with pytest.raises(BadInput, match="not in the vocabulary"):
        encode(stories(Babi(story_type=2), 1, seed=0), known)
    with pytest.raises(BadInput, match="at least one question"):
        encode(parse("1 Mary went to the office.\n", 1), known)
