"""`.ci/check_ran.py` finds suites, and tests that did not run."""

from __future__ import annotations

from pathlib import Path

from tests.programs import check_of_ci

RAN = check_of_ci("check_ran")
LOG = """\
     Running unittests src/lib.rs (target/debug/deps/cachelb_core-0a1b)
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
     Running tests/index_model.rs (target/debug/deps/index_model-0a1b)
test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
   Doc-tests cachelb_core
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.library.index.test_text.TestAll" name="test_a" time="0.5" />
<testcase classname="tests.library.index.test_text" name="test_b" time="1"><skipped /></testcase>
<testcase classname="tests.hostile.test_values" name="test_c" time="2"><failure /></testcase>
<testcase classname="python.cachelb.router" name="cachelb.router.Router" time="0.1" />
</testsuite></testsuites>
"""


def test_cargo_output_is_counted_by_suite() -> None:
    assert dict(+RAN.rust_cases(LOG)) == {
        ("cachelb_core", "passed"): 12,
        ("cachelb_core: tests/index_model.rs", "passed"): 3,
        ("cachelb_core: tests/index_model.rs", "failed"): 1,
        ("cachelb_core: tests/index_model.rs", "skipped"): 2,
        ("doctests of cachelb_core", "passed"): 4,
    }


def test_junit_reports_are_counted_by_folder(tmp_path: Path) -> None:
    report = tmp_path / "test.xml"
    report.write_text(REPORT)
    assert list(RAN.python_cases([report])) == [
        ("tests/library/index", "passed", 0.5),
        ("tests/library/index", "skipped", 1.0),
        ("tests/hostile", "failed", 2.0),
        ("python", "passed", 0.1),
    ]


def test_suites_are_crates_with_tests_and_folders_with_tests() -> None:
    root = Path(RAN.ROOT)
    assert {"cachelb_core", "cachelb_core: tests/index_model.rs", "cachelb_c: tests/header.rs"} <= {
        *RAN.rust_suites(root)
    }
    assert "_core" not in RAN.rust_suites(root)
    folders = set(RAN.python_suites(root))
    assert {"python", "tests/tooling", "tests/library/index"} <= folders
    assert not folders & {"tests", "tests/engine", "tests/library"}
