"""`.ci/rooms.py`: each check finds its fault in a tiny tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import check_of_ci

ROOMS = check_of_ci("rooms")
CORE, PACKAGE = "rust/core/src/", "python/cachelb/"
RUST = """//! About.
use crate::b::B; // a { comment

#[cfg(test)]
fn probe() -> [u8; 2] {
    crate::c::probe('{', "}")
}

/* fn gone() {} */
pub fn size(text: &'static str) -> usize {
    text.len() + "// no comment {".len()
}

#[cfg(test)]
#[path = "tests/a.rs"]
mod tests;
"""
PYTHON = '''"""About.

More.
"""

import os


def f() -> str:
    """Doc."""
    # why
    return """a
b"""
'''


def _sources(root: Path, files: dict[str, str]) -> dict[Path, str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    found: dict[Path, str] = ROOMS.read_sources(root)
    return found


def test_lines_are_code_without_tests_comments_and_docstrings(tmp_path: Path) -> None:
    files = {
        f"{CORE}events/a.rs": RUST,
        f"{CORE}events/tests.rs": "fn a() {}\n",
        f"{PACKAGE}sim/a/b.py": PYTHON,
        f"{PACKAGE}_core.pyi": 'def f() -> str:\n    """Doc."""\n',
        "tests/test_a.py": "a = 1\n",
    }
    parts = ROOMS.count_lines(_sources(tmp_path, files))
    assert parts == {"rust/core/events": 4, "python/cachelb/sim": 4, "python/cachelb": 1}
    assert list(ROOMS.check_size(parts, 9)) == []
    (problem,) = ROOMS.check_size(parts, 8)
    assert problem.startswith("the product has 9 code lines, 8 are allowed")


def test_folders_have_limits_of_their_own() -> None:
    parts = {"python/cachelb": 9, "python/cachelb/router": 2, "lab/cachelb_lab": 50}
    assert list(ROOMS.check_folders(parts, {"python": 11})) == []
    (problem,) = ROOMS.check_folders(parts, {"python": 10, "lab": 50})
    assert problem.startswith("python has 11 code lines, 10 are allowed")


def test_the_library_is_what_needs_no_feature_and_no_server() -> None:
    library = ["python/cachelb/state/mesh.py", "rust/policy/src/rules/adaptive.rs", "rust/py/src/router/select.rs"]
    beside = ["rust/cachelb/src/sharing/messages/words.rs", "rust/py/src/router/share.rs", "rust/py/src/sim/mod.rs"]
    others = ["rust/sim/src/lib.rs", "lab/cachelb_lab/probe.py", "rust/learned/src/lib.rs"]
    paths = [Path(name) for name in [*library, *beside, *others]]
    assert [path.as_posix() for path in paths if ROOMS.is_library(path)] == library
    root = Path(__file__).resolve().parents[2]
    assert [part for part in ROOMS.BESIDE if not any(root.glob(f"{part}*"))] == []


def test_long_files_are_named_and_listed_ones_may_only_shrink(tmp_path: Path) -> None:
    lines = {"rust/a.rs": 601, "tests/b.py": 600, "tests/c.py": 700, "python/d.py": 600, "python/e.pyi": 601}
    sources = _sources(tmp_path, {name: "\n" * count for name, count in lines.items()})
    assert set(ROOMS.check_files(sources, {"tests/c.py": 699, "python/d.py": 650, "python/gone.py": 601})) == {
        "rust/a.rs has 601 lines, at most 600 are allowed: split it",
        "tests/c.py has 700 lines, at most 699 are allowed: split it",
        "python/d.py is not above 600 lines any more: take it out of LONG",
        "python/gone.py is not above 600 lines any more: take it out of LONG",
    }


def test_flat_folders_of_the_product_are_named(tmp_path: Path) -> None:
    folders = {"rust/a/src": 16, "rust/b/src": 15, "tests/c": 30}
    sources = _sources(tmp_path, {f"{folder}/{at}.rs": "" for folder, files in folders.items() for at in range(files)})
    assert list(ROOMS.check_flat(sources)) == ["rust/a/src has 16 files, at most 15 are allowed: group them in folders"]


def _rust(**texts: str) -> dict[str, str]:
    return {f"{CORE}{name.replace('_', '/')}.rs": text for name, text in texts.items()}


def _python(**texts: str) -> dict[str, str]:
    return {f"{PACKAGE}{name}.py": text for name, text in texts.items()}


TYPED = "if TYPE_CHECKING:\n    import cachelb.a"
LAZY = "class C:\n    def f():\n        with x:\n            import cachelb.a"
TRIED = "try:\n    from cachelb.a import A\nexcept ImportError:\n    A = 0"


@pytest.mark.parametrize(
    ("files", "circles"),
    [
        pytest.param(_rust(a="use crate::b::B;", b="use crate::a::A;"), ["core/a core/b"], id="use"),
        pytest.param(
            _rust(x_a="pub use super::{c::C, b::{self as other, B}};", x_b="use crate::{d, x::a};", x_c="", d=""),
            ["core/x/a core/x/b"],
            id="nested use",
        ),
        pytest.param(
            _rust(x_a="fn f() { super::super::b::g() }", b="fn f() -> crate::x::a::A {}"),
            ["core/b core/x/a", "core/b core/x"],
            id="inline path",
        ),
        pytest.param(
            _rust(a_x="use crate::b::y::Y;", b_z="use crate::a::w::W;", a_w="", b_y=""),
            ["core/a core/b"],
            id="parts without a circle of files",
        ),
        pytest.param(
            _rust(a=RUST, b="use crate::c::C;", c='// crate::a::A\nfn f() { "crate::a" }'),
            [],
            id="tests, comments and strings",
        ),
        pytest.param(
            _rust(a="use crate::b::B;", b="", b_tests="use crate::a::A;", b_testing="use crate::a::A;"),
            [],
            id="files of tests",
        ),
        pytest.param(
            _rust(lib="pub use a::A;", a="use self::x::X;", a_x="use super::A; pub(in crate::a) fn f() {}"),
            [],
            id="a module and its own",
        ),
        pytest.param(_python(a="from cachelb import b", b=TRIED), ["cachelb/a cachelb/b"], id="python"),
        pytest.param(_python(a="import cachelb.b", b=TYPED), [], id="python, for types alone"),
        pytest.param(_python(a="import cachelb.b", b=LAZY), ["cachelb/a cachelb/b"], id="python, lazily"),
    ],
)
def test_circles_are_found(tmp_path: Path, files: dict[str, str], circles: list[str]) -> None:
    sources = _sources(tmp_path, files)
    new = {f"a new or larger import circle: {circle}" for circle in circles}
    assert set(ROOMS.check_circles(sources, [])) == new
    assert list(ROOMS.check_circles(sources, [" ".join(reversed(circle.split())) for circle in circles])) == []
    gone = "an import circle is gone: take it out of CIRCLES: core/a core/gone"
    assert set(ROOMS.check_circles(sources, ["core/gone core/a"])) == {*new, gone}


def test_names_with_a_listed_word_may_not_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        f"{CORE}told.rs": "struct Heard { last_told: u8 }\nfn f(told: u8) { told::<u8>(); let mut untellable = 1; }",
        f"{CORE}tests.rs": "fn told() {}",
        f"{PACKAGE}a.py": "class Told: pass\ndef f(told): self.told_by = told; KVTold = 'told'\n",
    }
    sources = _sources(tmp_path, files)
    assert list(ROOMS.check_words(sources, {"told tell": ("published", 6), "heard": ("received", 3)})) == []
    assert capsys.readouterr().out == "1 names have a form of 'heard': lower 3 in WORDS to it\n"
    (problem,) = ROOMS.check_words(sources, {"told tell": ("published", 5)})
    first, *places = problem.splitlines()
    assert first == "6 names have a form of 'told tell', 5 are allowed: use published"
    assert {place.rpartition(": ")[2] for place in places} == {"KVTold", "Told", "told", "told_by", "last_told"}
