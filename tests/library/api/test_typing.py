"""Both type checkers accept what is right and find what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Checker = Callable[[list[Path], Path], set[tuple[str, int]]]

ROOT = Path(__file__).parents[3]
MISTAKES = Path(__file__).with_name("typing_mistakes.py")
RIGHT = sorted((ROOT / "tests" / "typing").glob("*.py"))


def mypy(files: list[Path], cache: Path) -> set[tuple[str, int]]:
    command = ["mypy", "--strict", "--output=json", f"--cache-dir={cache}", *map(str, files)]
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert "No module named" not in done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(Path(each["file"]).name, each["line"]) for each in found if each["severity"] == "error"}


def basedpyright(files: list[Path], _cache: Path) -> set[tuple[str, int]]:
    command = ["basedpyright", "--outputjson", *map(str, files)]
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert "No module named" not in done.stderr, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}


@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_checkers_find_exactly_the_mistakes(checker: Checker, tmp_path: Path) -> None:
    lines = MISTAKES.read_text().splitlines()
    wrong = {(MISTAKES.name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) == 11
    assert len(RIGHT) >= 3
    assert checker([*RIGHT, MISTAKES], tmp_path) == wrong
