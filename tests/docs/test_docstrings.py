"""Args, Returns, Raises, Yields and Attributes stand only in the docstrings of names that users import.

These come from `cachelb.__all__` and from the directives of docs/reference, without importing a module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / name for name in ("python", "gateway", "lab", "fakes")]
DIRECTIVE = re.compile(r"^::: (?P<name>\S+)\n(?P<options>(?: {4}.*\n?)*)", re.MULTILINE)
MEMBER = re.compile(r"^ +- (\w+)$", re.MULTILINE)
SECTION = re.compile(r"^(?:Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)
# Modules that still have sections of internal names.
UNTRIMMED = {
    *(
        "cachelb_gateway.doctor.client",
        "cachelb.events.discovery",
        "cachelb.policies.custom",
        "cachelb.policies.learned",
    ),
    *("cachelb.policies.plan", "cachelb.policies.plugins", "cachelb.sources.poller"),
    "cachelb.sources.prometheus_text",
}
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def tree(module: str) -> ast.Module:
    """Parse a module or package; empty where no file has that name."""
    paths = [source / module.replace(".", "/") for source in SOURCES]
    files = (file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py"))
    return ast.parse(next((file.read_text("utf-8") for file in files if file.exists()), ""))


def exported(module: str) -> list[str]:
    """List a module's `__all__`, or without one the classes and functions it defines."""
    body = tree(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            # Names that a module computes are those of its stub.
            elements = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
            return [each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [node.name for node in body if isinstance(node, Documented) and not node.name.startswith("_")]


def definitions(module: str, name: str) -> Iterator[Documented]:
    """Follow imports to the definition of a name; of a class, yield the methods and those of its bases too."""
    for node in ast.walk(tree(module)):
        if isinstance(node, Documented) and node.name == name and node in tree(module).body:
            yield node
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, Documented)]
                yield from (each for each in methods if not re.match("_[^_]", each.name))
                for base in node.bases:
                    yield from list(definitions(module, ast.unparse(base).partition("[")[0]))[1:]
        elif isinstance(node, ast.AnnAssign) and node in tree(module).body and ast.unparse(node.target) == name:
            for each in ast.walk(node.value or ast.Pass()):
                if isinstance(each, ast.Name):
                    yield from definitions(module, each.id)
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module != module  # a module in this package
            and name in {each.asname or each.name for each in node.names}
        ):
            yield from definitions(node.module or "", name)


def public() -> set[Documented]:
    names = [("cachelb", name) for name in exported("cachelb")]
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for directive in DIRECTIVE.finditer(page.read_text("utf-8")):
            module, _, name = directive["name"].rpartition(".")
            if not tree(directive["name"]).body or (name in exported(module) and name != "policies"):
                names.append((module, name))
            else:
                members = MEMBER.findall(directive["options"]) or exported(directive["name"])
                names += [(directive["name"], member) for member in members]
    return {node for module, name in names for node in definitions(module, name)}


def test_only_imported_names_have_sections_of_arguments_and_results() -> None:
    imported = public()
    files = (path.relative_to(source).with_suffix("") for source in SOURCES for path in source.rglob("*.py"))
    nodes = {
        node: f"{module}.{node.name}"
        for module in {".".join(file.parts).removesuffix(".__init__") for file in files} - UNTRIMMED
        for node in ast.walk(tree(module))
        if isinstance(node, Documented) and SECTION.search(ast.get_docstring(node) or "")
    }
    assert sorted(name for node, name in nodes.items() if node not in imported) == []
    assert {"cachelb.router.router.add_worker", "cachelb_lab.sim.fleet.FleetSpec"} <= set(nodes.values())
