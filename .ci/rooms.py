"""Check the source of the product: its size, the length of its files, import circles and words.

    python .ci/rooms.py --most-lines 70000

Lines are code lines: no blanks, comments, docstrings or tests. The second column is the library, without features.
LONG, CIRCLES and WORDS are the exceptions of today, and they only shrink: the check fails on anything beyond them, and
on a long file or a circle that is listed but gone.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

FOLDERS: Final = ("rust", "python", "gateway", "lab", "fakes", "tests")
MOST_FILE_LINES: Final = 600
MOST_FILES: Final = 15
# The library without features, and what of it a feature or a server has for itself: folders, and files without suffix.
LIBRARY: Final = ("python", "rust/body", "rust/cachelb", "rust/core", "rust/events", "rust/policy", "rust/py")
BESIDE: Final = (
    "rust/cachelb/src/bookings/copying",
    "rust/cachelb/src/indexes/naming",
    "rust/cachelb/src/select/source",
    "rust/cachelb/src/sharing",
    "rust/events/src/tensorrt_llm",
    "rust/policy/src/published",
    "rust/policy/src/rules/learned",
    "rust/py/src/decision/peers",
    "rust/py/src/ext_proc",
    "rust/py/src/gateway",
    "rust/py/src/router/keep",
    "rust/py/src/router/share",
    "rust/py/src/serving",
    "rust/py/src/sim",
)
# Code lines of a folder, and of the library; one that is exceeded is shortened, or what is no part of it moves.
MOST_LINES: Final[Mapping[str, int]] = {"python": 12_650, "library": 58_750}
LONG: Final[Mapping[str, int]] = {}
CIRCLES: Final[tuple[str, ...]] = ()
# Forms of a word; the words of the field in its place; the number of names that have it.
WORDS: Final[Mapping[str, tuple[str, int]]] = {
    "tell tells telling told untold": ("publish, report, remote", 13),
    "hear heard hearing hears hearsay": ("receive, remote", 5),
    "say said saying says": ("publish, announce", 9),
    "standing": ("eligibility, fleet state", 1),
    "sight": ("fleet state", 0),
    "trail trails": ("trace", 0),
    "desk desks": ("relay", 0),
    "worth": ("trust", 4),
    "reach": ("scope, eligible", 8),
    "fed": ("with events", 5),
    "ahead": ("early", 2),
    "offer offers": ("candidate", 27),
    "unproven": ("doubtful, speculative", 0),
    "nobody somebody whoever": ("none, worker, router, client", 0),
}
NO_CODE: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
RUST_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\[^\n]+?|[^\\'\n])'""", re.DOTALL)
RUST_USE = re.compile(r"\buse\s+((?:crate|super|self)\b[^;]*);")
RUST_PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
RUST_NAME = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|mod|const|static|let(?:\s+mut)?)\s+([A-Za-z]\w*)|\b([a-z]\w*)\s*:(?!:)"
)


def read_sources(root: Path) -> dict[Path, str]:
    """Read the Rust and Python files of the product and its tests, by path below the root."""
    files = (file for folder in FOLDERS for file in (root / folder).rglob("*"))
    return {
        file.relative_to(root): file.read_text("utf-8")
        for file in sorted(files)
        if file.suffix in {".rs", ".py", ".pyi"}
    }


def is_product(path: Path) -> bool:
    """Tell whether a file is part of the product, not of its tests."""
    rust_tests = path.suffix == ".rs" and path.name in {"tests.rs", "testing.rs"}
    return path.parts[0] != "tests" and "tests" not in path.parts and not rust_tests


def is_library(path: Path) -> bool:
    """Tell whether a file is part of the library that needs no feature."""
    library, beside = (any(path.with_suffix("").is_relative_to(part) for part in parts) for parts in (LIBRARY, BESIDE))
    return library and not beside


def rust_code(source: str) -> str:
    """Return Rust without comments, contents of strings, and items under `#[cfg(test)]`."""
    code = RUST_TEXT.sub(lambda found: "" if found[0][0] == "/" else re.sub(r"[^\n\"']", "_", found[0]), source)
    kept = []
    while (start := code.find("#[cfg(test)]")) >= 0:
        kept.append(code[:start])
        code = code[_end_of_item(code, start) :]
    return "".join([*kept, code])


