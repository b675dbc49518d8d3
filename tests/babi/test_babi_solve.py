"""Independent rules against the released labels and against the generated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.config import BadInput
from headcount.tasks.babi import (
    SETTINGS,
    SLUGS,
    Babi,
    Fact,
    Line,
    check_stories,
    file_name,
    read,
    render,
    solve,
    stories,
    story,
    understand,
)
from headcount.tasks.babi.grammar import say, vocabulary_facts, words_of
from headcount.tasks.babi.grammar import words as words_in

DATA = Path(__file__).parent / "data"

QUESTIONS = {
    1: 70, 2: 40, 3: 15, 4: 67, 5: 35, 6: 70, 7: 60, 8: 55, 9: 70, 10: 70,
    11: 70, 12: 70, 13: 70, 14: 65, 15: 68, 16: 20, 17: 160, 18: 95, 19: 34, 20: 100,
}  # fmt: skip


@pytest.mark.parametrize("story_type", SLUGS)
def test_every_released_answer_and_support_is_reproduced(story_type: int) -> None:
    report = check_stories(read(DATA / file_name(story_type)))
    assert report.disagreements == ()
    assert report.right_answers == report.right_supports == report.questions == QUESTIONS[story_type]


@pytest.mark.parametrize("noise", ["released", "clean"])
@pytest.mark.parametrize("story_type", SLUGS)
def test_generated_labels_agree(story_type: int, noise: Any) -> None:
    report = check_stories(stories(Babi(story_type=story_type, noise=noise), 300, seed=1), noise)
    if (story_type, noise) == (5, "released"):
        # Known noise: an older gift of the same pair is asked for, in 0.2 % of the released questions.
        assert report.right_answers >= 0.98 * report.questions
        assert all(item.question.startswith("What did") for item in report.disagreements)
    else:
        assert report.disagreements == ()


@st.composite
def hard_configs(draw: st.DrawFn) -> Babi:
    story_type = draw(st.sampled_from(list(SLUGS)))
    data: dict[str, Any] = {"story_type": story_type, "noise": "clean"}
    for setting, (_, lowest, highest) in SETTINGS[story_type].items():
        if draw(st.booleans()):
            data[setting] = draw(st.integers(lowest, min(highest, 20)))
    try:
        return Babi.parse(data)
    except BadInput:
        return Babi.parse({"story_type": story_type, "noise": "clean"})


@settings(max_examples=150, deadline=None)
@given(hard_configs(), st.integers(0, 2**31))
def test_labels_agree_at_any_difficulty(config: Babi, seed: int) -> None:
    told = story(config, np.random.default_rng(seed))
    assert check_stories([told], "clean").disagreements == ()
    assert len(told.statements) >= config.size("statements") or "statements" not in SETTINGS[config.story_type]
    if "questions" in SETTINGS[config.story_type]:
        assert len(told.questions) == config.size("questions")


@pytest.mark.parametrize("story_type", SLUGS)
def test_same_seed_same_stories(story_type: int) -> None:
    config = Babi(story_type=story_type)
    first = stories(config, 12, seed=7)
    np.random.default_rng().random(3)
    assert render(stories(config, 12, seed=7)) == render(first)
    assert stories(config, 5, seed=7) == first[:5]
    assert stories(config, 12, seed=8) != first


@pytest.mark.parametrize("story_type", SLUGS)
def test_every_fact_is_understood_as_said(story_type: int) -> None:
    generator = np.random.default_rng(0)
    for fact in vocabulary_facts(story_type, Babi(story_type=story_type).cast()):
        for _ in range(3):
            sentence = say(fact, story_type, generator)
            assert understand(sentence) == fact, sentence
            assert set(words_in(sentence)) <= words_of(fact, story_type)


@given(st.text(max_size=40))
def test_other_sentences_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a sentence of the bAbI stories"):
        understand(f"Whatever {text} may mean.")


def told(*sentences: str) -> list[Line]:
    return [Line(number, sentence) for number, sentence in enumerate(sentences, start=1)]


@pytest.mark.parametrize(
    ("story_type", "sentences", "question", "answer", "support"),
    [
        (
            2,
            ["Mary got the milk there.", "Mary went to the hallway."],
            "Where is the milk?",
            "hallway",
            (1, 2),
        ),
        (
            8,
            [
                "John got the milk there.",
                "John took the apple there.",
                "John left the milk.",
                "John got the milk.",
            ],
            "What is John carrying?",
            "milk,apple",
            (1, 3, 4, 2),
        ),
        (10, ["Bill is either in the park or the office."], "Is Bill in the park?", "maybe", (1,)),
        (10, ["Bill is either in the park or the office."], "Is Bill in the school?", "no", (1,)),
        (
            14,
            ["This morning Bill went to the park.", "Bill moved to the office yesterday."],
            "Where was Bill before the park?",
            "office",
            (1, 2),
        ),
        (
            17,
            ["The triangle is above the red square.", "The red sphere is below the red square."],
            "Is the triangle to the left of the red sphere?",
            "no",
            (1, 2),
        ),
        (
            18,
            ["The box is bigger than the chest.", "The chest is bigger than the chocolate."],
            "Does the box fit in the chocolate?",
            "no",
            (2, 1),
        ),
        (
            19,
            ["The garden is west of the office.", "The bedroom is north of the office."],
            "How do you go from the garden to the bedroom?",
            "e,n",
            (1, 2),
        ),
    ],
)
def test_rules_by_hand(
    story_type: int, sentences: list[str], question: str, answer: str, support: tuple[int, ...]
) -> None:
    assert solve(story_type, told(*sentences), question) == (answer, support)


def test_clean_lists_follow_the_last_taking() -> None:
    sentences = [
        "John got the milk there.",
        "John took the apple there.",
        "John left the milk.",
        "John got the milk.",
    ]
    assert solve(8, told(*sentences), "What is John carrying?", "clean").answer == "apple,milk"


@pytest.mark.parametrize(
    ("story_type", "sentences", "question"),
    [
        (1, ["John went to the office."], "Where is Mary?"),
        (2, ["Mary dropped the milk."], "Where is the milk?"),
        (3, ["Mary got the milk.", "Mary went to the office."], "Where was the milk before the office?"),
        (9, ["Mary is not in the office."], "Is Mary in the garden?"),
        (17, ["The triangle is above the red square."], "Is the triangle above the red sphere?"),
        (18, ["The box is bigger than the chest."], "Is the box bigger than the suitcase?"),
        (
            18,
            ["The box is bigger than the chest.", "The chest is bigger than the box."],
            "Is the box bigger than the chest?",
        ),
        (19, ["The garden is west of the office."], "How do you go from the garden to the bedroom?"),
        (20, [], "Where will jason go?"),
    ],
)
def test_undecided_questions_are_refused(story_type: int, sentences: list[str], question: str) -> None:
    with pytest.raises(BadInput, match="do not decide the question"):
        solve(story_type, told(*sentences), question)


def test_facts_as_documented() -> None:
    assert understand("John went back to the hallway.") == Fact("john", "move", "hallway")
    assert understand("Mary and John moved to the kitchen.") == Fact("mary", "move", "kitchen", "john")
    assert understand("Yesterday Bill went to the park.") == Fact("bill", "move", "park", "yesterday")
    assert understand("What is the garden north of? ") == Fact("garden", "north?")
    assert understand("Mice are afraid of wolves.") == Fact("mouse", "fears", "wolf")
    assert understand("The box of chocolates fits inside the box.") == Fact("box of chocolates", "fits", "box")
