"""A trial: one model trained once on one task, named by the hash of everything that defines it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

import pydantic

from headcount.config import BadInput, Config, canonical_json, choose, digest
from headcount.models import ATTENTION, Layer, ModelConfig, Network, NetworkConfig, Sizes
from headcount.tasks import TASKS, AnyTask, Task

SCHEMA = 1
"""Raised whenever the same configuration would give other data or another model than before."""

TRAINED_FIELDS_PER_MEMBER = ("learning_rate", "weight_decay")
"""Training fields in which the members of one stack may differ."""


class TrainingConfig(Config):
    """How a model is trained.

    Attributes:
        steps, batch: optimiser steps at most, and examples in each.
        training_examples: size of a fixed training set, gone through in a new order every epoch; what does not
            fill a batch is left out of the epoch. None draws fresh examples in every step.
        learning_rate: peak rate.
        optimiser: adam, or adamw (decoupled weight_decay).
        weight_decay: used by adamw only.
        warmup: steps of linear warm-up.
        schedule: after warm-up: cosine to zero, or constant.
        restarts: warm restarts of the cosine; 0 for one descent.
        clip: largest gradient norm of a model; None for no clipping.
        dtype: arithmetic of model and loss.
        evaluations: how often the validation error is measured, evenly spaced over `steps`.
        patience: evaluations without a new least validation error after which a model stops; None for never.
        curves: what an evaluation measures: the validation error, or those of training (of the training set or the
            latest fresh examples) and test as well, each on as many examples as validation has at most.
        validation_examples, test_examples: sizes of the two held-out samples. The best weights are
            chosen on the first; errors are reported on the second.
    """

    steps: int = pydantic.Field(default=1000, ge=1, le=10_000_000)
    batch: int = pydantic.Field(default=32, ge=1, le=1_000_000)
    training_examples: int | None = pydantic.Field(default=None, ge=1, le=10_000_000)
    learning_rate: float = pydantic.Field(default=0.05, gt=0)
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    warmup: int = pydantic.Field(default=50, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    restarts: int = pydantic.Field(default=0, ge=0)
    clip: float | None = pydantic.Field(default=None, gt=0)
    dtype: Literal["float32", "float64"] = "float32"
    evaluations: int = pydantic.Field(default=10, ge=1)
    patience: int | None = pydantic.Field(default=None, ge=1)
    curves: Literal["validation", "all"] = "validation"
    validation_examples: int = pydantic.Field(default=256, ge=2, le=10_000_000)
    test_examples: int = pydantic.Field(default=4096, ge=2, le=10_000_000)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.optimiser == "adam" and self.weight_decay:
            raise ValueError("weight_decay belongs to optimiser 'adamw'")
        if self.training_examples is not None and self.training_examples < self.batch:
            raise ValueError(f"training_examples = {self.training_examples} do not fill a batch of {self.batch}")
        return self


def parse_task(data: Mapping[str, Any]) -> Task:
    """A task configuration from plain data; `name` says which.

    Raises:
        BadInput: on an unknown task, key or value.
    """
    if "name" not in data:
        raise BadInput(f"a task needs a name; allowed: {', '.join(sorted(TASKS))}")
    return TASKS[choose(str(data["name"]), TASKS, "task")].parse(data)


def parse_model(data: Mapping[str, Any]) -> ModelConfig | NetworkConfig:
    """A model configuration from plain data: a theory layer, or with the key `network` a transformer.

    For a transformer whose layers all have the same mechanism, the mechanism's fields may stand beside the
    network's: {network = "transformer", width = 64, attention = "iha", heads = 4}. A mechanism's own `bias`
    is then called attention_bias.

    Raises:
        BadInput: on an unknown mechanism, key or value.
    """
    if "network" not in data:
        return ModelConfig.parse(data)
    own = {key: value for key, value in data.items() if key in NetworkConfig.model_fields}
    mechanism = {key: value for key, value in data.items() if key not in own}
    if mechanism:
        if "mechanisms" in own:
            raise BadInput(f"'{next(iter(mechanism))}' stands beside a list of mechanisms; set it inside the list")
        name = choose(str(mechanism.get("attention", "mha")), ATTENTION, "attention")
        if "attention_bias" in mechanism:
            mechanism["bias"] = mechanism.pop("attention_bias")
        config = ATTENTION[name].config.parse({**mechanism, "attention": name})
        own["mechanisms"] = [config.model_dump(mode="json")]
    return NetworkConfig.parse(own)


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a trial's plain data under its dotted name: task.k, model.heads, training.steps, seed.

    A transformer's mechanism is spread over model.* as `parse_model` reads it; with several mechanisms
    model.attention joins their names, and the other fields are those of the first.
    """
    flat: dict[str, Any] = {}
    for part, value in config.items():
        if not isinstance(value, Mapping):
            flat[part] = value
            continue
        fields = dict(value)
        if mechanisms := fields.pop("mechanisms", None):
            first = {f"attention_{key}" if key in fields else key: inner for key, inner in mechanisms[0].items()}
            names = "+".join(dict.fromkeys(mechanism["attention"] for mechanism in mechanisms))
            fields = {**first, **fields, "attention": names}
        flat.update({f"{part}.{key}": inner for key, inner in fields.items()})
    return flat


