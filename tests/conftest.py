"""Settings shared by every test."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# One fixed seed and no deadline: no run depends on luck or on the machine's load. `make test-long` runs more cases, and
# `make test-random` others.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True, max_examples=20)
settings.register_profile("long", settings.get_profile("fixed"), max_examples=100)
settings.register_profile("random", settings.get_profile("long"), derandomize=False)
settings.load_profile("fixed")

# LiteLLM fetches prices when it is imported, unless it is set to use its own.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

HERE = Path(__file__).parent
ASKED_FOR = {HERE / name: f"make test-{name}" for name in ("engine", "envoy", "go", "hosts")}
"""Tests that need a program of others, by the command that runs them."""

DATA = Path(os.environ.get("CACHELB_DATA", HERE.parents[1] / "shared"))
"""Data that is not part of the repository."""
FROM_DATA = frozenset({"captures", "conversation_trace", "traces"})
"""The fixtures below."""


def _is_named(folder: Path, config: pytest.Config) -> bool:
    paths = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return any(path.is_relative_to(folder) for path in paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests that need a real engine, proxy or host, unless the command line names them."""
    return True if collection_path in ASKED_FOR and not _is_named(collection_path, config) else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """List the folders that are collected or left out."""
    return [
        f"tests/{folder.name}: " + ("collected" if _is_named(folder, config) else f"left out, `{command}` runs it")
        for folder, command in ASKED_FOR.items()
    ] + ([] if DATA.exists() else [f"no data of others in {DATA}: `make test-long` leaves out what needs them"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that need data of others to `make test-long`, and out where there is none."""
    outside = [item for item in items if not FROM_DATA.isdisjoint(getattr(item, "fixturenames", ()))]
    for item in outside:
        item.add_marker("long")
    if not DATA.exists():
        config.hook.pytest_deselected(items=outside)
        items[:] = [item for item in items if item not in outside]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture(scope="session")
def conversation_trace() -> Path:
    """The hour of real chat traffic that the known figures belong to."""
    return DATA / "traces" / "mooncake" / "conversation_trace.jsonl.xz"


@pytest.fixture(scope="session")
def traces() -> Path:
    """Traces, logs and figures of others that the simulator is held to."""
    return DATA / "traces"


@pytest.fixture(scope="session")
def captures() -> Path:
    """Messages about KV caches that real engines sent."""
    return DATA / "captures"


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads change places far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", autouse=True)
def root_log() -> Iterator[None]:
    """Ray's handler of all records, which cannot write those of uvicorn, ends with the file that started Ray."""
    yield
    for handler in logging.root.handlers[:]:
        if type(handler.formatter).__module__.startswith("ray."):
            logging.root.removeHandler(handler)
