"""Write the table of folders in CONTRIBUTING.md from the documentation of crates and packages.

    python .ci/folders.py [--check]

A crate is described by the first sentence of its `lib.rs`, or of the page that is its documentation; a package by that
of its docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = "CONTRIBUTING.md"
BEGIN, END = "<!-- folders: written by .ci/folders.py -->\n", "<!-- end of folders -->\n"
PACKAGES: Final = ("python/cachelb", "gateway/cachelb_gateway", "lab/cachelb_lab", "fakes/cachelb_fakes")


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is prose."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    first = next(each for each in paragraphs if each and not each.startswith("#"))
    return (
        re.split(r"(?<=[.?!]) (?=[A-Z`])", first)[0]
        .rstrip(".")
        .replace("|", "\\|")
        .replace("[`", "`")
        .replace("`]", "`")
    )


def crate_documentation(crate: Path) -> str:
    """Return the documentation of a crate: its `//!` lines, or the page that it includes."""
    source = (crate / "src" / "lib.rs").read_text("utf-8")
    if page := re.match(r'#!\[doc = include_str!\("([^"]+)"\)\]', source):
        return (crate / "src" / page[1]).read_text("utf-8")
    return "\n".join(line.removeprefix("//!").strip() for line in source.splitlines() if line.startswith("//!"))


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """Find crates, distributions and their packages, with their documentation."""
    for manifest in sorted((root / "rust").glob("*/Cargo.toml")):
        yield manifest.parent.relative_to(root).as_posix(), crate_documentation(manifest.parent)
    for package in PACKAGES:
        files = [root / package / "__init__.py", *sorted((root / package).glob("*/__init__.py"))]
        for file in files:
            documented = ast.get_docstring(ast.parse(file.read_text("utf-8")))
            yield file.parent.relative_to(root).as_posix(), documented or ""


def table(root: Path) -> str:
    """Return the table in Markdown."""
    lines = [f"| `{folder}` | {first_sentence(text)} |" for folder, text in rows(root)]
    return "\n".join(["| folder | holds |", "|---|---|", *lines, ""])


def main() -> int:
    """Write the table, or compare it with that on the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page has another table; write nothing")
    page = ROOT / PAGE
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    written, end, after = rest.partition(END)
    if parser.parse_args().check:
        if is_other := written != table(ROOT):
            print(f"{PAGE}: the table of folders is not that of the sources: python .ci/folders.py", file=sys.stderr)
        return int(is_other)
    page.write_text(before + begin + table(ROOT) + end + after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
