"""The endpoint picker as a service: health, start and stop, options, and its command."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.certificates import certificate
from tests.models.ext_proc_client import DEADLINE_S, Proxy, Service, in_loop, run, serve, served, until
from tests.models.ext_proc_messages import SERVICE
from tests.programs import running

from cachelb import Router
from cachelb_gateway import config
from cachelb_gateway.ext_proc import Certificate, EndpointPicker, Pages
from cachelb_gateway.ext_proc.__main__ import main as command
from cachelb_gateway.ext_proc.__main__ import parse
from cachelb_gateway.ext_proc.certificates import watch
from cachelb_gateway.ext_proc.pages import _MOST_CLIENTS

URLS = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
BODY = json.dumps({"prompt": "Once upon a time"}).encode()
MODULE = "cachelb_gateway.ext_proc"


async def health_of(channel: Any, name: str) -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


@in_loop
async def test_health_tells_that_it_lives_and_whether_it_is_ready() -> None:
    async with serve(Router(URLS, seed=1), ready=False) as service:
        names = ("liveness", "readiness", SERVICE)
        states = [await health_of(service.channel, name) for name in names]
        assert states == ["SERVING", "NOT_SERVING", "NOT_SERVING"]
        await service.picker.set_ready(True)
        assert [await health_of(service.channel, name) for name in names] == ["SERVING"] * 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(service.channel, "something-else")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@served()
async def test_open_streams_end_within_the_grace_of_a_stop(router: Router[str], service: Service) -> None:
    stream = service.stream()
    await stream.request(BODY)
    stopping = asyncio.ensure_future(service.picker.stop(DEADLINE_S))
    await stream.answer_headers()
    await stream.answer_body(b"{}")
    await stream.finish()
    await stopping
    assert router.stats().endings["completed"] == 1
    assert service.picker.open_streams == 0


@in_loop
async def test_service_starts_once_and_at_a_free_port_and_stops_twice() -> None:
    first, second = (EndpointPicker(Router(URLS, seed=1)) for _ in range(2))
    await first.stop()
    port = await first.start("127.0.0.1:0")
    with pytest.raises(RuntimeError, match="starts once"):
        await first.start("127.0.0.1:0")
    with pytest.raises(RuntimeError, match=str(port)):
        await second.start(f"127.0.0.1:{port}")
    for picker in (first, first, second):
        await picker.stop()


@in_loop
async def test_certificate_protects_the_port_and_another_one_takes_its_place(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    certificates = [Certificate(*certificate(folder)) for folder in folders]

    async def connects(port: int, folder: Path) -> bool:
        trusted = grpc.ssl_channel_credentials((folder / "cert.pem").read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
            try:
                stream = Service(picker, Proxy(channel), channel).stream()
                assert (await stream.request(BODY)).body == BODY
                await stream.finish()
            except grpc.aio.AioRpcError:
                return False
            return True

    async with EndpointPicker(Router(URLS, seed=1)) as picker:
        port = await picker.start("127.0.0.1:0", health_listen="127.0.0.1:0", certificate=certificates[0])
        assert [await connects(port, folder) for folder in folders] == [True, False]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
            assert await health_of(channel, "readiness") == "SERVING"
        (folders[1] / "broken.pem").write_text("no certificate")
        with pytest.raises(ValueError, match="cannot read the certificate: it must be PEM"):
            await picker.reload_certificate(Certificate(folders[1] / "broken.pem", folders[1] / "key.pem"))
        await picker.reload_certificate(certificates[1])
        assert [await connects(port, folder) for folder in folders] == [False, True]


class Counted(Certificate):
    """A certificate that counts how often its files are read."""

    reads = 0

    def read(self) -> Any:
        Counted.reads += 1
        return super().read()


async def read_again() -> None:
    """Wait until the files were read, and reported on, since now."""
    before = Counted.reads
    await until(lambda: Counted.reads > before + 2)


@in_loop
async def test_files_of_a_certificate_are_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown, _ = certificate(tmp_path)
    read = Counted(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with EndpointPicker(Router(URLS, seed=1)) as picker:
        port = await picker.start("127.0.0.1:0", certificate=read)
        watching = asyncio.create_task(watch(picker, read, interval_s=0.01))
        shown.write_text("-----BEGIN", "utf-8")
        await until(lambda: "the certificate was not replaced: cannot read the certificate" in caplog.text)
        await read_again()
        logged = len(caplog.records)
        await read_again()
        assert len(caplog.records) == logged, "once"
        certificate(tmp_path)
        expected = ssl.PEM_cert_to_DER_cert(shown.read_text("utf-8"))

        async def served() -> bytes:
            pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
            return ssl.PEM_cert_to_DER_cert(pem)

        for _ in range(1000):
            if await served() == expected:
                break
        assert await served() == expected
        watching.cancel()


@in_loop
async def test_pages_show_metrics_and_readiness() -> None:
    router = Router(URLS, seed=1)

    def read(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    async with serve(router, ready=False) as service:
        with Pages("127.0.0.1:0", router, service.picker) as pages:
            stream = service.stream()
            await stream.request(BODY)
            assert [(await asyncio.to_thread(read, path))[0] for path in ("/healthz", "/readyz", "/")] == [
                200,
                503,
                404,
            ]
            await service.picker.set_ready(True)
            assert (await asyncio.to_thread(read, "/readyz"))[0] == 200
            _, page = await asyncio.to_thread(read, "/metrics")
            for line in ('ext_proc_events_total{event="picked"} 1.0', "ext_proc_open_streams 1.0", "open_requests 1.0"):
                assert f"\ncachelb_{line}\n" in page
            await stream.finish()


@in_loop
async def test_clients_of_the_pages_are_bounded() -> None:
    router = Router(URLS, seed=1)
    with Pages("127.0.0.1:0", router, EndpointPicker(router)) as pages, contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", pages.port), DEADLINE_S))
            for _ in range(_MOST_CLIENTS)
        ]
        over = stack.enter_context(socket.create_connection(("127.0.0.1", pages.port), DEADLINE_S))
        assert await asyncio.to_thread(over.recv, 1) == b""
        held[0].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await asyncio.to_thread(held[0].recv, 1000)


CHILD = """
import asyncio, os, sys
from cachelb import Router
from cachelb_gateway.ext_proc import EndpointPicker

