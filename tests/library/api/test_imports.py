"""Modules that `import cachelb` may pull in."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import cachelb

LIST_MODULES = "import sys, json, cachelb; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def test_import_pulls_in_no_third_party_package() -> None:
    run = subprocess.run([sys.executable, "-c", LIST_MODULES], check=True, capture_output=True, text=True)
    baseline = subprocess.run(
        [sys.executable, "-c", LIST_MODULES.replace(", cachelb", "")], check=True, capture_output=True, text=True
    )
    pulled_in = set(json.loads(run.stdout)) - set(json.loads(baseline.stdout)) - {"cachelb"}
    assert pulled_in <= sys.stdlib_module_names, f"third party: {sorted(pulled_in - sys.stdlib_module_names)}"


def test_version_is_that_of_the_distribution() -> None:
    assert cachelb.__version__ == importlib.metadata.version("cachelb")


def test_all_names_exist_and_are_sorted() -> None:
    assert [name for name in cachelb.__all__ if not hasattr(cachelb, name)] == []
    assert list(cachelb.__all__) == sorted(cachelb.__all__)
