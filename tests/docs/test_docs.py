"""Every Python block of README and docs runs and prints the output on the page; so do the examples of the stub.

Each block stands by itself, but for the pages in `PROGRAMS`: theirs share their names, from top to bottom.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import subprocess
import sys

import pytest
from tests.commands import app
from tests.docs.pages import ROOT, Block, blocks

from cachelb.policies import POLICIES

STUB = ROOT / "python" / "cachelb" / "_core.pyi"
PROGRAMS = frozenset({"docs/tutorial.md"})
KINDS = frozenset({"bash", "json", "python", "text", "toml", "yaml"})


def programs() -> list[pytest.ParameterSet]:
    """Collect lists of blocks that run one after the other."""
    found: dict[str, list[Block]] = {}
    for block in blocks("python"):
        found.setdefault(block.page if block.page in PROGRAMS else block.place, []).append(block)
    return [pytest.param(program, id=name) for name, program in found.items()]


def test_blocks_are_of_kinds_that_a_test_reads() -> None:
    assert [block.place for block in blocks() if block.kind not in KINDS] == []


@pytest.mark.parametrize("program", programs())
def test_block_runs_and_prints_what_the_page_says(program: list[Block]) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in program:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.place, "exec"), names)  # noqa: S102 - our own pages
        if block.output is not None:
            assert printed.getvalue() == block.output


def test_every_policy_and_command_is_on_its_page() -> None:
    policies = (ROOT / "docs" / "choosing-a-policy.md").read_text("utf-8")
    assert [name for name in POLICIES if f"`{name}`" not in policies] == []
    commands = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    assert [name for name in app.commands if re.search(rf"`cachelb {name}[` ]", commands) is None] == []


def test_every_option_of_a_policy_to_choose_has_a_line() -> None:
    page = (ROOT / "docs" / "policy-options.md").read_text("utf-8")
    _, rest = page.split("## The rules of other systems")
    published, _ = rest.split("reproduce published rules")
    chosen = [name for name in POLICIES if f"`{name}`" not in published]
    options = {option for name in chosen for option in inspect.signature(POLICIES[name]).parameters} - {"shared"}
    assert "adaptive" in chosen
    assert sorted(option for option in options if re.search(rf"`{option}[`=]", page) is None) == []


def test_times_among_the_results_are_those_of_the_page_that_their_row_links_to() -> None:
    results = ROOT / "docs" / "results.md"
    rows = [line.split(" | ") for line in results.read_text("utf-8").splitlines() if line.startswith("| [")]
    times = 0
    for traffic, _, *cells in (row for row in rows if len(row) == 5):
        (link,) = re.findall(r"\]\(([^)#]+)", traffic)
        source = (results.parent / link).read_text("utf-8")
        for time in re.findall(r"[\d.,]+(?= m?s)", " ".join(cells)):
            assert re.search(rf"(?<![\d.]){re.escape(time)}(?!\d)", source), f"{link} has no {time}"
            times += 1
    assert times >= 14


def test_picture_of_the_architecture_is_as_its_script_draws_it() -> None:
    script = ROOT / ".ci" / "architecture.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def stub_examples() -> list[pytest.ParameterSet]:
    """Collect the docstrings of the stub, whose examples no module holds for pytest to find."""
    parser = doctest.DocTestParser()
    found = []
    for node in ast.walk(ast.parse(STUB.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            name = getattr(node, "name", "module")
            example = parser.get_doctest(text, {}, name, str(STUB), 0)
            found += [pytest.param(example, id=name)] if example.examples else []
    return found


@pytest.mark.parametrize("example", stub_examples())
def test_stub_example_runs(example: doctest.DocTest) -> None:
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=report.write)
    assert runner.failures == 0, report.getvalue()
