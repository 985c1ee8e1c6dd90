"""The notebooks in examples/ run from top to bottom and print what they hold."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 100_000


class Frame(dict[str, Any]):
    """The part of pandas that notebooks use: a list of names selects columns."""

    def __getitem__(self, names: str | list[str]) -> Any:
        return Frame((name, self[name]) for name in names) if isinstance(names, list) else super().__getitem__(names)


def run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last line, which Jupyter shows."""
    tree = ast.parse(code)
    *_, last = tree.body
    if not isinstance(last, ast.Expr):
        return exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own notebook
    tree.body.remove(last)
    exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in NOTEBOOKS])
def test_notebook_runs_and_prints_what_it_holds(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    display = SimpleNamespace(SVG=ET.fromstring)
    # Jupyter's own, and pandas: neither is among the packages that the tests need.
    for name, module in {
        "IPython": SimpleNamespace(display=display, version_info=(9, 0)),
        "IPython.display": display,
        "pandas": SimpleNamespace(DataFrame=Frame),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert path.stat().st_size < LARGEST
    notebook = json.loads(path.read_text("utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                shown.append(run("".join(cell["source"]), names))
            assert printed.getvalue() == "".join("".join(each["text"]) for each in cell["outputs"])
    frame, picture = filter(lambda value: value is not None, shown)
    assert [len(column) for column in frame.values()] == [3] * len(frame)
    assert picture.tag.endswith("svg")
