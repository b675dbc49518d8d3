"""The front door: every command on a small store, and one sentence with exit code 2 for bad input."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from headcount import cli
from headcount.config import BadInput
from headcount.tasks import TASKS

FAST = ["--set", "training.steps=200", "--set", "training.test_examples=256", "--workers", "1"]


def run(monkeypatch, capsys, *arguments):
    """Call the console script in this process; returns exit code, output, errors."""
    monkeypatch.setattr(sys, "argv", ["headcount", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A small finished store with both tasks and both mechanisms."""
    folder = tmp_path_factory.mktemp("results")
    for task in (["polynomial", "--k", "1,2,4,5", "--tokens", "8"], ["cpm3", "--tokens", "2,4,5,9"]):
        command = [sys.executable, "-m", "headcount", "sweep", *task, "--seeds", "2", "--results", str(folder), *FAST]
        subprocess.run(command, check=True, capture_output=True)
    return folder


BAD = [
    (["reproduce", "--preset", "quik"], "did you mean 'quick'"),
    (["reproduce", "--preset", "none.toml"], "cannot be read"),
    (["sweep", "polynomal"], "did you mean 'polynomial'"),
    (["sweep"], "name a task"),
    (["sweep", "polynomial", "--preset", "quick"], "unknown preset 'polynomial-quick'"),
    (["sweep", "polynomial", "--operator", "cylic"], "did you mean 'cyclic'"),
    (["sweep", "polynomial", "--k", "0"], "k = 0"),
    (["sweep", "polynomial", "--k", "-3"], "k = -3"),
    (["sweep", "polynomial", "--k", "four"], "valid integer"),
    (["sweep", "polynomial", "--heads", "5000"], "heads = 5000"),
    (["sweep", "polynomial", "--heads", "many"], "allowed: auto, boundary"),
    (["sweep", "polynomial", "--heads", "5:1"], "is empty"),
    (["sweep", "polynomial", "--heads", "1:2:3:4"], "is not a range"),
    (["sweep", "polynomial", "--attention", "mhaa"], "did you mean 'mha'"),
    (["sweep", "polynomial", "--graph", "/no/such/file"], "cannot be read"),
    (["sweep", "polynomial", "--seeds", "0"], "at least 1"),
    (["sweep", "polynomial", "--set", "training.stesp=5"], "did you mean 'steps'"),
    (["sweep", "polynomial", "--set", "trainig.steps=5"], "did you mean 'training'"),
    (["sweep", "polynomial", "--set", "training.steps"], "takes key=value"),
    (["sweep", "polynomial", "--set", "training=5"], "needs a field name"),
    (["sweep", "polynomial", "--target", "count"], "has no key 'target'"),
    (["sweep", "polynomial", "--device", "tpu"], "unknown device"),
    (["sweep", "polynomial", "--workers", "0"], "at least 1"),
    (["sweep", "polynomial", "--tolerance", "2"], "tolerance"),
    (["sweep", "polynomial", "--seeds", "100000000000"], "at most 100,000"),
    (["sweep", "polynomial", "--set", "seed=abc"], "is set by --seeds"),
    (["sweep", "polynomial", "--set", "model.heads=3"], "is set by --heads"),
    (["sweep", "polynomial", "--set", "task.name=cpm3"], "is set by TASK"),
    (["sweep", "polynomial", "--set", "model.query_width=1000000000"], "query_width"),
    (["sweep", "polynomial", "--results", ""], "needs a name"),
    (["sweep", "--preset", "smoke", "--heads", "3"], "--heads is of a task's sweep"),
    (["sweep", "--preset", "smoke", "--seeds", "1"], "--seeds is of a task's sweep"),
    (["claims", "document", "--output", "/no/such/folder/x.md"], "cannot be written"),
    (["sweep", "--preset", "quick", "--only", "polynomial"], "unknown sweep"),
    (["sweep", "cpm3", "--set", "task.modulus=1"], "modulus = 1"),
    (["sweep", "cpm3", "--target", "count"], "has none as configured"),
    (["sweep", "polynomial", "--results", "/proc/nowhere"], "cannot be used"),
    (["check", "--results", "/tmp/there-is-no-such-folder"], "no results in"),
    (["runs", "--results", "/tmp/there-is-no-such-folder"], "no results in"),
    (["figures", "--results", "/tmp/there-is-no-such-folder"], "no results in"),
    (["export", "--results", "/tmp/there-is-no-such-folder"], "no results in"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_is_one_sentence_and_exit_code_two(monkeypatch, capsys, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert words in errors
    assert errors.startswith("headcount: ")
    assert errors.count("\n") == 1
    assert "Traceback" not in errors


def test_bad_names_on_an_existing_store(monkeypatch, capsys, store):
    for arguments, words in (
        (["check", "law-poly-mhaa"], "did you mean 'law-poly-mha'"),
        (["figures", "head-k"], "did you mean 'heads-k'"),
        (["export", "--format", "xlsx"], "allowed: csv, parquet"),
        (["runs", "--status", "finished"], "unknown status"),
    ):
        code, _, errors = run(monkeypatch, capsys, *arguments, "--results", store)
        assert (code, words in errors) == (2, True), errors


def test_unknown_option_is_exit_code_two(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "sweep", "polynomial", "--kk", "3")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(
            [name]
            for name in (
                "tasks",
                "babi",
                "claims",
                "sweep",
                "runs",
                "export",
                "check",
                "figures",
                "reproduce",
                "presets",
            )
        ),
    ],
)
def test_help(monkeypatch, capsys, command):
    code, output, _ = run(monkeypatch, capsys, *command, "--help")
    assert code == 0
    assert "Usage" in output


def test_runs_lists_the_store(monkeypatch, capsys, store):
    code, output, _ = run(monkeypatch, capsys, "runs", "--results", store)
    assert code == 0
    assert "polynomial" in output
    assert "done" in output


def test_export(monkeypatch, capsys, store, tmp_path):
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        target = tmp_path / f"rows.{form}"
        code, output, _ = run(monkeypatch, capsys, "export", "--format", form, "--output", target, "--results", store)
        assert code == 0
        assert len(read(target)) == int(output.split()[0])


def test_check_prints_and_stores_verdicts(monkeypatch, capsys, store):
    code, output, _ = run(monkeypatch, capsys, "check", "poly-mha-lower", "cpm3-lower", "--json", "--results", store)
    assert code == 0
    findings = {finding["claim"]: finding for finding in json.loads(output)}
    assert findings["poly-mha-lower"]["verdict"] == "SUPPORTED"
    code, output, _ = run(monkeypatch, capsys, "check", "poly-mha-lower", "--results", store)
    assert "poly-mha-lower" in output
    assert "SUPPORTED" in output


def test_check_exits_one_when_a_law_is_contradicted(monkeypatch, capsys, store, tmp_path):
    import shutil
    import sqlite3

    shutil.copytree(store, tmp_path / "forged")
    with sqlite3.connect(tmp_path / "forged" / "headcount.sqlite") as database:
        database.execute("UPDATE results SET best_error = 0.001, error = 0.001")
    code, output, _ = run(monkeypatch, capsys, "check", "law-poly-mha", "--results", tmp_path / "forged")
    assert code == 1
    assert "REFUTED" in output


def test_figures_are_drawn_from_the_store_and_are_the_same_every_time(monkeypatch, capsys, store):
    assert run(monkeypatch, capsys, "figures", "heads-k", "error-heads", "--results", store)[0] == 0
    folder = store / "figures"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"heads-k.png", "heads-k.pdf", "heads-k.svg", "heads-k.json"} <= set(first)
    runs = json.loads(first["heads-k.json"])["runs"]
    assert len(runs) > 10
    run(monkeypatch, capsys, "figures", "heads-k", "error-heads", "--results", store)
    assert first == {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sweep = 3", "no [[sweep]] table"),
        ("sweep = [1, 2]", "is no [[sweep]] table"),
        ("[[sweep]]\ngrid = 5", "grid"),
        ("[[sweep]]\ntask = 'x'", "task"),
        ("[[sweep]]\nnaem = 'x'", "did you mean 'name'"),
        ("[[sweep]]\ngrid = { seed = [] }", "has no value to loop over"),
        ("[[sweep]]\nname = 'a'\n[[sweep]]\nname = 'a'", "two sweeps named 'a'"),
        ("[[sweep]]\ntolerance = 'a'", "tolerance"),
        ("other = 1", "unknown key in preset"),
        ("= 3", "not valid TOML"),
    ],
)
def test_malformed_presets(monkeypatch, capsys, tmp_path, text, words):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    code, _, errors = run(monkeypatch, capsys, "sweep", "--preset", path, "--dry-run")
    assert (code, words in errors) == (2, True), errors


