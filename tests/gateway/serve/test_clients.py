"""Clients of `cachelb serve` as there are: HTTP/1.1 and HTTP/2, TLS, WebSockets, sockets of all kinds."""

from __future__ import annotations

import gzip
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.certificates import certificate, signed
from tests.gateway.serve.echo import echo_worker, worker
from tests.gateway.serve.raw import talking
from tests.gateways import serving, wait_until
from tests.http_client import DEADLINE_S, complete, send
from websockets.exceptions import ConnectionClosedError
from websockets.http11 import Request, Response
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from cachelb import Router
from cachelb_fakes import FakeFleet
from cachelb_gateway.serve import Certificate

PROMPT = "How vexingly quick daft zebras jump. " * 20
BIG = bytes(range(256)) * (8 << 12)


def client(url: str, *, h2: bool, trusted: ssl.SSLContext | bool = True) -> httpx.Client:
    if url.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix://"), http1=not h2, http2=h2)
        return httpx.Client(transport=transport, base_url="http://gateway", timeout=DEADLINE_S)
    return httpx.Client(base_url=url, http1=not h2, http2=h2, verify=trusted, timeout=DEADLINE_S)


class Transport(NamedTuple):
    """A gateway's address."""

    listen: str
    certificate: Certificate | None
    trusted: ssl.SSLContext | bool


@pytest.fixture(params=["tcp", "unix", "tls"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Transport:
    if request.param != "tls":
        return Transport("127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/s", None, trusted=True)
    cert, key = certificate(tmp_path)
    return Transport("127.0.0.1:0", Certificate(cert, key), ssl.create_default_context(cafile=str(cert)))


@pytest.mark.parametrize("h2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_every_kind_of_request_passes_over_every_version_and_transport(transport: Transport, *, h2: bool) -> None:
    def answer(handler: Any) -> None:
        body = handler.content()
        if handler.path == "/chunks":
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for at in range(0, len(BIG), 1 << 18):
                handler.wfile.write(b"%x\r\n%b\r\n" % (1 << 18, BIG[at : at + (1 << 18)]))
            handler.wfile.write(b"0\r\n\r\n")
            return
        shown = {"/big": BIG, "/gzip": gzip.compress(BIG)}.get(handler.path, body)
        headers = {"X-Body": hashlib.sha256(body).hexdigest()}
        if handler.path == "/gzip":
            headers["Content-Encoding"] = "gzip"
        handler.reply(shown, int(handler.headers.get("X-Status", 200)), headers)

    with (
        worker(answer) as url,
        serving(router := Router([url]), listen=transport.listen, certificate=transport.certificate) as served,
        client(served.url, h2=h2, trusted=transport.trusted) as talk,
    ):
        assert talk.get("/x").http_version == ("HTTP/2" if h2 else "HTTP/1.1")
        for path in ("/big", "/chunks"):
            assert talk.get(path).content == BIG
        with talk.stream("GET", "/gzip", headers={"Accept-Encoding": "gzip"}) as packed:
            assert packed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(b"".join(packed.iter_raw())) == BIG
        sent = talk.post("/x", content=BIG)
        assert sent.headers["x-body"] == hashlib.sha256(BIG).hexdigest()
        assert sent.content == BIG
        chunks = talk.post("/x", content=(BIG[at : at + 77_777] for at in range(0, len(BIG), 77_777)))
        assert chunks.headers["x-body"] == hashlib.sha256(BIG).hexdigest()
        head = talk.head("/big")
        assert (head.content, head.headers["content-length"]) == (b"", str(len(BIG)))
        for status in (204, 304):
            empty = talk.get("/x", headers={"X-Status": str(status)})
            assert (empty.status_code, empty.content) == (status, b"")
        assert talk.get("/ready").json()["ready"]
    wait_until(lambda: router.stats().open_requests == 0)


@pytest.mark.parametrize("h2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_streams_of_many_requests_come_event_by_event(*, h2: bool) -> None:
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 3}
    with FakeFleet(2) as fleet, serving(router := Router(fleet.urls)) as served, client(served.url, h2=h2) as talk:
        fleet.fail("stall", times=1, after_chunks=2)
        with talk.stream("POST", "/v1/completions", json=body) as first:
            events = first.iter_lines()
            assert [next(events)[:5] for _ in range(3)] == ["data:", "", "data:"]
            others = [talk.post("/v1/completions", json=body) for _ in range(4)]
            assert [other.text.endswith("data: [DONE]\n\n") for other in others] == [True] * 4
            fleet.release()
            assert list(events)[-2:] == ["data: [DONE]", ""]
    assert router.stats().endings["completed"] == 5


def test_stream_of_http2_that_its_client_resets_frees_worker_and_booking() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served, client(served.url, h2=True) as talk:
        fleet.fail("stall", times=1, after_chunks=2)
        with talk.stream("POST", "/v1/completions", json={"prompt": PROMPT, "stream": True}) as answer:
            assert next(answer.iter_lines()).startswith("data:")
        wait_until(lambda: router.stats().endings["cancelled"] == 1)
        fleet.wait_for(lambda: fleet.workers[0]._replica.counts.open == 0, timeout_s=DEADLINE_S)
        assert talk.post("/v1/completions", json={"prompt": PROMPT}).status_code == 200


def test_certificates_of_clients_are_required_and_checked(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("server", "ca", "stranger")]
    for folder in folders:
        folder.mkdir()
    (cert, key), authority, other = (certificate(folder) for folder in folders)
    given = Certificate(cert, key, client_ca_path=authority[0], min_version="1.3")
    with FakeFleet(1) as fleet, serving(Router(fleet.urls), certificate=given) as served:
        for own, is_served in (
            (signed(folders[1], authority), True),
            (signed(folders[2], other), False),
            (None, False),
        ):
            trusted = ssl.create_default_context(cafile=str(cert))
            if own is not None:
                trusted.load_cert_chain(*own)
            with client(served.url, h2=False, trusted=trusted) as talk:
                if is_served:
                    assert talk.post("/v1/completions", json={"prompt": PROMPT}).status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        talk.get("/health")


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_versions_of_tls_below_the_least_are_refused(tmp_path: Path, tls: Any) -> None:
    cert, key = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    trusted.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        serving(Router[str](), certificate=Certificate(cert, key, min_version=tls)) as served,
        client(served.url, h2=False, trusted=trusted) as talk,
    ):
        if tls == "1.2":
            assert talk.get("/health").status_code == 200
        else:
            with pytest.raises(httpx.TransportError):
                talk.get("/health")


def test_body_is_asked_for_where_the_client_expects_that() -> None:
    head = b"POST /any HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"
    with echo_worker() as url, serving(Router([url])) as served, talking(served.url, head) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"body": "hello"' in received
    assert b'"expect"' not in received


def test_body_that_is_refused_is_not_asked_for() -> None:
    head = b"POST /any HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    with (
        echo_worker() as url,
        serving(Router([url]), max_body_bytes=999) as served,
        talking(served.url, head) as connection,
    ):
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_long_header_of_an_answer_passes_and_is_computed_once() -> None:
    long = {"X-Long": "a" * 9000} | {f"X-{number}": "b" for number in range(150)}
    with (
        echo_worker(long) as one,
        echo_worker(long) as other,
        serving(router := Router([one, other])) as served,
    ):
        with client(served.url, h2=False) as talk:
            answer = talk.post("/v1/completions", json={"prompt": "hi"})
        assert (answer.status_code, answer.headers["x-long"], answer.headers["x-149"]) == (200, "a" * 9000, "b")
        wait_until(lambda: router.stats().endings["completed"] == 1)
        assert sum(router.stats().decisions.values()) == 1


def test_connections_of_one_client_are_served_again_after_each_kind_of_answer() -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served, client(served.url, h2=False) as talk:
        for _ in range(5):
            assert talk.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).status_code == 200
            assert talk.get("/health").status_code == 200
            assert talk.post("/v1/completions", content=b"{").status_code == 400
            assert talk.get("/metrics").status_code == 404
            assert talk.get("/v1/models").status_code == 200


