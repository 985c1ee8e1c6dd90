"""Python programs beside a test."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def check_of_ci(name: str) -> ModuleType:
    """Import a program of the folder `.ci`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def running(*words: str, errors: int | None = None) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a program; yield it and what it prints, and kill it in the end."""
    command = [sys.executable, "-u", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            process.kill()


@contextlib.contextmanager
def example(name: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], str]]:
    """Run an example; yield its address too."""
    path = str(EXAMPLES / f"{name}.py")
    with running(path, *words, "--port", "0", errors=subprocess.STDOUT) as (process, output):
        yield process, output, next(filter(None, (re.search(r"http://[\d.]+:\d+", line) for line in output)))[0]
