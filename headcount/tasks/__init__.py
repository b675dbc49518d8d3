"""What is asked: one file per task, each a generator with an exact oracle; no model is known here."""

from typing import Annotated

import pydantic

from headcount.tasks.babi_stories import BabiStories
from headcount.tasks.cpm3 import Cpm3
from headcount.tasks.cpm3_tokens import Cpm3Tokens
from headcount.tasks.filters import Filter
from headcount.tasks.function import Function
from headcount.tasks.hops import Hops
from headcount.tasks.match import Match
from headcount.tasks.polynomial import Polynomial
from headcount.tasks.quotient import Quotient
from headcount.tasks.recall import Recall
from headcount.tasks.relation import Relation
from headcount.tasks.retrieval import Retrieval
from headcount.tasks.task import Batch, Task, random_stream, relative_error
from headcount.tasks.tracking import Tracking

TASKS: dict[str, type[Task]] = {
    "polynomial": Polynomial,
    "filter": Filter,
    "cpm3": Cpm3,
    "cpm3_tokens": Cpm3Tokens,
    "relation": Relation,
    "quotient": Quotient,
    "function": Function,
    "match": Match,
    "hops": Hops,
    "recall": Recall,
    "retrieval": Retrieval,
    "tracking": Tracking,
    "babi": BabiStories,
}

AnyTask = Annotated[
    Polynomial
    | Filter
    | Cpm3
    | Cpm3Tokens
    | Relation
    | Quotient
    | Function
    | Match
    | Hops
    | Recall
    | Retrieval
    | Tracking
    | BabiStories,
    pydantic.Field(discriminator="name"),
]

__all__ = [
    "TASKS",
    "AnyTask",
    "BabiStories",
    "Batch",
    "Cpm3",
    "Cpm3Tokens",
    "Filter",
    "Function",
    "Hops",
    "Match",
    "Polynomial",
    "Quotient",
    "Recall",
    "Relation",
    "Retrieval",
    "Task",
    "Tracking",
    "random_stream",
    "relative_error",
]