def test_tolerance_and_odd_stores(monkeypatch, capsys, store, tmp_path):
    for value in ("0", "-1", "5", "nan"):
        code, _, errors = run(monkeypatch, capsys, "check", "--tolerance", value, "--results", store)
        assert (code, "between 0 and 1" in errors) == (2, True), errors
    (tmp_path / "headcount.sqlite").touch()
    code, output, _ = run(monkeypatch, capsys, "runs", "--results", tmp_path)
    assert (code, output) == (0, "no rows\n")
    import sqlite3

    (tmp_path / "other").mkdir()
    with sqlite3.connect(tmp_path / "other" / "headcount.sqlite") as database:
        database.execute("CREATE TABLE theirs (x)")
    code, _, errors = run(monkeypatch, capsys, "runs", "--results", tmp_path / "other")
    assert (code, "not a store of this program" in errors) == (2, True)
    (tmp_path / "figures").touch()
    code, _, errors = run(monkeypatch, capsys, "figures", "task-samples", "--results", tmp_path)
    assert (code, "cannot be used for figures" in errors) == (2, True)


def test_failed_trials_exit_with_three_and_can_be_retried(monkeypatch, capsys, tmp_path):
    from headcount.experiments import attempt

    arguments = [
        "sweep",
        "polynomial",
        "--k",
        "1",
        "--heads",
        "1",
        "--attention",
        "mha",
        "--seeds",
        "1",
        *FAST,
        "--results",
        tmp_path,
    ]

    def broken(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(attempt, "train", broken)
    code, output, _ = run(monkeypatch, capsys, *arguments)
    assert (code, "1 failed (out of memory 1)" in output) == (3, True)
    monkeypatch.undo()
    code, output, _ = run(monkeypatch, capsys, *arguments)
    assert (code, "1 already there" in output) == (0, True)
    code, output, _ = run(monkeypatch, capsys, *arguments, "--retry-failed")
    assert (code, "1 failed trials are planned again" in output, "1 run in" in output) == (0, True, True)


def test_a_fault_of_the_program_has_its_own_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(cli, "load_preset", lambda name: 1 / 0)
    code, _, errors = run(monkeypatch, capsys, "presets")
    assert (code, "fault of the program" in errors) == (70, True)


def test_presets_and_dry_run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, output, _ = run(monkeypatch, capsys, "presets")
    assert code == 0
    assert all(name in output for name in ("smoke", "quick", "paper"))
    code, output, _ = run(monkeypatch, capsys, "sweep", "--preset", "quick", "--only", "graphs-mha", "--dry-run")
    assert code == 0
    assert "graphs-mha" in output
    assert not list(tmp_path.iterdir())


def test_users_own_graph_and_order_note(monkeypatch, capsys, tmp_path):
    (tmp_path / "ring.edges").write_text("a b\nb c\nc d\nd a\n")
    monkeypatch.chdir(tmp_path)
    code, output, errors = run(
        monkeypatch,
        capsys,
        "sweep",
        "polynomial",
        "--graph",
        "ring.edges",
        "--k",
        "2",
        "--heads",
        "1",
        "--seeds",
        "1",
        *FAST,
    )
    assert code == 0, errors
    assert "2 trials" in output
    code, output, _ = run(
        monkeypatch,
        capsys,
        "sweep",
        "cpm3",
        "--tokens",
        "3",
        "--heads",
        "1",
        "--seeds",
        "1",
        "--set",
        "task.multiplier=11",
        *FAST,
    )
    assert "symmetric in the pair (G = 1 mod M)" in output


def test_reproduce_on_a_tiny_preset(monkeypatch, capsys, tmp_path):
    preset = tmp_path / "tiny.toml"
    preset.write_text(
        '[[sweep]]\nname = "polynomial-mha"\ntask = { name = "polynomial", tokens = 5 }\n'
        'model = { attention = "mha", heads = "auto", score = "linear", content = "positions", value_content = "features" }\n'
        'training = { steps = 100, test_examples = 128 }\ngrid = { "task.k" = [1, 2], seed = [0] }\n'
    )
    results = tmp_path / "results"
    code, output, errors = run(
        monkeypatch, capsys, "reproduce", "--preset", preset, "--results", results, "--workers", "1"
    )
    assert code == 0, errors
    summary = (results / "summary.md").read_text()
    assert "law-poly-mha" in summary
    assert "NO EVIDENCE" in summary
    assert "s in all" in output


@pytest.mark.parametrize(
    ("text", "values"),
    [("1,4,9", [1, 4, 9]), ("1:4", [1, 2, 3, 4]), ("2:8:3", [2, 5, 8]), ("mha,iha", ["mha", "iha"]),
     ("0.1,1e-3", [0.1, 1e-3]), ("true", [True])],
)  # fmt: skip
def test_values(text, values):
    assert cli.parse_values(text) == values


def test_tasks_are_listed_shown_and_measured(monkeypatch, capsys):
    code, output, _ = run(monkeypatch, capsys, "tasks", "--json")
    rows = {row["task"]: row for row in json.loads(output)}
    assert code == 0
    assert set(rows) == set(TASKS)
    assert all(row["chance"] and row["shortcut"] for row in rows.values())
    code, output, _ = run(monkeypatch, capsys, "tasks", "show", "relation", "--n", "1")
    assert "R o R" in output
    code, output, _ = run(
        monkeypatch, capsys, "tasks", "stats", "function", "--examples", "500", "--set", "smallest=26"
    )
    found = json.loads(output)
    assert found["task"]["smallest"] == 26
    assert found["floors"]["count of zeros"] > 0.6
    for arguments, words in (
        (("show", "relations"), "did you mean 'relation'"),
        (("show", "relation", "--set", "larges=7"), "did you mean 'largest'"),
        (("show", "relation", "--set", "larges"), "takes key=value"),
        (("stats", "cpm3", "--set", "modulus=1"), "modulus = 1"),
    ):
        code, _, errors = run(monkeypatch, capsys, "tasks", *arguments)
        assert (code, words in errors) == (2, True), errors


def test_babi_files_are_written_read_and_checked(monkeypatch, capsys, tmp_path):
    path = tmp_path / "qa3_three-supporting-facts_test.txt"
    code, output, _ = run(monkeypatch, capsys, "babi", "write", path, "--type", "3", "--stories", "4")
    assert code == 0
    assert "4 stories with 20 questions" in output
    code, output, _ = run(monkeypatch, capsys, "babi", "compare", "--stories", "3", "--json")
    assert code == 0
    assert [row["type"] for row in json.loads(output)] == list(range(1, 21))
    code, output, _ = run(monkeypatch, capsys, "babi", "read", path, "--json")
    assert json.loads(output)["questions"] == 20
    code, output, _ = run(monkeypatch, capsys, "babi", "check", path, "--json")
    assert code == 0
    assert json.loads(output)[0]["right answers"] == 20
    lines = path.read_text().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if "\t" in line)
    question, answer, support = lines[at].split("\t")
    other = "office" if answer != "office" else "garden"
    path.write_text("".join([*lines[:at], f"{question}\t{other}\t{support}", *lines[at + 1 :]]))
    code, output, _ = run(monkeypatch, capsys, "babi", "check", path)
    assert code == 1
    path.write_text("".join([*lines[:2], "not a line\n", *lines[2:]]))
    code, _, errors = run(monkeypatch, capsys, "babi", "read", path)
    assert code == 2
    assert ":3" in errors or "line 3" in errors
    code, _, errors = run(monkeypatch, capsys, "babi", "write", tmp_path / "no" / "x.txt", "--type", "3")
    assert code == 2


