"""Programs beside a benchmark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from subprocess import PIPE, Popen


@contextmanager
def program(
    *words: str, environment: Mapping[str, str] | None = None, by: Sequence[str] = (sys.executable, "-u")
) -> Iterator[tuple[Popen[str], str]]:
    """Run a program, of Python or `by` another one; yield it and the address that its first line ends with."""
    command = [*by, *words]
    with Popen(command, stdout=PIPE, text=True, env={**os.environ, **(environment or {})}) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().split()[-1]
        finally:
            running.terminate()