router = Router(["http://10.0.0.1:8000"])
picker = EndpointPicker(router)
asyncio.run(picker.start("127.0.0.1:0"))
if (child := os.fork()) == 0:
    assert router.select_worker(text="word " * 99).key == "http://10.0.0.1:8000"
    assert (picker.open_streams, picker.counts) == (0, {})
    asyncio.run(picker.stop())
    for each in (picker, EndpointPicker(router)):
        try:
            asyncio.run(each.start("127.0.0.1:0"))
        except RuntimeError as error:
            print(error, flush=True)
        else:
            print("started", flush=True)
            asyncio.run(each.stop())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(picker.stop())
"""


def test_child_of_a_fork_has_no_service_and_may_start_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "an EndpointPicker does not start in a process that was forked: make another one",
        "started",
    ]


# --- the command ---


def test_command_serves_a_configuration_until_it_is_told_to_end(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f"workers = {json.dumps(URLS)}\n[router]\nseed = 1\n", "utf-8")
    words = ["--config", str(config), "--listen", "127.0.0.1:0", "--fallbacks", "0", "--priority", "batch=-1"]
    words += ["--secure-serving", "--grpc-health-port", "0", "--metrics-port", "0"]
    with running("-m", MODULE, *words, errors=subprocess.STDOUT) as (process, output):
        metrics = re.search(r"metrics on port (\d+)", output.readline())
        found = re.search(r"listening on 127\.0\.0\.1:(\d+), 2 workers", output.readline())
        assert found is not None
        assert metrics is not None

        async def main() -> None:
            pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", int(found[1])))
            trusted = grpc.ssl_channel_credentials(pem.encode())
            name = [("grpc.ssl_target_name_override", "localhost")]
            async with grpc.aio.secure_channel(f"127.0.0.1:{found[1]}", trusted, options=name) as channel:
                assert await health_of(channel, "readiness") == "SERVING"
                connection = http.client.HTTPConnection("127.0.0.1", int(metrics[1]), timeout=DEADLINE_S)
                with contextlib.closing(connection):
                    await asyncio.to_thread(connection.request, "GET", "/readyz")
                    assert (await asyncio.to_thread(connection.getresponse)).status == 200
                stream = Proxy(channel).stream()
                assert len((await stream.request(BODY)).endpoints) == 1
                await stream.finish()

        run(main())
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert "stopped: {'picked': 1}" in output.read()


OPTIONS = (
    "config",
    "listen",
    "grpc-port",
    "grpc-health-port",
    "metrics-port",
    "cert-path",
    "drain-timeout",
    "fallbacks",
    "max-body-mb",
    "large-bodies",
    "priority",
    "admission",
)


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["--help"], 0, [*map("--{}".format, OPTIONS), "example:"]),
        (["--config", "x", "--priority", "batch"], 2, ["'batch' is not NAME=N"]),
        (["--config", "x", "--admission", "max_wait=1"], 2, ["no option 'max_wait'; did you mean 'max_wait_s'?"]),
    ],
)
def test_command_explains_itself(capsys: pytest.CaptureFixture[str], words: Any, code: int, printed: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(words)
    assert caught.value.code == code
    out, err = capsys.readouterr()
    assert [each for each in printed if each not in out + err] == []


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("[router]\nblock_sise = 3\n", [], "did you mean 'block_size'"),
        ("workers = []\n", ["--fallbacks", "9"], "fallbacks must be from 0 to 3, got 9"),
        ("workers = []\n", ["--admission", "max_wait_s=none"], "must be below body_timeout_s=30, "),
        (None, [], "No such file"),
    ],
    ids=["key", "option", "admission", "file"],
)
def test_command_says_what_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, words: list[str], message: str
) -> None:
    config = tmp_path / "gateway.toml"
    if text is not None:
        config.write_text(text, "utf-8")
    assert command(["--config", str(config), "--listen", "127.0.0.1:0", *words]) == 1
    assert message in caplog.text


def test_example_names_what_the_picker_reads_and_writes() -> None:
    folder = Path(__file__).resolve().parents[3] / "examples" / "envoy"
    text = (folder / "envoy.yaml").read_text("utf-8")
    document = yaml.safe_load(text)
    for name in (SERVICE, "x-gateway-destination-endpoint}", "x-gateway-destination-endpoint-served}", "envoy.lb"):
        assert name in text
    addresses: dict[str, list[str]] = {}
    for cluster in document["static_resources"]["clusters"]:
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            socket = endpoint["endpoint"]["address"]["socket_address"]
            addresses.setdefault(cluster["name"], []).append(f"{socket['address']}:{socket['port_value']}")
    with config.load(folder / "gateway.toml").build() as router:
        assert router.keys() == [f"http://{address}" for address in addresses["workers"]]
    assert addresses["picker"] == [parse(["--config", "x"]).listen]
