"""Old import paths lead to the modules of today, with a warning, or name the line that installs them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from cachelb.common.moved import MOVED, NAMES

MODULES = [name for name in MOVED if not name.endswith(".__main__")]
NAMES_BY_MODULE = {":".join(old.rsplit(".", 1)): new for old, new in NAMES.items()}
WARNING = r"^{} has moved to {}; the old name goes in cachelb 0\.5$"


@pytest.mark.parametrize("old", MODULES)
def test_old_module_is_the_new_one(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{old}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(DeprecationWarning, match=WARNING.format(old, MOVED[old])) as warned:
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__name__ == getattr(module.__spec__, "name", None) == MOVED[old]
    assert len(warned) == 1


@pytest.mark.parametrize(("old", "new"), NAMES_BY_MODULE.items())
def test_old_name_is_the_new_one(old: str, new: str) -> None:
    module, _, name = old.partition(":")
    with pytest.warns(DeprecationWarning, match=WARNING.format(f"{module}.{name}", new)):
        assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(new), name)


def test_modules_below_an_old_one_are_imported_once() -> None:
    with pytest.warns(DeprecationWarning, match="has moved"):
        old = importlib.import_module("cachelb.testing.fleet.tokens")
    assert old is importlib.import_module("cachelb_fakes.fleet.tokens")


ELSEWHERE = [
    *(old for old in MODULES if not MOVED[old].startswith("cachelb.")),
    *(old for old, new in NAMES_BY_MODULE.items() if not new.startswith("cachelb.")),
]


@pytest.mark.parametrize("old", ELSEWHERE)
def test_missing_distribution_is_named_with_the_line_that_installs_it(old: str) -> None:
    module, _, name = old.partition(":")
    new = MOVED.get(module) or NAMES_BY_MODULE[old]
    package = new.partition(".")[0]
    code = f"import sys; sys.modules[{package!r}] = None\nfrom {module} import {name or 'anything'}"
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 1
    text = f"{old.replace(':', '.')} has moved to {new}: pip install {package.replace('_', '-')}"
    assert f"ModuleNotFoundError: {text}" in run.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [("cachelb.testing.fleet", "cachelb_fakes"), ("cachelb.integrations.ext_proc", "cachelb_gateway.ext_proc")],
)
def test_a_program_of_an_old_path_runs(old: str, new: str) -> None:
    run = subprocess.run([sys.executable, "-m", old, "--help"], check=True, capture_output=True, text=True)
    assert run.stdout.startswith(f"usage: python -m {new} ")
