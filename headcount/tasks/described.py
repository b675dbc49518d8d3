"""What a task says about itself: what it asks, what theory expects, shortcuts, samples and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.config import BadInput
from headcount.tasks.task import IGNORED, Batch, Task, random_stream, relative_error


class Described(Task):
    """A task with token ids and discrete answers that can be described; see the module's functions."""

    @property
    def asks(self) -> str:
        """What has to be answered, in one line."""
        raise NotImplementedError

    @property
    def theory(self) -> str:
        """What theory says about the heads and layers that are needed, in one line."""
        raise NotImplementedError

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """Shortcuts that look up the most common answer for what they see at a position."""
        return {}

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        """Shortcuts that state an answer for every position, right or wrong."""
        return {}

    def comparable(self, inputs: Tensor) -> Tensor:
        """`inputs` in a form that is equal for examples which are the same but for their presentation."""
        return inputs

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        """One example for a human reader, with its answer and why."""
        raise NotImplementedError

    def floors(self, examples: int = 4096, generator: torch.Generator | None = None) -> dict[str, float]:
        """Accuracy that shortcuts reach, by name of the shortcut; see `discrete_floors`."""
        return discrete_floors(self, examples, generator)

    def show(self, seed: int = 0, n: int = 1) -> str:
        """`n` examples of the training split for a human reader."""
        batch = self.sample(n, random_stream(seed, "train"))
        return "\n\n".join(self.picture(*example) for example in zip(*batch, strict=True))

    def statistics(self, examples: int = 4096, seed: int = 0) -> dict[str, Any]:
        """Label balance, lengths, duplicates and overlap between splits; see `statistics`."""
        return statistics(self, examples, seed)


# --------------------------------------------------------------------------------------------------
# Shortcuts


def labels_of(batch: Batch) -> Int[Tensor, "examples tokens"]:
    """Targets of a "classes" task, or of a "binary" one with a single output."""
    return batch.targets if batch.targets.ndim == 2 else batch.targets.squeeze(-1)


def discrete_floors(
    task: Described,
    examples: int,
    generator: torch.Generator | None = None,
    only: Callable[[Batch], Batch] = lambda batch: batch,
) -> dict[str, float]:
    """Share of right answers that each shortcut of a task with discrete answers reaches.

    A shortcut of `lookups` is a table from what it sees to the most common answer there. It is made
    on one sample and judged on another, so that rare entries cannot flatter it; unseen entries get the
    most common answer of all. Every task has the three shortcuts

    - `majority`: always the most common answer,
    - `position`: the most common answer at this position,
    - `own token`: the most common answer for the ids of this token.

    `only` may drop questions that are not to count.
    """
    generator = generator or random_stream(0, "validation")
    made, judged = (only(task.sample(examples, generator)) for _ in range(2))
    asked, truth = [labels_of(batch) != IGNORED for batch in (made, judged)], labels_of(judged)
    tables = [_common_features(batch) | task.lookups(batch) for batch in (made, judged)]
    floors = {}
    for name in tables[0]:
        seen = [table[name][mask] for table, mask in zip(tables, asked, strict=True)]
        floors[name] = table_accuracy(seen[0], labels_of(made)[asked[0]], seen[1], truth[asked[1]])
    for name, answer in task.guesses(judged).items():
        floors[name] = float((answer == truth)[asked[1]].double().mean())
    return floors


def _common_features(batch: Batch) -> dict[str, Tensor]:
    examples, tokens = batch.inputs.shape[:2]
    positions = torch.arange(tokens).expand(examples, tokens)
    return {
        "majority": torch.zeros(examples, tokens, 0, dtype=torch.long),
        "position": positions[..., None],
        "own token": batch.inputs,
    }


