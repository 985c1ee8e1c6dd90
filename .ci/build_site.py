"""Build the documentation site into target/site, and fail on whatever in it leads nowhere.

Zensical's strict mode finds links to pages, anchors and names of the reference that lead nowhere. Links to other files,
malformed addresses, users' pages that no menu shows, and public names that no page of the reference has are found here.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib
import inspect
import json
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click
import yaml
from click.testing import CliRunner

from cachelb import Router
from cachelb.cli import main as commands
from cachelb.metrics.families import families
from cachelb.policies import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / name for name in ("python", "gateway", "lab", "fakes")]
STAGE = ROOT / "target" / "site-src"
SITE = ROOT / "target" / "site"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("rust/capi/include", "rust/capi/samples", "rust/THIRD-PARTY-LICENSES.txt")
COPIED = (*PAGES, "LICENSE", "deploy", "docs", "examples", *LINKED)
MAINTAINERS = "docs/maintainers/"
HELP = "<!-- The site has the output of --help here. -->\n"
METRICS = "<!-- The site has the table of all metrics here. -->\n"
WIDTH = 88


def stage() -> None:
    """Copy what the site shows as it lies in the repository, so that relative links hold in both."""
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, STAGE / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (STAGE / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, STAGE / name)
    own = {entry.name: entry.load() for entry in entry_points(group=commands.GROUP)}
    sections = [section("cachelb", commands.listing())]
    for name, command in sorted(own.items()):
        sections += helps(("cachelb", name), command)
    fill("cli.md", HELP, "\n".join(sections))
    fill("observability.md", METRICS, metrics())


def fill(name: str, mark: str, made: str) -> None:
    """Replace a line of a page of the reference."""
    page = STAGE / "docs" / "reference" / name
    text = page.read_text("utf-8")
    if mark not in text:
        message = f"{name} lacks the line {mark!r}"
        raise ValueError(message)
    page.write_text(text.replace(mark, made), "utf-8")


def metrics() -> str:
    """Make the table of all metrics."""
    made = families(Router(["gpu0"]).stats())
    rows = [f"| `{f.name}` | {f.kind} | {', '.join(f.labels)} | {f.unit.strip('{}')} | {f.help} |" for f in made]
    return "\n".join(["| metric | kind | labels | unit | |", "|---|---|---|---|---|", *rows, ""])


def section(name: str, shown: str) -> str:
    """Give the help of a command below its name."""
    return f"## {name}\n\n```text\n{shown.rstrip()}\n```\n"


def helps(words: tuple[str, ...], command: click.Command) -> list[str]:
    """Give the help of a command and of those below it, a section each."""
    result = CliRunner().invoke(command, ["--help"], prog_name=" ".join(words), terminal_width=WIDTH)
    sections = [section(" ".join(words), result.output)]
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            sections += helps((*words, name), child)
    return sections


def entries(nav: object) -> list[str]:
    """List the pages of a menu, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [page for part in parts for page in entries(part)]


def menu_problems() -> list[str]:
    """Compare the menu with the pages there are."""
    listed = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    there = {page.relative_to(STAGE).as_posix() for page in STAGE.rglob("*.md")}
    problems = [f"mkdocs.yml lists {page}, which is not there" for page in sorted(set(listed) - there)]
    problems += [f"mkdocs.yml lists {page} twice" for page in sorted({p for p in listed if listed.count(p) > 1})]
    unlisted = [page for page in sorted(there - set(listed)) if not page.startswith(MAINTAINERS)]
    return problems + [f"mkdocs.yml does not list {page}" for page in unlisted]


class Links(HTMLParser):
    """The links and images of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address."""
        if tag in {"a", "img"}:
            self.found += [value for name, value in attrs if name in {"href", "src"} and value]


def link_problems() -> list[str]:
    """List the links to files that the site lacks, and the addresses of other sites that are none."""
    problems = []
    for page in sorted(SITE.rglob("*.html")):
        for link in Links(page).found:
            url = urlsplit(link)
            if url.scheme in {"http", "https"}:
                is_right = url.scheme == "https" and "." in (url.hostname or "")
            else:
                file = SITE / url.path[1:] if url.path.startswith("/") else page.parent / unquote(url.path)
                is_right = not url.scheme and (file.is_file() or (file / "index.html").is_file() or not url.path)
            if not is_right:
                problems.append(f"{page.relative_to(SITE)}: {link} leads nowhere")
    return problems


def documented() -> set[str]:
    """Read the names that the built reference has from its inventory."""
    *_, body = (SITE / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split(" ", 1)[0] for line in zlib.decompress(body).decode().splitlines()}


def exporting(source: Path) -> list[str]:
    """List the modules in a folder of packages that have an `__all__`."""
    names = [
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in sorted(source.rglob("*.py"))
        if "\n__all__ = " in path.read_text("utf-8")
    ]
    return [name.removesuffix(".__init__") for name in names]


def public() -> dict[str, object]:
    """Import every name of every `__all__` in the packages."""
    modules = [importlib.import_module(name) for source in SOURCES for name in exporting(source)]
    return {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}