class Trial(Config):
    """Task + model + training + seed. The run id hashes all of it and the schema version."""

    task: AnyTask
    model: ModelConfig | NetworkConfig
    training: TrainingConfig
    seed: int = pydantic.Field(default=0, ge=0, le=2**31)

    @pydantic.model_validator(mode="after")
    def _trainable(self) -> Self:
        if isinstance(self.model, ModelConfig) and self.model.score == "hard":
            raise ValueError("score 'hard' has no gradient and cannot be trained; use 'softmax'")
        return self

    @classmethod
    def build(cls, data: Mapping[str, Any]) -> Trial:
        """From nested plain data, naming the part that does not fit.

        Raises:
            BadInput: as above, or if the model cannot serve the task.
        """
        unknown = sorted(set(data) - {"task", "model", "training", "seed"})
        if unknown:
            choose(unknown[0], ("task", "model", "training", "seed"), "part of a trial")
        task = parse_task(data.get("task", {}))
        model = parse_model(data.get("model", {}))
        training = TrainingConfig.parse(data.get("training", {}))
        parts = {
            "task": task.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
            "seed": data.get("seed", 0),
        }
        trial = cls.parse(parts)
        if isinstance(model, ModelConfig):
            if task.vocabulary:
                raise BadInput(f"task '{task.name}' speaks in token ids; it needs model.network = 'transformer'")
            model.widths(model.attention_sizes(trial.sizes))
        else:
            model.parameters(trial.sizes, task.vocabulary)
        return trial

    @property
    def sizes(self) -> Sizes:
        """What the task asks the model to read and write."""
        return Sizes(self.task.length, self.task.input_width, self.task.output_width)

    def build_model(self) -> Layer | Network:
        """The module; its weights are undefined until `reset`."""
        if isinstance(self.model, ModelConfig):
            return Layer(self.model, self.sizes)
        return Network(self.model, self.sizes, self.task.vocabulary)

    @cached_property
    def id(self) -> str:
        """Run id: 16 hexadecimal digits."""
        return digest({"schema": SCHEMA, **self.model_dump(mode="json")})

    @cached_property
    def group(self) -> str:
        """Trials with equal group can be trained as one stack: they differ in seed and rates only."""
        data = self.model_dump(mode="json")
        del data["seed"]
        for field in TRAINED_FIELDS_PER_MEMBER:
            del data["training"][field]
        return digest(data)

    def to_json(self) -> str:
        """Canonical JSON of the whole configuration."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """Inverse of `to_json`."""
        return cls.build(json.loads(text))

    def flat(self) -> dict[str, Any]:
        """See `flatten`."""
        return flatten(self.model_dump(mode="json"))
