"""Every public name has a docstring with an example; the doctests run the examples."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [ROOT / name for name in ("python", "gateway", "lab", "fakes")]


def modules() -> list[str]:
    """Name the modules that have an `__all__`, without importing them."""
    files = ((source, file) for source in SOURCES for file in source.rglob("*.py"))
    found = [file.relative_to(source).with_suffix("").parts for source, file in files if has_names(file)]
    return sorted(".".join(parts).removesuffix(".__init__") for parts in found)


def has_names(file: Path) -> bool:
    """Tell whether a module has an `__all__`."""
    return "\n__all__ = " in file.read_text("utf-8")


def stub_docs() -> dict[str, str]:
    """Return the stub's docstring of each class and function of the extension, methods included."""
    tree = ast.parse((ROOT / "python" / "cachelb" / "_core.pyi").read_text("utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {
        each.name: "\n".join(ast.get_docstring(inner) or "" for inner in ast.walk(each) if isinstance(inner, kinds))
        for each in tree.body
        if isinstance(each, kinds)
    }


STUB = stub_docs()


def docs(value: object) -> str:
    """Return the docstrings of a class and its public methods, or of a function."""
    of_methods = []
    if inspect.isclass(value):
        members = [member for name, member in vars(value).items() if not name.startswith("_") or name == "__init__"]
        of_methods = [inspect.getdoc(member) or "" for member in members]
    own = value.__doc__ or ""
    native = STUB.get(getattr(value, "__name__", ""), "") if ">>>" not in own else ""
    return "\n".join([own, *of_methods, native])


@pytest.mark.parametrize("module", modules())
def test_every_public_name_says_what_it_is_and_shows_it(module: str) -> None:
    public: ModuleType = importlib.import_module(module)
    named = {name: getattr(public, name) for name in public.__all__}
    told = {
        name: docs(value)
        for name, value in named.items()
        if not isinstance(value, ModuleType) and (inspect.isclass(value) or inspect.isroutine(value))
    }
    assert [name for name, text in told.items() if not text.strip()] == [], "without a docstring"
    assert [name for name, text in told.items() if ">>>" not in text] == [], "without an example"


def test_the_names_checked_are_those_that_users_import() -> None:
    found = modules()
    assert {"cachelb", "cachelb.policies", "cachelb.events", "cachelb.state", "cachelb_lab.sim", "cachelb_fakes"} < {
        *found
    }
    assert importlib.import_module("cachelb").__all__
