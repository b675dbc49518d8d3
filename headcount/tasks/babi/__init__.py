"""The twenty bAbI story types: told, read, solved, measured and turned into tensors.

Weston et al., "Towards AI-complete question answering: a set of prerequisite toy tasks" (2015), in the
grammar and with the label rules of the released data v1.2.

    stories(Babi(story_type=2), 200, seed=0)  tells stories           config.py, generate.py
    read(path), write(path, stories)          the released format     format.py
    solve(2, statements, question)            answers from sentences  solve.py
    check(path), statistics(s), floors(s)     measures                measure.py
    encode(s, vocabulary(config))             tensors                 encode.py
"""

from headcount.tasks.babi.config import SETTINGS, Babi
from headcount.tasks.babi.encode import Encoded, Vocabulary, encode, possible_answers, symbols, vocabulary
from headcount.tasks.babi.format import SLUGS, Line, Story, file_name, parse, read, render, write
from headcount.tasks.babi.generate import stories, story
from headcount.tasks.babi.grammar import Fact, understand
from headcount.tasks.babi.measure import (
    RELEASED,
    Disagreement,
    Report,
    Statistics,
    check,
    check_stories,
    floors,
    statistics,
)
from headcount.tasks.babi.solve import Solution, solve

__all__ = [
    "RELEASED",
    "SETTINGS",
    "SLUGS",
    "Babi",
    "Disagreement",
    "Encoded",
    "Fact",
    "Line",
    "Report",
    "Solution",
    "Statistics",
    "Story",
    "Vocabulary",
    "check",
    "check_stories",
    "encode",
    "file_name",
    "floors",
    "parse",
    "possible_answers",
    "read",
    "render",
    "solve",
    "statistics",
    "stories",
    "story",
    "symbols",
    "understand",
    "vocabulary",
    "write",
]
