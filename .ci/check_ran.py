"""Fail when tests that must run did not: too few, one skipped or ignored, none of tests/hostile, or these too long."""

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


def hostile_problems(report: Path, most_s: float) -> list[str]:
    """Check that the tests of `tests/hostile` ran, and how long."""
    cases = [case for case in ET.parse(report).iter("testcase") if "tests.hostile." in case.get("classname", "")]  # noqa: S314
    took_s = sum(float(case.get("time", "0")) for case in cases)
    if not cases:
        return ["no test of tests/hostile ran"]
    return [f"tests/hostile took {took_s:.0f} s, at most {most_s:.0f} are allowed"] if took_s > most_s else []


def main() -> int:
    """Compare the counts with the floors and print the one line that sums them up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--hostile", type=float, required=True, help="seconds that tests/hostile may take")
    parser.add_argument("floors", nargs="+", metavar="RUN=RUST,PYTHON", help="how many tests of a run must pass")
    options = parser.parse_args()
    problems, passed, failed = [], 0, 0
    for floor in options.floors:
        run, _, least = floor.partition("=")
        rust = rust_counts((options.reports / f"{run}.log").read_text("utf-8"))
        python = python_counts(options.reports / f"{run}.xml")
        for name, counts, low in zip(("Rust", "Python"), (rust, python), map(int, least.split(",")), strict=True):
            passed, failed = passed + counts[0], failed + counts[1]
            if counts[0] < low:
                problems.append(f"make {run}: {counts[0]} {name} tests passed, at least {low} must")
            if counts[2]:
                problems.append(f"make {run}: {counts[2]} {name} tests skipped or ignored, none may be")
    problems += hostile_problems(options.reports / "test.xml", options.hostile)
    print("\n".join([*problems, f"{passed} passed, {failed + len(problems)} failed"]))
    return 1 if problems or failed else 0


if __name__ == "__main__":
    sys.exit(main())