def table_accuracy(
    made_features: Int[Tensor, "made features"],
    made_labels: Int[Tensor, " made"],
    features: Int[Tensor, "answers features"],
    labels: Int[Tensor, " answers"],
) -> float:
    """Accuracy on (features, labels) of the most common label for each combination seen in `made`."""
    both = torch.cat([made_features, features])
    keys = torch.zeros(len(both), dtype=torch.long)
    for column in both.unbind(-1):
        # Renumbering after every column keeps the keys below (answers x values), whatever the features.
        keys = torch.unique(keys * (int(column.max()) + 1) + column, return_inverse=True)[1]
    classes = int(torch.cat([made_labels, labels]).max()) + 1
    counts = torch.zeros(int(keys.max()) + 1, classes, dtype=torch.long)
    counts.view(-1).index_add_(0, keys[: len(made_labels)] * classes + made_labels, torch.ones_like(made_labels))
    answer = counts.argmax(-1).masked_fill(counts.sum(-1) == 0, int(counts.sum(0).argmax()))
    return float((answer[keys[len(made_labels) :]] == labels).double().mean())


def real_floors(task: Task, examples: int, generator: torch.Generator | None = None) -> dict[str, float]:
    """Relative error of the best affine answers from little, fitted on one sample and judged on another.

    - `constant`: a number for each position and output.
    - `own token`: from the features of this token, with weights of this position.
    - `own token and mean`: also from the mean over tokens, which one uniform head gives.
    """
    generator = generator or random_stream(0, "validation")
    made, judged = (Batch(*(part.double() for part in task.sample(examples, generator))) for _ in range(2))
    floors = {}
    for name, see in _VIEWS.items():
        # (tokens, examples, ..): one least-squares problem for each position.
        designs = [see(batch.inputs).transpose(0, 1) for batch in (made, judged)]
        weights = torch.linalg.lstsq(designs[0], made.targets.transpose(0, 1), driver="gelsd").solution
        error, _ = relative_error((designs[1] @ weights).transpose(0, 1), judged.targets)
        floors[name] = float(error)
    return floors


def _with_one(*parts: Float[Tensor, "examples tokens features"]) -> Float[Tensor, "examples tokens more"]:
    return torch.cat([torch.ones_like(parts[0][..., :1]), *parts], -1)


_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda inputs: _with_one(inputs)[..., :1],
    "own token": lambda inputs: _with_one(inputs),
    "own token and mean": lambda inputs: _with_one(inputs, inputs.mean(1, keepdim=True).expand_as(inputs)),
}


# --------------------------------------------------------------------------------------------------
# Statistics


def statistics(task: Task, examples: int, seed: int) -> dict[str, Any]:
    """What a training sample is like, and how much of it a test sample repeats.

    Returns:
        examples: size of each sample.
        labels: share of the eight most common answers (discrete answers), or `mean` and `deviation`.
        asked: mean number of questions of an example.
        length: fewest, mean and most tokens of an example, padding left out.
        duplicates: share of training examples that repeat an earlier one.
        overlap: share of test examples whose inputs also occur in training.
    """
    if examples < 1:
        raise BadInput(f"examples = {examples}: at least 1 is needed")
    train, test = (task.sample(examples, random_stream(seed, split)) for split in ("train", "test"))
    found: dict[str, Any] = {"examples": examples}
    if task.kind == "real":
        found |= {"mean": float(train.targets.double().mean()), "deviation": float(train.targets.double().std())}
    else:
        labels = labels_of(train)
        counts = Counter(labels[labels != IGNORED].tolist())
        found["labels"] = {label: count / counts.total() for label, count in counts.most_common(8)}
        found["asked"] = counts.total() / examples
    lengths = token_counts(task, train.inputs)
    found["length"] = (int(lengths.min()), float(lengths.double().mean()), int(lengths.max()))
    rows, others = (_rows(task, batch.inputs) for batch in (train, test))
    found["duplicates"] = 1 - len(set(rows)) / examples
    known = set(rows)
    found["overlap"] = sum(row in known for row in others) / examples
    return found


def token_counts(task: Task, inputs: Tensor) -> Int[Tensor, " examples"]:
    """Number of tokens of each example, padding left out."""
    if not task.vocabulary:
        return torch.full((len(inputs),), inputs.shape[1])
    return (inputs != 0).any(-1).sum(-1)


def _rows(task: Task, inputs: Tensor) -> list[bytes]:
    if isinstance(task, Described):
        inputs = task.comparable(inputs)
    return [row.tobytes() for row in np.ascontiguousarray(inputs.flatten(1).numpy())]
