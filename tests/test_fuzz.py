"""Whatever a user types or hands over: it works, or one sentence and exit code 2; never a traceback or half a file.

HEADCOUNT_FUZZ=100000 runs that many inputs, shared out among the tests; a short run otherwise.
"""

import io
import os
import random
import sqlite3
import string
import sys
from contextlib import closing, redirect_stderr, redirect_stdout
from importlib import resources

import networkx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headcount import api, cli
from headcount.config import BadInput
from headcount.experiments import Sweep, Trial, preset_names
from headcount.experiments.store import FILE_NAME
from headcount.experiments.trial import TrainingConfig
from headcount.models import ATTENTION, NetworkConfig
from headcount.tasks import TASKS
from headcount.theory.claims import LEDGER

INPUTS = int(os.environ.get("HEADCOUNT_FUZZ", "600"))


def share(part):
    """Hypothesis settings for a part of all inputs."""
    return settings(
        max_examples=max(10, round(INPUTS * part)),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=INPUTS <= 600,
    )


def typed(arguments):
    """Run the console script in this process; fails on anything but success or one sentence of refusal."""
    before, sys.argv = sys.argv, ["headcount", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
    finally:
        sys.argv = before
    assert code in (0, 1, 2), (arguments, code, err.getvalue())
    assert "Traceback" not in err.getvalue(), (arguments, err.getvalue())
    if code == 2:
        lines = [line for line in err.getvalue().splitlines() if line.strip()]
        assert lines, arguments
        # Typer's own refusals are a box; ours are one line.
        assert len(lines) == 1 or any("Usage" in line for line in lines), (arguments, err.getvalue())
    return code


def refused_or(build):
    """Build, or be refused in one line."""
    try:
        return build()
    except BadInput as refusal:
        text = str(refusal)
        assert text.strip()
        assert "\n" not in text, text


WORDS = sorted(
    {*TASKS, *ATTENTION, *LEDGER, *preset_names(), *TrainingConfig.model_fields, *NetworkConfig.model_fields}
    | {field for task in TASKS.values() for field in task.model_fields}
    | {
        "auto",
        "boundary",
        "cyclic",
        "karate",
        "true",
        "false",
        "inf",
        "nan",
        "-1",
        "0",
        "1",
        "1e9",
        "1:3",
        "",
        "--",
        "é",
        "\x00",
    }
)
word = st.sampled_from(WORDS) | st.text(max_size=12)
# Sizes that a sweep could really have: what is legal, but large, is for the memory estimate to refuse.
number = st.integers(-3, 40) | st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**70), 2**70)
leaf = st.none() | st.booleans() | number | word
anything = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3), max_leaves=6)  # fmt: skip
field = st.sampled_from([key for key in WORDS if key.isidentifier()]) | st.text(max_size=6)
small = st.integers(1, 4) | leaf


@st.composite
def trials(draw):
    task = {"name": draw(st.sampled_from(sorted(TASKS)) | word), **draw(st.dictionaries(field, anything, max_size=2))}
    model = draw(
        st.fixed_dictionaries(
            {}, optional={"attention": word, "network": st.just("transformer") | leaf, "heads": small, "width": small}
        )
    )
    model |= draw(st.dictionaries(field, anything, max_size=2))
    training = draw(st.dictionaries(st.sampled_from(sorted(TrainingConfig.model_fields)) | field, anything, max_size=3))
    whole = {"task": task, "model": model, "training": training, "seed": draw(small)}
    return whole | draw(st.dictionaries(field, anything, max_size=1))


@share(0.4)
@given(trials())
def test_configurations(data):
    trial = refused_or(lambda: Trial.build(data))
    if trial is not None:
        assert Trial.from_json(trial.to_json()).id == trial.id


@share(0.12)
@given(st.dictionaries(st.sampled_from(sorted(Sweep.model_fields)) | field, anything, max_size=4))
def test_sweeps(data):
    sweep = refused_or(lambda: Sweep.parse(data))
    if sweep is not None:
        refused_or(sweep.trials)


OPTIONS = ("--k", "--tokens", "--operator", "--normalisation", "--target", "--heads", "--attention", "--seeds", "--tolerance", "--only")  # fmt: skip


@st.composite
def sweep_commands(draw):
    made = ["sweep", draw(st.sampled_from(sorted(TASKS)) | word), "--dry-run"]
    for _ in range(draw(st.integers(0, 3))):
        values = draw(st.lists(word | small.map(str), min_size=1, max_size=3))
        made += [draw(st.sampled_from(OPTIONS)), ",".join(values)]
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(("task", "model", "training", "seed")) | word) + "." + draw(field)
        made += ["--set", f"{key}={draw(word | small.map(str))}"]
    return made


@share(0.15)
@given(sweep_commands())
def test_sweep_commands(arguments):
    typed(arguments)


@st.composite
def other_commands(draw, folder):
    name = draw(word)
    made = draw(
        st.sampled_from(
            [
                ["claims", "show", name], ["claims", "verify", name], ["tasks", "show", name], ["models", "show", name],
                ["runs", "show", name], ["runs", "--status", name], ["figures", name], ["export", "--format", name],
                ["check", name], ["presets", name], ["babi", "read", name], ["babi", "check", name], [name], [name, name],
                ["sweep", "--preset", name, "--dry-run"], ["runs", "retry", name], ["report", "--output", f"{folder}/{name}/x"],
            ]
        )
    )  # fmt: skip
    return [*made, "--results", str(folder)] if draw(st.booleans()) else made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    sweep = Sweep.parse(
        {"task": {"name": "polynomial", "k": 1, "tokens": 3}, "training": {"steps": 2, "test_examples": 4}, "model": {"content": "positions"}}
    )  # fmt: skip
    api.run_sweeps([sweep], folder, api.Execution(workers=1))
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        # All of it in one file, whose bytes are damaged below.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


