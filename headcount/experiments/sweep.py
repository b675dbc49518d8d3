"""A sweep: a grid over trials. A preset: a readable TOML file of sweeps."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from headcount.config import BadInput, Config, choose, file_errors
from headcount.experiments.trial import Trial, parse_task
from headcount.models import MECHANISMS
from headcount.tasks import TASKS
from headcount.theory.floors import operator_family, predicted_heads

TOLERANCE = 0.1
"""A task counts as solved when the relative error is at most this."""

LARGEST_SWEEP = 1_000_000

WINDOWS = {"boundary": (-1, 0), "auto": (-1, 0, 1)}
"""Head counts to try, relative to the predicted one; "auto" adds half of it."""


class Sweep(Config):
    """A for-loop over a grid.

    Attributes:
        name: how stored rows and messages call it.
        about: one line for people.
        task, model, training: what all trials share; see the configurations of these names.
        grid: dotted field -> values, looped over in the order given. "model.heads" may be
            "boundary", the predicted head count and one below, or "auto", which adds one above and
            half. The prediction is the eps-rank of the task's operators, see
            `theory.floors.predicted_heads`.
        tolerance: relative error that counts as solved, for "auto".
    """

    name: str = "sweep"
    about: str = ""
    task: dict[str, Any] = pydantic.Field(default_factory=dict)
    model: dict[str, Any] = pydantic.Field(default_factory=dict)
    training: dict[str, Any] = pydantic.Field(default_factory=dict)
    grid: dict[str, Any] = pydantic.Field(default_factory=dict)
    tolerance: float = pydantic.Field(default=TOLERANCE, gt=0, lt=1)

    def trials(self) -> list[Trial]:
        """Every trial of the grid.

        Raises:
            BadInput: on the first field or value that does not fit.
        """
        axes = {key: value if isinstance(value, list) else [value] for key, value in self.grid.items()}
        if empty := next((key for key, values in axes.items() if not values), None):
            raise BadInput(f"sweep '{self.name}': '{empty}' has no value to loop over")
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > LARGEST_SWEEP:
            raise BadInput(f"sweep '{self.name}' has {count:,} trials; at most {LARGEST_SWEEP:,} are allowed")
        trials: dict[str, Trial] = {}
        for point in itertools.product(*axes.values()):
            data: dict[str, Any] = {
                "task": dict(self.task), "model": dict(self.model), "training": dict(self.training), "seed": 0,
            }  # fmt: skip
            for key, value in zip(axes, point, strict=True):
                set_field(data, key, value)
            for heads in self._heads(data):
                if heads is not None:
                    data["model"]["heads"] = heads
                trial = Trial.build(data)
                trials[trial.id] = trial
        return list(trials.values())

    def _heads(self, data: dict[str, Any]) -> Sequence[int | None]:
        where = data["model"].get("heads")
        if not isinstance(where, str):
            return [None]
        offsets = WINDOWS[choose(where, WINDOWS, "choice of heads")]
        task = parse_task(data["task"])
        if operator_family(task) is None:
            raise BadInput(
                f"heads = '{where}' needs a predicted head count, and task '{task.name}' has none as configured; name head counts, as in 1,2,4"
            )
        attention = choose(str(data["model"].get("attention", "mha")), MECHANISMS, "attention")
        predicted = predicted_heads(task, attention, self.tolerance)
        around = {predicted + offset for offset in offsets} | ({predicted // 2} if where == "auto" else set())
        return sorted(heads for heads in around if heads >= 1)


_LAYER = {"content": "positions", "value_content": "features", "output": "mixed"}
_NETWORK = {"network": "transformer", "width": 64}
_CAUSAL = {**_NETWORK, "mask": "causal", "depth": 2}

DEFAULT_MODELS: dict[str, dict[str, Any]] = {
    "polynomial": {**_LAYER, "score": "linear"},
    "filter": {**_LAYER, "score": "linear"},
    "cpm3": {**_LAYER, "score": "softmax"},
    "hops": _CAUSAL,
    "recall": _CAUSAL,
    "retrieval": _CAUSAL,
    "tracking": _CAUSAL,
    "babi": {**_NETWORK, "depth": 2},
}
"""Where a sweep of a task starts: the setting of the paper's theorem and of our floor (patterns from positions),
or a small transformer, of one layer if none is named here."""

NETWORK_TRAINING = {"learning_rate": 0.002, "batch": 64, "optimiser": "adamw", "clip": 1.0}


def defaults(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model and training fields from which a sweep of a task starts.

    Raises:
        BadInput: on an unknown task.
    """
    model = dict(DEFAULT_MODELS.get(choose(task, TASKS, "task"), _NETWORK))
    return model, dict(NETWORK_TRAINING) if "network" in model else {}


def set_field(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted field (task.k, model.heads, training.steps, seed) in nested data.

    Raises:
        BadInput: if the first part names no part of a trial.
    """
    part, _, field = key.partition(".")
    choose(part, ("task", "model", "training", "seed"), "part of a trial")
    if part == "seed":
        data["seed"] = value
    elif not field:
        raise BadInput(f"'{key}' needs a field name, as in {part}.NAME")
    else:
        data[part][field] = value


def preset_names() -> list[str]:
    """The presets that come with the package."""
    folder = resources.files("headcount.experiments") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_preset(name: str) -> list[Sweep]:
    """Sweeps of a preset, by name or as the path of a TOML file of the same form.

    Raises:
        BadInput: if there is none, or it does not parse.
    """
    if name.endswith(".toml"):
        with file_errors(name, f"preset file '{name}' cannot be read"):
            raw = Path(name).read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"preset file '{name}' is not UTF-8 text: {error}") from None
    else:
        choose(name, preset_names(), "preset")
        text = (resources.files("headcount.experiments") / "presets" / f"{name}.toml").read_text("utf-8")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"preset '{name}' is not valid TOML: {error}") from None
    return sweeps_from(content, name)


def sweeps_from(content: Mapping[str, Any], name: str) -> list[Sweep]:
    """Sweeps of parsed TOML: `[[sweep]]` tables.

    Raises:
        BadInput: if the form is another.
    """
    unknown = sorted(set(content) - {"about", "sweep"})
    if unknown:
        choose(unknown[0], ("about", "sweep"), f"key in preset '{name}'")
    tables = content.get("sweep")
    if not isinstance(tables, list) or not tables:
        raise BadInput(f"preset '{name}' holds no [[sweep]] table")
    if wrong := next((table for table in tables if not isinstance(table, Mapping)), None):
        raise BadInput(f"preset '{name}': {wrong!r} is no [[sweep]] table")
    sweeps = [Sweep.parse(table) for table in tables]
    names = [made.name for made in sweeps]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise BadInput(f"preset '{name}' has two sweeps named '{twice}'")
    return sweeps
