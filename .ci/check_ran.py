"""Fail when a suite of tests did not run, a test was skipped or ignored, or those of tests/hostile took too long.

    python .ci/check_ran.py target/ci/test --hostile 0.1
    python .ci/check_ran.py target/ci/test-long --suites tests/lab/sim tests/library/properties

The folder holds the reports of a `make` target: `log`, its output, and a JUnit report of each run of pytest. A suite is
the library tests of a crate, a file in its `tests`, a folder of Python tests, or the doctests of a distribution.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OF_OTHERS: Final = ("engine", "envoy", "go", "hosts")
"""Folders of tests that need a program of others, and have a target of their own."""
DISTRIBUTIONS: Final = ("python", "gateway", "lab", "fakes")
CARGO_RUN: Final = re.compile(r"^ +Running (?:unittests )?(\S+) \(\S*/(\w+)-[0-9a-f]+\)|^ +Doc-tests (\w+)")
CARGO_RESULT: Final = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
RUST_TEST: Final = re.compile(r"#\[(?:tokio::)?test\b|\bproptest! *\{")

Cases = Counter[tuple[str, str]]
"""Tests by suite and outcome: passed, failed or skipped."""


def rust_suites(root: Path) -> Iterator[str]:
    """Find the crates with tests in their sources, and the files of their `tests`."""
    for manifest in (root / "rust").glob("*/Cargo.toml"):
        parsed = tomllib.loads(manifest.read_text("utf-8"))
        name = parsed.get("lib", {}).get("name", parsed["package"]["name"].replace("-", "_"))
        if any(RUST_TEST.search(file.read_text("utf-8")) for file in (manifest.parent / "src").rglob("*.rs")):
            yield name
        yield from (f"{name}: tests/{file.name}" for file in (manifest.parent / "tests").glob("*.rs"))


def python_suites(root: Path) -> Iterator[str]:
    """Find the folders of Python tests that `make test` runs."""
    yield from DISTRIBUTIONS
    for folder in {file.parent for file in (root / "tests").rglob("test_*.py")}:
        if folder.relative_to(root / "tests").parts[0] not in OF_OTHERS:
            yield folder.relative_to(root).as_posix()


def rust_cases(log: str) -> Cases:
    """Read the output of `cargo test`; the files in a crate's `tests` run after the tests in its sources."""
    cases, crate, suite = Cases(), "", ""
    for line in log.splitlines():
        if run := CARGO_RUN.match(line):
            file, target, documented = run.groups()
            suite = f"doctests of {documented}" if documented else target
            if file and file.startswith("tests/"):
                suite = f"{crate}: {file}"
            elif file:
                crate = target
        elif result := CARGO_RESULT.match(line):
            for outcome, count in zip(("passed", "failed", "skipped"), result.groups(), strict=True):
                cases[suite, outcome] += int(count)
    return cases


def python_cases(reports: Iterable[Path]) -> Iterator[tuple[str, str, float]]:
    """Read the suite, the outcome and the seconds of each test in JUnit reports."""
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by pytest a moment ago
            parts = case.get("classname", "").split(".")
            folders = takewhile(lambda part: not part.startswith("test_"), parts) if parts[0] == "tests" else parts[:1]
            bad = case.find("failure") is not None or case.find("error") is not None
            outcome = "failed" if bad else "passed" if case.find("skipped") is None else "skipped"
            yield "/".join(folders), outcome, float(case.get("time", "0"))


def main() -> int:
    """Print each suite that did not run, and the one line that sums up the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, help="the folder")
    parser.add_argument("--hostile", type=float, help="share of the time of all tests in Python for tests/hostile")
    parser.add_argument("--suites", nargs="+", help="of Python, instead of all that `make test` runs")
    options = parser.parse_args()
    cases, spent_s = rust_cases((options.reports / "log").read_text("utf-8")), dict[str, float]()
    for suite, outcome, seconds in python_cases(options.reports.glob("*.xml")):
        cases[suite, outcome] += 1
        spent_s[suite] = spent_s.get(suite, 0.0) + seconds
    wanted = {*rust_suites(ROOT), *(options.suites or python_suites(ROOT))}
    problems = [f"no test of {suite} passed" for suite in sorted(wanted) if not cases[suite, "passed"]]
    problems += [
        f"{count} of {suite} {how}" for (suite, how), count in sorted(cases.items()) if how != "passed" and count
    ]
    # A busy machine slows all of them.
    share = spent_s.get("tests/hostile", 0.0) / max(sum(spent_s.values()), 1.0)
    if options.hostile is not None and share > options.hostile:
        problems.append(f"tests/hostile took {share:.1%} of the time, at most {options.hostile:.0%} are allowed")
    passed = sum(count for (_, outcome), count in cases.items() if outcome == "passed")
    print("\n".join([*problems, f"{options.reports.name}: {passed} passed, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
