"""Fail when tests that must run did not: too few of them, or one skipped or ignored."""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


def rust_counts(log: str) -> tuple[int, int, int]:
    """Sum passed, failed and ignored over the result lines of `cargo test`."""
    rows = [tuple(map(int, match.groups())) for match in CARGO_RESULT.finditer(log)]
    return sum(r[0] for r in rows), sum(r[1] for r in rows), sum(r[2] for r in rows)


def python_counts(report: Path) -> tuple[int, int, int]:
    """Sum passed, failed and skipped over the suites of a JUnit report."""
    passed = failed = skipped = 0
    for suite in ET.parse(report).iter("testsuite"):  # noqa: S314 - written by pytest a moment ago
        bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        idle = int(suite.get("skipped", "0"))
        failed, skipped = failed + bad, skipped + idle
        passed += int(suite.get("tests", "0")) - bad - idle
    return passed, failed, skipped


def main() -> int:
    """Compare the counts with the floors and print the one line that sums them up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--rust", type=int, required=True)
    parser.add_argument("--python", type=int, required=True)
    options = parser.parse_args()
    rust = rust_counts((options.reports / "test.log").read_text("utf-8"))
    python = python_counts(options.reports / "pytest.xml")
    problems = [
        f"{name}: {counts[0]} tests passed, at least {floor} must"
        for name, counts, floor in (("Rust", rust, options.rust), ("Python", python, options.python))
        if counts[0] < floor
    ]
    if rust[2] or python[2]:
        problems.append(f"{rust[2]} Rust tests ignored and {python[2]} Python tests skipped, none may be")
    for problem in problems:
        print(problem)
    print(f"{rust[0] + python[0]} passed, {rust[1] + python[1] + len(problems)} failed")
    return 1 if problems or rust[1] or python[1] else 0


if __name__ == "__main__":
    sys.exit(main())
