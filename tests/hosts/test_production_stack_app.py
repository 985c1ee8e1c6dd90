"""cachelb in production-stack's own application: `make test-hosts PRODUCTION_STACK=checkout`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http_client import DEADLINE_S, complete
from tests.library.integrations.production_stack_cases import PROMPT, Cases, Make
from tests.ports import free_ports
from tests.waiting import wait_until

from cachelb.integrations.production_stack import CachelbRouter, install
from cachelb_fakes import FakeFleet

# The host warns of what it lacks and uses; cachelb warns of nothing.
pytestmark = pytest.mark.filterwarnings("ignore")


@contextlib.contextmanager
def make_app(
    urls: list[str], *, failover: int = 0, session_key: str | None = None, **options: Any
) -> Iterator[tuple[Any, CachelbRouter]]:
    """Start the host as its command line does."""
    host = importlib.import_module("vllm_router.app")
    arguments = ["--service-discovery", "static", "--static-backends", ",".join(urls)]
    arguments += ["--static-models", ",".join("m" for _ in urls), "--routing-logic", "roundrobin"]
    arguments += ["--max-instance-failover-reroute-attempts", str(failover)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["vllm-router", *arguments])
        host.initialize_all(host.app, host.parse_args())
    try:
        logic = install(host.app, **{"seed": 1, "session_key": session_key} | options)
        assert logic.max_instance_failover_reroute_attempts == failover
        yield host.app, logic
    finally:
        host.app.middleware_stack = None  # the application is the module's: the next test starts it anew
        host.app.user_middleware.clear()
        utils = importlib.import_module("vllm_router.utils")
        utils.SingletonMeta._instances.clear()
        utils.SingletonABCMeta._instances.clear()
        discovery: Any = importlib.import_module("vllm_router.service_discovery")
        discovery._global_service_discovery = None
        gc.collect()


class TestApp(Cases):
    @pytest.fixture
    def make(self) -> Make:
        return make_app


def test_example_runs_from_the_command_line() -> None:
    example = Path(__file__).parents[2] / "examples" / "production_stack.py"
    (port,) = free_ports(1)
    with FakeFleet(2, models=["m"]) as fleet:
        command = [sys.executable, "-u", str(example), "--service-discovery", "static", "--routing-logic", "roundrobin"]
        command += ["--static-backends", ",".join(fleet.urls), "--static-models", "m,m", "--port", str(port)]
        with subprocess.Popen([*command, "--host", "127.0.0.1"]) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_until(lambda: listens(port), timeout_s=60)
                for _ in range(4):
                    assert complete(url, PROMPT, model="m", max_tokens=1).status == 200
                process.send_signal(signal.SIGINT)
                process.wait(DEADLINE_S)
            finally:
                process.kill()
        assert sorted(worker.counts.finished for worker in fleet.workers) == [0, 4]


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
