"""`help()` of the extension shows the docstrings of its stub."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from cachelb import Decision, Router, _core

STUB = Path(_core.__file__ or "").with_name("_core.pyi")


def documented() -> list[tuple[str, str]]:
    """Dotted names of the stub that have a docstring, with it."""
    found: list[tuple[str, str]] = []
    for node in ast.parse(STUB.read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        members = node.body if isinstance(node, ast.ClassDef) else []
        names = [(node.name, node), *((f"{node.name}.{each.name}", each) for each in members if hasattr(each, "name"))]
        texts = ((name, ast.get_docstring(each)) for name, each in names)  # type: ignore[arg-type]
        found += [(name, text) for name, text in texts if text and not name.endswith("__")]
    return found


@pytest.mark.parametrize(("name", "text"), documented(), ids=[name for name, _ in documented()])
def test_help_shows_the_text_of_the_stub(name: str, text: str) -> None:
    native: object = _core
    for part in name.split("."):
        native = getattr(native, part)
    assert inspect.getdoc(native) == text


def test_help_of_what_users_call_most_has_arguments_units_and_errors() -> None:
    select, complete = inspect.getdoc(Router.select_worker) or "", inspect.getdoc(Decision.on_complete) or ""
    assert "Args:" in select
    assert "NoWorkerAvailable" in select
    assert "cached_tokens: " in complete
    assert "Reports of engines are checked" in complete
    assert "Raises:" in (inspect.getdoc(Decision.on_tokens) or "")
