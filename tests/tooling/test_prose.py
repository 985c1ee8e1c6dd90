"""`.ci/prose.py` finds openings and words in comments, docstrings, messages and pages, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import check_of_ci

PROSE = check_of_ci("prose")
CASES = {
    "a.py": [
        ('"""What was read."""\n', [(1, "What")]),
        ("# The same for\n# tokens.\nx = 1\n", [(1, "The same")]),
        ("# It is so. Of\n# two, one.\n", [(1, "Of")]),
        ('raise ValueError("no worker: nobody answered")\n', [(1, "nobody")]),
        ("told = says(nobody)\n", []),
        ('"""The value of `nobody`, "told" too. What is it?"""\n', []),
        ('x = {"What": "told"}\n', []),
    ],
    "a.rs": [
        ("//! Of a worker.\n", [(1, "Of")]),
        ("/// A row.\n/// Says it, as believed.\nfn told() {}\n", [(1, "Says"), (1, "believed")]),
        ('let x = format!("the engine says {n}");\n', [(1, "says")]),
        ("// Somewhat. The samples of both.\n", []),
    ],
    "a.md": [
        ("# What it does\n\nIt routes.\n", []),
        ("```console\n$ What told\n```\n\n- Of those, one.\n", [(5, "Of")]),
    ],
}


@pytest.mark.parametrize(
    ("name", "source", "expected"), [(name, *case) for name, cases in CASES.items() for case in cases]
)
def test_findings(name: str, source: str, expected: list[tuple[int, str]], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(source)
    found = [finding.removeprefix(f"{file}:").split(": ")[:2] for finding in PROSE.check(file)]
    assert [(int(line), word) for line, word in found] == expected


def test_pages_and_words_are_counted_without_those_for_maintainers(tmp_path: Path) -> None:
    for name, text in {"a.md": "# Two words\n", "sub/b.md": "one\n", "maintainers/c.md": "not counted"}.items():
        page = tmp_path / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    assert PROSE.volume(tmp_path) == (2, 4)
