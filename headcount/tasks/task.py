"""What every task offers: sizes, an explicit random stream, examples, and a measure of error."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.config import Config

Split = Literal["train", "validation", "test"]
_SPLITS: dict[str, int] = {"train": 0, "validation": 1, "test": 2}


IGNORED = -100
"""Target where nothing is asked."""


class Batch(NamedTuple):
    """Examples of a task: what the model reads and what it should say."""

    inputs: Float[Tensor, "examples tokens features"] | Int[Tensor, "examples tokens ids"]
    targets: Float[Tensor, "examples tokens outputs"] | Int[Tensor, "examples tokens *outputs"]


def random_stream(seed: int, split: Split, chunk: int = 0) -> torch.Generator:
    """The generator of one chunk of one split: a function of its arguments alone."""
    words = np.random.SeedSequence([seed, _SPLITS[split], chunk]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


class Measure(NamedTuple):
    """How good answers are, for every model of a stack.

    error: 0 is perfect; the relative error of real-valued targets, else the share of wrong answers.
    stderr: its standard error over examples.
    accuracy: share of exactly right answers, where there are such.
    """

    error: Float[Tensor, " *stack"]
    stderr: Float[Tensor, " *stack"]
    accuracy: Float[Tensor, " *stack"] | None


def ratio_of_means(
    mistakes: Float[Tensor, "*stack examples"], weights: Float[Tensor, "*stack examples"]
) -> tuple[Float[Tensor, " *stack"], Float[Tensor, " *stack"]]:
    """sum of mistakes / sum of weights, with its standard error over examples (delta method)."""
    ratio = mistakes.sum(-1) / weights.sum(-1)
    residual = mistakes - ratio.unsqueeze(-1) * weights
    return ratio, residual.square().sum(-1).sqrt() / weights.sum(-1)


def relative_error(
    outputs: Float[Tensor, "*stack examples tokens outputs"],
    targets: Float[Tensor, "*stack examples tokens outputs"],
) -> tuple[Float[Tensor, " *stack"], Float[Tensor, " *stack"]]:
    """Root mean squared error over that of the best constant answer, with its standard error.

    0 is perfect, 1 is what the mean of the targets reaches.
    """
    measure = Task(name="real").measure(outputs, targets)
    return measure.error, measure.stderr


class Task(Config):
    """A task: one configuration, one distribution of examples, one exact answer for each.

    Subclasses set `name`, give the sizes and implement `sample`. Data depend on the configuration
    and the generator only, never on a model.

    kind: "real" targets are numbers, judged by relative error and trained with squared error;
    "classes" targets are indices below output_width, IGNORED where nothing is asked, trained with
    cross entropy; "binary" targets are 0, 1 or IGNORED for each of the outputs.
    """

    name: str
    kind: ClassVar[Literal["real", "classes", "binary"]] = "real"

    @property
    def length(self) -> int:
        """Number of tokens N (the longest, where examples differ)."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        """Number of token ids, 0 being padding; 0 if inputs are real features instead of tokens."""
        return 0

    @property
    def input_width(self) -> int:
        """Features per token, or the number of ids that make up a token."""
        raise NotImplementedError

    @property
    def output_width(self) -> int:
        """Numbers asked for per token: outputs, or classes."""
        raise NotImplementedError

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        """Draw examples: inputs in float32, or int64 ids of shape (examples, tokens, input_width)."""
        raise NotImplementedError

    def draw(self, split: Split, examples: int, generator: torch.Generator) -> Batch:
        """Examples of one split. Tasks that generate their data draw every split alike; those that read a
        fixed data set keep its splits apart."""
        return self.sample(examples, generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " *stack"]:
        """Mean training loss of every model of a stack; shapes as in `measure`."""
        if self.kind == "real":
            # Summed, then divided: mean() would write the gradient of every entry once more.
            wrong = torch.nn.functional.mse_loss(outputs, targets, reduction="none").sum((-1, -2, -3))
            return wrong / targets.shape[-3:].numel()
        asked = targets != IGNORED
        if self.kind == "classes":
            losses = torch.nn.functional.cross_entropy(
                outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
            ).reshape(targets.shape)
        else:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                outputs, targets.clamp_min(0).to(outputs.dtype), reduction="none"
            ).masked_fill(~asked, 0.0)
        per_model = tuple(range(-2, 0)) if self.kind == "classes" else tuple(range(-3, 0))
        return losses.sum(per_model) / asked.sum(per_model).clamp_min(1)

    def mistakes(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, "*stack examples"]:
        """How wrong the answers of each example are: summed squared error, or the number of wrong answers.
        Not finite where outputs are not: a model that says NaN has answered nothing."""
        if self.kind == "real":
            return (outputs - targets).square().sum((-1, -2)).double()
        chosen = outputs.argmax(-1) if self.kind == "classes" else (outputs > 0).long()
        wrong = (chosen != targets) & (targets != IGNORED)
        lost = (~outputs.isfinite()).any(-1).any(-1)
        return wrong.sum((-1,) if self.kind == "classes" else (-1, -2)).double().masked_fill(lost, float("nan"))

    def denominators(self, targets: Tensor) -> Float[Tensor, "*stack examples"]:
        """What mistakes are relative to: the summed squared error of the best constant answer, or the number
        of answers asked for."""
        if self.kind == "real":
            return (targets - targets.mean(-3, keepdim=True)).square().sum((-1, -2)).double()
        return (targets != IGNORED).sum((-1,) if self.kind == "classes" else (-1, -2)).double()

    def judge(
        self,
        mistakes: Float[Tensor, "*stack examples"],
        denominators: Float[Tensor, "*stack examples"],
        accuracy: Float[Tensor, " *stack"] | None = None,
    ) -> Measure:
        """Error from `mistakes` and `denominators` of all examples; `accuracy` as `Task.accuracy` gives it."""
        ratio, deviation = ratio_of_means(mistakes, denominators)
        if self.kind != "real":
            return Measure(ratio, deviation, 1 - ratio)
        error = ratio.sqrt()
        # The square root halves a relative standard error.
        return Measure(error, deviation / (2 * error).clamp_min(1e-300), accuracy)

    def measure(self, outputs: Tensor, targets: Tensor) -> Measure:
        """Judge answers.

        Args:
            outputs: (*stack, examples, tokens, output_width).
            targets: the same shape, or without the last axis for "classes".
        """
        return self.judge(self.mistakes(outputs, targets), self.denominators(targets), self.accuracy(outputs, targets))

    def accuracy(
        self,
        outputs: Float[Tensor, "*stack examples tokens outputs"],
        targets: Float[Tensor, "*stack examples tokens outputs"],
    ) -> Float[Tensor, " *stack"] | None:
        """Share of exactly right answers of a "real" task that has exact answers, else None."""
        return None