def _end_of_item(code: str, start: int) -> int:
    """Return the end of an item: its first `;` outside of brackets, or the brace that closes its body."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0 and code[at] in ";}":
            return at + 1
    return len(code)


def python_lines(source: str) -> int:
    """Count lines of Python that are code."""
    documented = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    docs = [node.body[0] for node in documented if ast.get_docstring(node, clean=False) is not None]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for each in tokens if each.type not in NO_CODE for line in range(each.start[0], each.end[0] + 1)}
    return len(code - {line for doc in docs for line in range(doc.lineno, (doc.end_lineno or doc.lineno) + 1)})


def count_lines(sources: Mapping[Path, str]) -> Counter[str]:
    """Count code lines of the product by crate and module, or by package."""
    parts: Counter[str] = Counter()
    for path, source in sources.items():
        if is_product(path):
            rust = path.suffix == ".rs"
            folders = [part for part in path.parts[:-1] if part != "src"][:3]
            lines = sum(bool(line.strip()) for line in rust_code(source).splitlines()) if rust else python_lines(source)
            parts["/".join(folders)] += lines
    return parts


def check_size(parts: Mapping[str, int], most: int) -> Iterator[str]:
    """Compare all code lines with the limit."""
    total = sum(parts.values())
    if total > most:
        yield f"the product has {total:,} code lines, {most:,} are allowed: shorten it, or raise the limit and say why"


def check_folders(parts: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """Compare the code lines of folders with their limits."""
    for folder, most in limits.items():
        total = sum(lines for part, lines in parts.items() if part.partition("/")[0] == folder)
        print(f"{total:8,}  of them in {folder}, {most:,} are allowed")
        if total > most:
            yield f"{folder} has {total:,} code lines, {most:,} are allowed: move or shorten what is no part of it"


def check_files(sources: Mapping[Path, str], long: Mapping[str, int]) -> Iterator[str]:
    """Compare the lengths of all files with the limit, or with those of the longer ones that are known."""
    # A stub is one file, as the extension is.
    lengths = {path.as_posix(): source.count("\n") for path, source in sources.items() if path.suffix != ".pyi"}
    for path, lines in lengths.items():
        most = long.get(path, MOST_FILE_LINES)
        if lines > most:
            yield f"{path} has {lines} lines, at most {most} are allowed: split it"
    for path in long:
        if lengths.get(path, 0) <= MOST_FILE_LINES:
            yield f"{path} is not above {MOST_FILE_LINES} lines any more: take it out of LONG"


def check_flat(sources: Mapping[Path, str]) -> Iterator[str]:
    """Compare the files that lie side by side in a folder of the product with the limit."""
    counts = Counter(path.parent for path in sources if is_product(path) and path.suffix != ".pyi")
    for folder, files in counts.items():
        if files > MOST_FILES:
            yield f"{folder.as_posix()} has {files} files, at most {MOST_FILES} are allowed: group them in folders"


def module_of(path: Path) -> Module:
    """Name the module of a file: its crate or package, then its place in it."""
    parts = [part for part in path.with_suffix("").parts[1:] if part != "src"]
    return tuple(parts[:-1] if parts[-1] in {"mod", "lib", "__init__"} else parts)


def rust_imports(module: Module, source: str) -> Iterator[Module]:
    """Return the paths that a Rust module names, from the crate on."""
    code = re.sub(r"\bpub\s*\(in [^)]*\)", "", rust_code(source))
    paths = [leaf for found in RUST_USE.finditer(code) for leaf in _use_leaves(found[1])]
    paths += [tuple(found[0].split("::")) for found in RUST_PATH.finditer(RUST_USE.sub("", code))]
    for head, *rest in paths:
        base = module[:1] if head == "crate" else module if head == "self" else module[:-1]
        up = next((at for at, part in enumerate(rest) if part != "super"), len(rest))
        yield (*base[: len(base) - up], *rest[up:])


def _use_leaves(tree: str) -> Iterator[Module]:
    """Expand the braces of a `use`."""
    bases: list[Module] = [()]
    path: Module = ()
    is_leaf = False
    for part in re.findall(r"\w+|[{},]", f"{tree},"):
        if part == "{":
            bases.append(path)
        elif part in {",", "}"}:
            if is_leaf:
                yield path
            if part == "}":
                bases.pop()
            path, is_leaf = bases[-1], False
        else:
            path, is_leaf = (*path, part), True


def python_imports(_module: Module, source: str) -> Iterator[Module]:
    """Return the names that a Python module imports, when it is imported or later."""
    waiting: list[ast.stmt] = ast.parse(source).body
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((*(node.module or "").split("."), name.name) for name in node.names)
        elif isinstance(node, ast.If):
            waiting += node.orelse + ([] if "TYPE_CHECKING" in ast.unparse(node.test) else node.body)
        elif isinstance(node, ast.Try):
            waiting += node.body + node.orelse + node.finalbody + [each for one in node.handlers for each in one.body]
        else:
            blocks = (getattr(node, name, []) for name in ("body", "orelse"))
            waiting += [each for block in blocks for each in block if isinstance(each, ast.stmt)]


def import_graph(sources: Mapping[Path, str]) -> Graph:
    """Return the modules that each module of the product imports, but those around it and inside of it."""
    readers = {".rs": rust_imports, ".py": python_imports}
    files = {path: source for path, source in sources.items() if is_product(path) and path.suffix in readers}
    modules = {module_of(path): path for path in files}
    graph: Graph = {module: set() for module in modules}
    for module, path in modules.items():
        for name in readers[path.suffix](module, files[path]):
            target = next((name[:end] for end in range(len(name), 0, -1) if name[:end] in modules), module)
            if target != module[: len(target)] and module != target[: len(module)]:
                graph[module].add(target)
    return graph


def find_circles(graph: Graph) -> set[frozenset[Module]]:
    """Return the strongly connected components of two modules and more."""
    reached = {module: _reachable(graph, module) for module in graph}
    return {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }


def _reachable(graph: Graph, module: Module) -> set[Module]:
    found: set[Module] = set()
    waiting = [module]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def check_circles(sources: Mapping[Path, str], known: Iterable[str]) -> Iterator[str]:
    """Compare the circles of files, and of the parts of crates and packages, with those that are known."""
    graph = import_graph(sources)
    parts: Graph = defaultdict(set)
    for module, targets in graph.items():
        parts[module[:2]] |= {target[:2] for target in targets} - {module[:2]}
    found = {
        " ".join(sorted("/".join(module) for module in each)) for each in find_circles(graph) | find_circles(parts)
    }
    expected = {" ".join(sorted(each.split())) for each in known}
    yield from (f"a new or larger import circle: {each}" for each in sorted(found - expected))
    yield from (f"an import circle is gone: take it out of CIRCLES: {each}" for each in sorted(expected - found))


def rust_names(source: str) -> set[str]:
    """Return the names that Rust defines: items, variables, fields and arguments."""
    return {first or second for first, second in RUST_NAME.findall(rust_code(source))}


def python_names(source: str) -> set[str]:
    """Return the names that Python defines: functions, classes, variables, attributes and arguments."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
    return names


