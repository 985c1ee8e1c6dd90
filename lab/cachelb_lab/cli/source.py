"""The requests of a replay, from a file or a generator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from cachelb.cli.errors import shown
from cachelb.errors import TraceError, did_you_mean
from cachelb_lab.sim.workloads import WORKLOADS, Workload, build, read_workload

_BLOCK_SIZE = 16
OF_SOURCE = ("block_size", "rate", "count", "limit", "speed", "jitter")
"""Options of a command that a source takes."""


@dataclass
class Source:
    """Builds the workload of a seed, from a generator or a file.

    `rate` and `count` are for generators, `limit` (rows to read) for files. `speed` divides arrival times; `jitter`
    delays each arrival by up to that many seconds. Without `block_size`, the file's own or 16.
    """

    name: str
    block_size: int | None
    rate: float | None
    count: int | None
    limit: int | None
    speed: float
    jitter: float
    _file: Workload | None = None

    def __post_init__(self) -> None:
        if self.name in WORKLOADS:
            if self.limit is not None:
                raise click.UsageError(f"--limit is for files; {self.name!r} is a generator, which takes --count")
            self.block_size = self.block_size or _BLOCK_SIZE
            return
        for option, value in {"--rate": self.rate, "--count": self.count}.items():
            if value is not None and Path(self.name).exists():
                raise click.UsageError(f"{option} is for generators; a file takes --speed and --limit")
        self._file = _read(self.name, self.block_size, self.limit)
        self.block_size = self._file.block_size

    @property
    def has_seeds(self) -> bool:
        """Return whether seeds make a difference."""
        return self._file is None or self.jitter > 0

    def __call__(self, seed: int, *, rate: float | None = None) -> Workload:
        """Return the workload of a seed. `rate` replaces the generator's own; for a file it is a usage error."""
        with shown(ValueError, by=click.UsageError):
            return self._requests(seed, rate)

    def _requests(self, seed: int, rate: float | None) -> Workload:
        if self._file is None:
            rate = self.rate if rate is None else rate
            size = self.block_size or _BLOCK_SIZE
            workload = build(self.name, seed=seed, rate=rate, count=self.count, block_size=size)
        elif rate is None:
            workload = self._file
        else:
            raise ValueError("rate can be swept of generators only; sweep speed, which divides arrival times")
        if self.speed != 1:
            workload = workload.speed_up(self.speed)
        return workload.jitter(self.jitter, seed) if self.jitter else workload


def _read(name: str, block_size: int | None, limit: int | None) -> Workload:
    """Read a file."""
    file = Path(name)
    if not file.is_file():
        raise click.BadParameter(
            f"{name!r} is neither a file nor a generator{did_you_mean(name, WORKLOADS)}", param_hint="WORKLOAD"
        )
    size = shown(ValueError, by=partial(click.BadParameter, param_hint="--block-size"))
    with size, shown(TraceError, OSError, ModuleNotFoundError):
        return read_workload(file, block_size=block_size, limit=limit)
