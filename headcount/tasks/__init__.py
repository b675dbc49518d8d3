"""What is asked: one file per task, each a generator with an exact oracle; no model is known here."""

from typing import Annotated

import pydantic

from headcount.tasks.cpm3 import Cpm3
from headcount.tasks.polynomial import Polynomial
from headcount.tasks.task import Batch, Task, random_stream, relative_error

TASKS: dict[str, type[Task]] = {"polynomial": Polynomial, "cpm3": Cpm3}

AnyTask = Annotated[Polynomial | Cpm3, pydantic.Field(discriminator="name")]

__all__ = ["TASKS", "AnyTask", "Batch", "Cpm3", "Polynomial", "Task", "random_stream", "relative_error"]