@share(0.01)
@given(data=st.data())
def test_other_commands(store, tmp_path_factory, monkeypatch, data):
    # In an empty folder: a command without --results must not find one.
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    typed(data.draw(other_commands(store)))
    assert not list(store.rglob("*.part"))


@pytest.mark.parametrize(
    "command",
    [
        ["report", "--output", "{name}", "--results", "{store}"], ["export", "--output", "{name}", "--results", "{store}"],
        ["figures", "heads-k", "--results", "{name}"], ["runs", "--results", "{name}"],
        ["runs", "recover", "--results", "{name}"], ["check", "poly-mha-lower", "--results", "{name}"],
        ["sweep", "--preset", "{name}.toml", "--dry-run"], ["sweep", "polynomial", "--graph", "{name}", "--dry-run"],
        ["babi", "read", "{name}"], ["babi", "check", "{name}"], ["babi", "write", "{name}", "--type", "3", "--stories", "1"],
        ["sweep", "cpm3", "--set", "training.steps=1", "--set", "training.warmup=0", "--heads", "1", "--attention", "mha",
         "--seeds", "1", "--workers", "1", "--results", "{name}"],
    ],
)  # fmt: skip
def test_names_that_no_file_can_have(store, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in ("a\0b", "", ".", "..", "/", "\ud800x", "x/../y\0", "/dev/full", "a" * 300, "/proc/x/y"):
        typed([part.format(name=name, store=store) for part in command])
    assert not [*tmp_path.parent.glob("*.part"), *tmp_path.rglob("*.part")]


@st.composite
def damaged(draw, original):
    """A file with bytes changed, cut out, put in, or its end cut off."""
    raw = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        kind = draw(st.sampled_from(("set", "cut", "put", "end")))
        if kind == "set" and raw:
            raw[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del raw[at : at + draw(st.integers(1, 40))]
        elif kind == "put":
            raw[at:at] = draw(st.binary(max_size=8) | st.text(string.printable, max_size=8).map(str.encode))
        else:
            del raw[at:]
    return bytes(raw)


def preset_text():
    return (resources.files("headcount.experiments") / "presets" / "smoke.toml").read_bytes()


@share(0.12)
@given(data=st.data())
def test_preset_files(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(data.draw(damaged(preset_text()) | st.binary(max_size=60)))
    typed(["sweep", "--preset", str(path), "--dry-run"])


def graph_files():
    graph = networkx.cycle_graph(5)
    edges, xml, matrix = io.BytesIO(), io.BytesIO(), io.BytesIO()
    networkx.write_edgelist(graph, edges)
    networkx.write_graphml(graph, xml)
    np.save(matrix, np.eye(4))
    return {".edges": edges.getvalue(), ".graphml": xml.getvalue(), ".npy": matrix.getvalue()}


GRAPHS = graph_files()


@share(0.1)
@given(data=st.data())
def test_graph_files(tmp_path_factory, data):
    ending = data.draw(st.sampled_from(sorted(GRAPHS)))
    path = tmp_path_factory.getbasetemp() / f"fuzzed{ending}"
    path.write_bytes(data.draw(damaged(GRAPHS[ending]) | st.binary(max_size=60)))
    typed(["sweep", "polynomial", "--graph", str(path), "--k", "2", "--heads", "1", "--dry-run"])


STORY = b"1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n1 John is here.\n"


@share(0.08)
@given(data=st.data())
def test_story_files(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "qa1_fuzzed.txt"
    path.write_bytes(data.draw(damaged(STORY) | st.binary(max_size=60)))
    typed(["babi", data.draw(st.sampled_from(("read", "check"))), str(path)])


def damaged_by(chance, original):
    """As `damaged`, at places that a random.Random chooses: a store is too long for Hypothesis to keep track of."""
    raw = bytearray(original)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(max(len(raw), 1))
        kind = chance.choice(("set", "cut", "put", "end"))
        if kind == "set" and raw:
            raw[at] = chance.randrange(256)
        elif kind == "cut":
            del raw[at : at + chance.randint(1, 40)]
        elif kind == "put":
            raw[at:at] = chance.randbytes(8)
        else:
            del raw[at:]
    return bytes(raw)


STORE_COMMANDS = (["runs"], ["export", "--format", "csv"], ["claims"], ["figures", "heads-k"])


@share(0.02)
@given(seed=st.integers(0, 2**32), command=st.sampled_from(STORE_COMMANDS))
def test_store_files(store, tmp_path_factory, seed, command):
    folder = tmp_path_factory.mktemp("damaged")
    raw = damaged_by(random.Random(seed), (store / FILE_NAME).read_bytes())
    (folder / FILE_NAME).write_bytes(raw)
    if typed([*command, "--results", str(folder)]) == 2:
        # What cannot be read is left as it is; SQLite itself makes an empty file a new store.
        assert (folder / FILE_NAME).read_bytes() == raw or len(raw) < 100
    assert not list(folder.rglob("*.part"))
