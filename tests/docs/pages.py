"""The pages of the documentation, and the fenced blocks on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^( *)```(?P<kind>.*)\n(?P<text>(?:.*\n)*?)\1```\n", re.MULTILINE)
# A ```text block right behind another block: the output of that one.
OUTPUT = re.compile(r"\n*```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block."""

    place: str
    """`page:line`."""
    kind: str
    text: str
    output: str | None

    @property
    def page(self) -> str:
        """The page without the line."""
        return self.place.partition(":")[0]


def name_of(page: Path) -> str:
    """The path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(*kinds: str) -> Iterator[Block]:
    """Find the blocks of these kinds, or all."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in FENCE.finditer(text):
            if not kinds or match["kind"] in kinds:
                line, output = text.count("\n", 0, match.start()) + 1, OUTPUT.match(text, match.end())
                yield Block(f"{name_of(page)}:{line}", match["kind"], match["text"], output and output[1])


def parameters(*kinds: str) -> list[pytest.ParameterSet]:
    """Give the blocks of these kinds as parameters of a test."""
    return [pytest.param(block, id=block.place) for block in blocks(*kinds)]


def prose(page: Path) -> str:
    """The text of a page, with its blocks as empty lines."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text("utf-8"))


def definitions(page: str) -> str:
    """The first Python block of a page, up to the router that it makes."""
    return next(block.text for block in blocks("python") if block.page == page).split("\nrouter = ")[0]