# --- WebSockets ---


@pytest.fixture
def realtime() -> Iterator[str]:
    """A worker with WebSockets, which answers each message with it."""

    def answer(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)
        connection.close(1000, "bye")

    def health(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(HTTPStatus.OK, "") if request.path == "/health" else None

    with serve(answer, "127.0.0.1", 0, process_request=health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
    thread.join()


def test_websocket_passes_and_is_a_request_until_it_ends(realtime: str) -> None:
    with serving(router := Router([realtime])) as served:
        with connect(served.url.replace("http", "ws") + "/v1/realtime?model=m", open_timeout=DEADLINE_S) as talk:
            for message in ("hello", b"\x00\xff", "x" * 200_000):
                talk.send(message)
                assert talk.recv(DEADLINE_S) == message
            assert (router.stats().open_requests, served.gateway.open_requests) == (1, 1)
            assert served.gateway.counts["upgraded"] == 1
        wait_until(lambda: router.stats().open_requests == served.gateway.open_requests == 0)
    assert router.stats().endings["completed"] == 1


def test_websocket_ends_with_the_gateway(realtime: str) -> None:
    with serving(router := Router([realtime]), grace_s=0.1) as served:
        with connect(served.url.replace("http", "ws") + "/v1/realtime", open_timeout=DEADLINE_S) as talk:
            served.stop()
            with pytest.raises(ConnectionClosedError):
                talk.recv(DEADLINE_S)
        assert served.has_ended()
    assert router.stats().open_requests == 0


def test_upgrade_that_a_worker_does_not_take_is_a_plain_request() -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    with echo_worker() as url, serving(Router([url])) as served:
        answer = send(served.url, "/v1/realtime", headers=upgrade)
    assert (answer.status, answer.json["headers"]["upgrade"]) == (200, "websocket")


# --- several addresses ---


def test_gateway_serves_several_addresses(tmp_path: Path) -> None:
    from cachelb_gateway.serve import Gateway

    with FakeFleet(1) as fleet, Gateway(Router(fleet.urls)) as gateway:
        gateway.start(["127.0.0.1:0", f"unix:{tmp_path}/s"])
        assert [complete(url, PROMPT, max_tokens=1).status for url in gateway.urls] == [200, 200]
        assert gateway.admin_url is None
        with pytest.raises(RuntimeError, match="starts once"):
            gateway.start("127.0.0.1:0")


def test_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(Router[str](), listen=f"unix:{path}") as served:
        assert send(served.url, "/health").status == 200
    assert not path.exists()
