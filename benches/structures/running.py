"""Runs tasks and describes the machine."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cachelb.common.arguments import whole
from cachelb.common.table import Table, Tabular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benches.structures.rows import Row

TASKS: Final = ("hashing", "matching", "selecting", "events", "threads", "memory", "answers")
LEAST_CALLS: Final = 8
MOST_CALLS: Final = 1_000_000

_WITH_EVENTS: Final = ("events", "answers")


@dataclass(frozen=True)
class Report(Tabular):
    """All figures of one run."""

    rows: list[Row]
    machine: str
    versions: dict[str, str]
    missing: list[str] = field(default_factory=list)

    def table(self) -> Table:
        """Return one row per task and contender, as a table."""
        return Table.of(asdict(row) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report in types that JSON has."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}


def measure(
    tasks: Sequence[str] = TASKS, *, calls: int = 400, progress: Callable[[str], None] = lambda _task: None
) -> Report:
    """Measure cachelb's own structures.

    Example:
        >>> from benches.structures import measure
        >>> report = measure(["hashing"], calls=8)
        >>> {row.task for row in report.rows} == {"hash/512", "hash/2048", "hash/32768"}
        True
    """
    return run(
        {task: import_module(f"benches.structures.measures.{task}").measure for task in TASKS},
        tasks,
        calls=calls,
        progress=progress,
        packages=("cachelb", "numpy"),
        missing=[] if can_write_events() or not {*tasks} & {*_WITH_EVENTS} else ["cachelb-fakes"],
    )


def run(
    known: Mapping[str, Callable[[int], Iterable[Row]]],
    tasks: Sequence[str],
    *,
    calls: int,
    progress: Callable[[str], None],
    packages: Sequence[str],
    missing: list[str],
) -> Report:
    """Run tasks, one after the other."""
    for task in tasks:
        if task not in known:
            raise ValueError(f"there is no task {task!r}; choose of {', '.join(known)}")
    whole("calls", calls, LEAST_CALLS, MOST_CALLS)
    rows: list[Row] = []
    for task in tasks:
        progress(task)
        rows += known[task](calls)
    return Report(rows, _machine(), _versions(packages), missing)


def installed(module: str) -> bool:
    """Tell whether a module can be imported.

    Example:
        >>> installed("json"), installed("no.such.module")
        (True, False)
    """
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def can_write_events() -> bool:
    """Tell whether `cachelb_fakes.events` can be imported."""
    return all(installed(module) for module in ("aiohttp", "msgpack", "zmq"))


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