def check_words(sources: Mapping[Path, str], words: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """Compare the number of names, of files too, that have a word with the number that is allowed."""
    found: dict[str, list[str]] = {forms: [] for forms in words}
    readers = {".rs": rust_names, ".py": python_names}
    for path, source in sources.items():
        names = readers[path.suffix](source) | {path.stem} if is_product(path) and path.suffix in readers else ()
        for name in sorted(names):
            parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
            for forms in words:
                if parts & {*forms.split()}:
                    found[forms].append(f"{path.as_posix()}: {name}")
    for forms, (better, most) in words.items():
        if (count := len(found[forms])) > most:
            listed = "\n    ".join(found[forms])
            yield f"{count} names have a form of {forms!r}, {most} are allowed: use {better}\n    {listed}"
        elif count < most:
            print(f"{count} names have a form of {forms!r}: lower {most} in WORDS to it")


def main() -> int:
    """Print the sizes and the problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-lines", type=int, required=True, help="code lines that the product may have")
    given = parser.parse_args()
    sources = read_sources(Path(__file__).resolve().parent.parent)
    parts = count_lines(sources)
    library = count_lines({path: source for path, source in sources.items() if is_library(path)})
    for part, lines in parts.most_common():
        print(f"{lines:8,} {library[part]:8,}  {part}")
    print(f"{parts.total():8,}  code lines of the product, {given.most_lines:,} are allowed")
    problems = [
        *check_size(parts, given.most_lines),
        *check_folders(parts | {f"library/{part}": lines for part, lines in library.items()}, MOST_LINES),
        *check_files(sources, LONG),
        *check_flat(sources),
        *check_circles(sources, CIRCLES),
        *check_words(sources, WORDS),
    ]
    print("\n".join(problems) or "size, files, circles and words: within their limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
