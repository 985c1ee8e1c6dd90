"""The example for the LiteLLM proxy: in LiteLLM's own router, loaded as the proxy does, and in the proxy itself."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from tests.library.integrations.litellm_host import PROMPT, chat, hosted, settled
from tests.ports import free_ports
from tests.waiting import wait_until

from cachelb.integrations.litellm import CachelbCallback
from cachelb_fakes import FakeFleet

CONFIG = Path(__file__).parents[2] / "examples" / "litellm_proxy.yaml"
STARTS_IN_S = 120.0


# LiteLLM warns about its own models and leaves sockets to the collector.
@pytest.mark.filterwarnings("ignore")
def test_example_routes_and_reads_the_engines_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    load = importlib.import_module("litellm.proxy.types_utils.utils").get_instance_fn
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text("utf-8"))
    callback: CachelbCallback = load(config["litellm_settings"]["callbacks"][-1], str(CONFIG))

    async def run(fleet: FakeFleet) -> None:
        for entry, url in zip(config["model_list"], fleet.urls, strict=True):
            entry["litellm_params"] |= {"api_base": f"{url}/v1", "api_key": "none"}
        async with hosted(callback, config["model_list"], **config["router_settings"]) as router:
            homes = [await chat(router, f"{number}{PROMPT}", model="llama") for number in range(2)] * 2
            again = [await chat(router, f"{number % 2}{PROMPT}", model="llama") for number in range(4)]
            assert again == homes
            assert set(homes) == {"gpu0", "gpu1"}
            await settled(lambda: callback.router.stats().open_requests == 0)
            await settled(lambda: all(worker.report_age_s is not None for worker in callback.router.stats().workers))

    with callback.router, FakeFleet(2) as fleet:
        asyncio.run(run(fleet))
    assert callback.router.stats().endings["completed"] == 6


class Proxy:
    """A running proxy, and a client of it."""

    def __init__(self, port: int, key: str, log: Path) -> None:
        self._port, self._key, self._log = port, key, log

    def send(self, method: str, path: str, **fields: Any) -> tuple[int, str]:
        """Return the status and body of an answer."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(fields) if fields else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def chat(self, text: str) -> None:
        messages = [{"role": "user", "content": text}]
        status, body = self.send("POST", "/v1/chat/completions", model="llama", messages=messages, max_tokens=2)
        assert status == 200, body

    def series(self) -> dict[str, float]:
        """Return the series of cachelb on the proxy's page."""
        status, page = self.send("GET", "/metrics/")
        assert status == 200, page
        return {name: float(value) for name, value in re.findall(r"^(cachelb_\S+) (\S+)$", page, re.MULTILINE)}

    def lives(self) -> bool:
        try:
            return self.send("GET", "/health/liveliness")[0] == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")


@contextlib.contextmanager
def proxy(folder: Path, fleet: FakeFleet) -> Iterator[Proxy]:
    """Run the LiteLLM proxy with the example, in front of a fleet."""
    config = yaml.safe_load(CONFIG.read_text("utf-8"))
    for entry, url in zip(config["model_list"], fleet.urls, strict=True):
        entry["litellm_params"] |= {"api_base": f"{url}/v1", "api_key": "none"}
    (folder / "litellm_proxy.yaml").write_text(yaml.safe_dump(config), "utf-8")
    code = CONFIG.with_suffix(".py").read_text("utf-8")
    code += "import logging\nlogging.getLogger('cachelb').setLevel('DEBUG')\n"
    code += "logging.getLogger('cachelb').addHandler(logging.StreamHandler())\n"
    (folder / "litellm_proxy.py").write_text(code, "utf-8")
    (port,), key, log = free_ports(1), f"sk-{secrets.token_hex(32)}", folder / "log"
    path = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": path}
    words = ["--config", "litellm_proxy.yaml", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-c", "from litellm import run_server; run_server()", *words]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            made = Proxy(port, key, log)
            wait_until(lambda: process.poll() is not None or made.lives(), STARTS_IN_S)
            assert process.poll() is None, made.log[-4000:]
            yield made
        finally:
            process.terminate()


def test_proxy_shows_the_counters_on_its_page_and_logs_the_reasons(tmp_path: Path) -> None:
    with FakeFleet(2, models=["llama"]) as fleet, proxy(tmp_path, fleet) as host:
        for number in (0, 1, 0, 1):
            host.chat(f"{number}{PROMPT}")
        done = 'cachelb_requests_total{outcome="completed"}'
        wait_until(lambda: host.series().get(done) == 4)
        series = host.series()
        assert series["cachelb_litellm_unread_total"] == series["cachelb_litellm_expired_total"] == 0
        assert series['cachelb_decisions_total{policy="adaptive",reason="prefix"}'] >= 2
        assert series['cachelb_inflight{dp_rank="",worker="gpu0"}'] == 0
        logged = re.findall(
            r"^llama: (gpu[01]) takes call \S+: ([a-z-]+), (\d+) of \d+ tokens matched$", host.log, re.MULTILINE
        )
        assert [key for key, *_ in logged[:2]] == [key for key, *_ in logged[2:]]
        assert [(reason, int(matched) > 100) for _, reason, matched in logged[2:]] == [("prefix", True)] * 2
        assert PROMPT not in host.log