def test_models_are_listed_and_shown(monkeypatch, capsys):
    code, output, _ = run(monkeypatch, capsys, "models", "--json", "--tokens", "16", "--width", "24", "--heads", "4")
    rows = {row["attention"]: row for row in json.loads(output)}
    assert code == 0
    assert rows["mha"]["parameters"] == 4 * 24**2
    assert rows["iha"]["parameters"] == 4 * 24**2 + 4 * 4**2 * 4
    code, output, _ = run(monkeypatch, capsys, "models", "show", "strassen")
    assert "f_i . g_j + g_j . h_k + h_k . f_i" in output
    code, _, errors = run(monkeypatch, capsys, "models", "show", "strasen")
    assert (code, "did you mean 'strassen'" in errors) == (2, True)


def test_a_task_with_discrete_answers_is_swept_and_reported_beside_its_floors(monkeypatch, capsys, tmp_path):
    arguments = ["sweep", "retrieval", "--attention", "mha,iha", "--heads", "1", "--seeds", "1", "--results", tmp_path]
    small = ["model.width=8", "model.depth=1", "task.layout=fused", "task.pairs=2", "task.filler=0", "task.alphabet=4"]
    sets = [word for setting in small for word in ("--set", setting)]
    code, output, errors = run(monkeypatch, capsys, *arguments, *sets, *FAST)
    assert code == 0, errors
    assert "shortcut" in output
    code, _, errors = run(monkeypatch, capsys, "sweep", "retrieval", "--attention", "mha", "--results", tmp_path)
    assert (code, "name head counts" in errors) == (2, True)
    code, _, errors = run(monkeypatch, capsys, "sweep", "relation", "--heads", "1", "--set", "model.wdth=3")
    assert (code, "has no key 'wdth'" in errors) == (2, True), errors


def test_huge_ranges_are_refused():
    with pytest.raises(BadInput, match="at most 10,000"):
        cli.parse_values("1:1000000000")


def test_what_a_file_says_is_no_markup(monkeypatch, capsys, tmp_path):
    path = tmp_path / "qa1_odd.txt"
    path.write_text("1 ][/John went to the hallway.\n2 Where is John? \thallway\t1\n", encoding="utf-8")
    code, output, errors = run(monkeypatch, capsys, "babi", "check", path)
    assert code in (0, 1, 2), errors
    assert "Traceback" not in errors
    assert "][/John" in output + errors
