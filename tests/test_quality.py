"""Lint, format, types and layering, as part of the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = {
    "lint": [sys.executable, "-m", "ruff", "check", "."],
    "format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    "types": [sys.executable, "-m", "mypy"],
    "layers": [str(Path(sys.executable).parent / "lint-imports")],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tool(tool):
    done = subprocess.run(TOOLS[tool], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
