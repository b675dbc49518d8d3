"""What the README says can be typed, can be typed."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from headcount import api, cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_two_set_up_commands_come_first():
    shell = [text.strip() for language, text in BLOCKS if language == "sh"]
    assert [len(text.splitlines()) for text in shell[:2]] == [1, 1]
    assert shell[0].endswith("headcount reproduce")
    assert shell[1].endswith("pytest")
    assert shell[1] in README.split("<!-- test command -->")[1]
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    "line", [line for _, text in BLOCKS[2:] for line in text.splitlines() if line.startswith("headcount ")]
)
def test_commands_of_the_readme_parse(line, monkeypatch, capsys, tmp_path):
    """Sweeps are planned and not trained; what needs a store says so and exits with 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.edges").write_text("".join(f"{i} {(i + 1) % 20}\n" for i in range(20)))
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "sweep":
        words.append("--dry-run")
    if words[0] == "reproduce":
        words.append("--help")
    monkeypatch.setattr(sys, "argv", ["headcount", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    refused = {"check": "no results in", "figures": "no results in", "runs": "no results in", "export": "no results in", "report": "no results in", "babi": "my-folder"}  # fmt: skip
    assert (stop.value.code or 0) == (2 if words[0] in refused else 0), captured.err
    assert refused.get(words[0], "") in captured.err


def test_python_of_the_readme_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = next(text for language, text in BLOCKS if language == "python")
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "exponent" not in capsys.readouterr().err
    assert (tmp_path / "results" / "figures" / "heads-k.png").exists()
    rows = api.Results(tmp_path / "results").rows
    assert {"task.k", "model.heads", "best_error"} <= set(rows.columns)


def test_paths_named_in_the_readme_exist():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / path).exists(), path


def test_claims_document_is_current():
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == api.ledger_document()
