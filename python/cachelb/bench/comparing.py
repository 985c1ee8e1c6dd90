"""Runs every task, with the list of contenders."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cachelb.arguments import whole
from cachelb.bench.rivals import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.bench.rows import Row

TASKS: Final = ("hashing", "matching", "selecting", "events", "threads", "memory", "answers")
LEAST_CALLS: Final = 8
MOST_CALLS: Final = 1_000_000

_PACKAGES: Final = ("cachelb", "ai-dynamo-runtime", "ray", "litellm", "numpy")


@dataclass(frozen=True)
class Report:
    """Everything that was measured in one run."""

    rows: list[Row]
    machine: str
    versions: dict[str, str]
    missing: list[str] = field(default_factory=list)  # packages to install for the absent contenders

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}


def compare(tasks: Sequence[str] = TASKS, *, calls: int = 400, progress: Callable[[str], None] | None = None) -> Report:
    """Measure cachelb beside the alternatives that are installed, with at least 8 calls per contender and size.

    Example:
        >>> from cachelb.bench import compare
        >>> report = compare(["hashing"], calls=8)
        >>> {row.task for row in report.rows} == {"hash/512", "hash/2048", "hash/32768"}
        True
    """
    for task in tasks:
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; choose of {', '.join(TASKS)}")
    whole("calls", calls, LEAST_CALLS, MOST_CALLS)
    rows: list[Row] = []
    for task in tasks:
        if progress is not None:
            progress(task)
        rows += import_module(f"cachelb.bench.measures.{task}").measure(calls)
    return Report(rows, _machine(), _versions(), missing())


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