def places(names: Mapping[str, object], name: str) -> list[str]:
    """List where the reference may show a name: there, in the module of its name, or where it is public too."""
    value = names[name]
    others = [other for other, its in names.items() if its is value and not isinstance(value, str | int | tuple)]
    # A function in the module of its name is shown there: Griffe takes the short name for the module.
    short = name.rpartition(".")[2]
    return [f"{name}.{short}", name, f"{getattr(value, '__module__', '')}.{short}", *others]


def reference_problems() -> list[str]:
    """List the public names that no page of the reference has, and special methods that one has."""
    there, names = documented(), public()
    shown = {
        name for name in names if name.rpartition(".")[2].startswith("__") or there.intersection(places(names, name))
    }
    problems = [f"no page has {name}" for name in names if name not in shown]
    problems += [f"the reference shows {name}" for name in sorted(there) if name.rpartition(".")[2].startswith("__")]
    return problems + signature_problems(shown_signatures(SITE / "docs" / "reference"))


class Signatures(HTMLParser):
    """The signatures that a page of the reference shows, by the name of its heading."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.name = ""
        self.depth = 0
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the name of a heading, and where a signature begins."""
        kinds = (dict(attrs).get("class") or "").split()
        if "doc-heading" in kinds:
            self.name = dict(attrs).get("id") or ""
        elif "doc-signature" in kinds:
            self.depth = 1
            self.found[self.name] = ""
        elif tag == "div":
            self.depth += bool(self.depth)

    def handle_endtag(self, tag: str) -> None:
        """Note where a signature ends."""
        self.depth -= bool(self.depth) and tag == "div"

    def handle_data(self, data: str) -> None:
        """Keep the text of a signature."""
        if self.depth:
            self.found[self.name] += data


def shown_signatures(folder: Path) -> dict[str, str]:
    """Read the signatures that the built reference shows, by name."""
    pages = sorted(folder.rglob("*.html"))
    return {name: text for page in pages for name, text in Signatures(page).found.items()}


def signature_problems(shown: Mapping[str, str]) -> list[str]:
    """List the arguments and defaults of public classes and functions that no signature of the reference shows."""
    problems, names = [], public()
    for name, value in names.items():
        expected = dict(wanted(value))
        text = next((shown[path] for path in places(names, name) if path in shown), "") if expected else ""
        called = ast.parse(f"def {text.strip() or '_()'}: ...").body[0]
        there = dict(parameters(called)) if isinstance(called, ast.FunctionDef) else {}
        for argument, default in expected.items():
            if argument not in there:
                problems.append(f"the reference shows no argument {argument} of {name}")
            elif default is not None and there[argument] != default and is_literal(there[argument]):
                problems.append(f"the reference shows {name}({argument}={there[argument]}), not {default}")
    return problems


def parameters(called: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """List the arguments of a signature with their defaults, empty where there is none."""
    given, named = called.args.posonlyargs + called.args.args, called.args.kwonlyargs
    lacking: list[ast.expr | None] = [None] * (len(given) - len(called.args.defaults))
    for argument, default in (
        *zip(given, (*lacking, *called.args.defaults), strict=True),
        *zip(named, called.args.kw_defaults, strict=True),
    ):
        yield argument.arg, "" if default is None else plain(ast.unparse(default))


def is_literal(default: str) -> bool:
    """Return whether a default is written as a value, not as an expression such as `1 << 20`."""
    try:
        ast.literal_eval(default or "None")
    except (ValueError, SyntaxError):
        return False
    return True


def plain(default: str) -> str:
    """Write a number, text or the like in one way only."""
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(default)
        return repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)
    return default


def wanted(value: object) -> Iterator[tuple[str, str | None]]:
    """List the arguments that a reader must find, with the defaults that are plain values, else None."""
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return
    if inspect.isclass(value):
        is_called = not issubclass(value, BaseException | enum.Enum) and not getattr(value, "_is_protocol", False)
        made_by = getattr(value.__init__, "__module__", "cachelb")
        if not is_called or not made_by.startswith("cachelb"):
            return
    keywords = getattr(value, "keywords", None)
    if inspect.isclass(value) and issubclass(value, BuiltinPolicy) and keywords is not None:
        yield from ((name, plain(repr(default))) for name, (_, _, default, _) in keywords().items())
        return
    for parameter in inspect.signature(value).parameters.values():
        is_named = parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if is_named and not parameter.name.startswith("_"):
            is_plain = isinstance(parameter.default, bool | int | float | str | None)
            yield parameter.name, plain(repr(parameter.default)) if is_plain else None


def search_problems() -> list[str]:
    """List what a search must find, and does not."""
    titles = {each["title"] for each in json.loads((SITE / "search.json").read_bytes())["items"]}
    missing = {"cachelb.Router", "Admission", "Public traces"} - titles
    return [f"no search finds {title!r}" for title in sorted(missing)]


def main() -> int:
    """Stage, build, check."""
    stage()
    problems = menu_problems()
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False)
    problems += (
        [*link_problems(), *reference_problems(), *search_problems()] if built.returncode == 0 else ["the build failed"]
    )
    print("\n".join(problems) or f"site: {len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
