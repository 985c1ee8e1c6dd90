"""Two real engines for the tests of this folder; they start once and outlive single tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.engine.engine import Engine, running, write_model

ADAPTERS = ("la", "lb")


@pytest.fixture(scope="session", autouse=True)
def _stop_engines_when_terminated() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: an engine left behind holds two GB of memory."""

    def leave(number: int, frame: FrameType | None) -> None:
        pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its adapters."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny", adapters=ADAPTERS)


@pytest.fixture(scope="session")
def running_engines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    logs = tmp_path_factory.mktemp("engines")
    cores = sorted(os.sched_getaffinity(0))
    engines = [
        Engine(model, logs / f"{name}.log", name=name, core=cores[number % len(cores)], adapters=ADAPTERS)
        for number, name in enumerate(("w0", "w1"))
    ]
    with running(engines):
        yield engines


@pytest.fixture
def engines(running_engines: list[Engine]) -> list[Engine]:
    """Two engines that answer, with empty caches; one that an earlier test left dead is started again."""
    for engine in running_engines:
        if not engine.is_alive():
            engine.restart()
        engine.reset_cache()
    return running_engines
