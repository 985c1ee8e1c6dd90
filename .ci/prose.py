"""Check the prose of sources and pages: comments, docstrings, texts of messages, paragraphs.

    python .ci/prose.py --most 40 --most-pages 40 --most-words 40000

Prints each sentence that begins with a word of OPENINGS or holds one of WORDS; fails with more than that many. Code in
backticks and quotations are left out. Counts the pages and words of the users' documentation, which is docs/ without
MAINTAINERS, and fails above the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Prose = tuple[int, str]

OPENINGS: Final = re.compile(r"(?:^|(?<=[.!?:] )|(?<=\| ))(?:What|The same|Of)\b(?![^.!?|]*\?)")
WORDS: Final = re.compile(r"\b(?:nobody|says|told|believed)\b", re.IGNORECASE)
QUOTED: Final = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”")
RUST: Final = re.compile(r"//[/!]?\s?(.*)|\"((?:\\.|[^\"\\\n])*)\"")
MAINTAINERS: Final = "docs/maintainers"
SKIPPED: Final = ("docs/upgrading.md", "CHANGELOG.md")


def main() -> None:
    """Print what is found in the files of this checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=0, help="sentences allowed in all")
    parser.add_argument("--most-pages", type=int, default=0, help="pages allowed in the users' documentation")
    parser.add_argument("--most-words", type=int, default=0, help="words allowed there")
    given = parser.parse_args()
    files = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
    found = [finding for name in sorted(files) if Path(name).is_file() for finding in check(Path(name))]
    print("\n".join(found))
    print(f"{len(found)} sentences, at most {given.most}")
    pages, words = volume(Path())
    print(f"{pages} pages of users' documentation, at most {given.most_pages}")
    print(f"{words:,} words on them, at most {given.most_words:,}")
    sys.exit(len(found) > given.most or pages > given.most_pages or words > given.most_words)


def volume(root: Path) -> tuple[int, int]:
    """Count the pages and the words of the users' documentation."""
    pages = [page for page in (root / "docs").rglob("*.md") if not page.is_relative_to(root / MAINTAINERS)]
    return len(pages), sum(len(page.read_text("utf-8").split()) for page in pages)


def check(path: Path) -> Iterator[str]:
    """Yield the findings of a file."""
    readers = {".py": python_prose, ".rs": rust_prose, ".md": page_prose}
    if path.suffix not in readers or str(path) in SKIPPED:
        return
    for line, prose in readers[path.suffix](path.read_text("utf-8")):
        plain = QUOTED.sub("_", prose)
        for word in [*OPENINGS.findall(plain), *WORDS.findall(plain)]:
            yield f"{path}:{line}: {word}: {' '.join(prose.split())[:120]}"


def python_prose(source: str) -> Iterator[Prose]:
    """Yield the strings of several words and the comments of a Python file, each a paragraph."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield from paragraphs(node.value, node.lineno)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    yield from joined([(token.start[0], token.string.lstrip("#: ")) for token in comments])


def rust_prose(source: str) -> Iterator[Prose]:
    """Yield the strings of several words and the comments of a Rust file."""
    comments: list[Prose] = []
    for number, line in enumerate(source.split("\n"), 1):
        for match in RUST.finditer(line):
            if match[1] is not None:
                comments.append((number, match[1]))
            elif " " in match[2].strip():
                yield number, match[2]
    yield from joined(comments)


def page_prose(source: str) -> Iterator[Prose]:
    """Yield the paragraphs of a page, without headings and blocks of code."""
    plain = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL)
    yield from paragraphs(re.sub(r"^#.*$", "", plain, flags=re.MULTILINE), 1)


def paragraphs(text: str, line: int) -> Iterator[Prose]:
    """Split a text at empty lines and list items."""
    for part in re.split(r"(\n\s*(?=\n)|\n(?=\s*(?:[-*|#>]|\d+\.)\s))", text):
        if part.strip():
            yield line, re.sub(r"^[-*|#>\s\d.]+", "", " ".join(part.split()))
        line += part.count("\n")


def joined(lines: list[Prose]) -> Iterator[Prose]:
    """Join the lines that follow each other to paragraphs."""
    start, last, texts = 0, -1, list[str]()
    for number, text in [*lines, (-1, "")]:
        if texts and (number != last + 1 or not text.strip()):
            yield from paragraphs("\n".join(texts), start)
            texts = []
        if text.strip():
            if not texts:
                start = number
            texts.append(text)
        last = number


if __name__ == "__main__":
    main()
