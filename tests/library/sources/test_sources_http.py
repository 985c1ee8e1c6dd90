"""Fetching pages: addresses, and what servers on loopback do to the client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import certificate
from tests.models.metrics_server import FakeEngine, reserved_port

from cachelb.sources.http import MAX_PAGE_BYTES, PageError, default_metrics_url, metrics_address
from cachelb.sources.pages import PageClient
from cachelb_fakes import FakeFleet

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
CHUNKED_HEAD = CHUNKED[:47]
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN
PATIENT_S = 60.0

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Serves every connection in one way, and counts them."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        writer.transport.abort()
        self.open -= 1

    async def is_left(self) -> None:
        """Wait for the end of every connection."""
        async with asyncio.timeout(PATIENT_S):
            while self.open:  # noqa: ASYNC110 - connections end without a notice
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def served(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Server, str]]:
    """A server in this event loop, and the URL of its page. No client may be connected at the end."""
    server = Server(serve)
    listener = await asyncio.start_server(server, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    async with listener:
        yield server, f"{scheme}://ann:s3cret@127.0.0.1:{listener.sockets[0].getsockname()[1]}/metrics"
        await server.is_left()


def sends(response: bytes) -> Serve:
    """Answer every request with these bytes, and close the connection if nothing follows."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(response)
            await writer.drain()
            if response not in (PLAIN, CHUNKED, INTERIM):
                writer.close()
                await writer.wait_closed()

    return serve


def repeats(head: bytes, part: bytes, pause_s: float = 0.0) -> Serve:
    """Answer without an end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return serve


async def fetch(url: str, times: int = 1, tls: ssl.SSLContext | None = None) -> list[bytes]:
    async with PageClient(metrics_address(url, {}), tls) as client, asyncio.timeout(PATIENT_S):
        return [await client.get() for _ in range(times)]


@pytest.mark.parametrize(
    ("response", "body", "connections"),
    [
        (PLAIN, b"hello world", 1),
        (CHUNKED, b"hello world", 1),
        (INTERIM, b"hello world", 1),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", 2),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", 2),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", b"hi", 2),
    ],
    ids=["plain", "chunked", "interim", "no length", "close", "compressed unasked"],
)
def test_page_is_read_and_its_connection_kept_unless_it_ends(response: bytes, body: bytes, connections: int) -> None:
    async def twice() -> int:
        async with served(sends(response)) as (server, url):
            assert await fetch(url, times=2) == [body, body]
            return server.connections

    assert asyncio.run(twice()) == connections


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED_HEAD, PLAIN[:19]]))
def test_any_bytes_are_a_response_or_a_page_error(tail: bytes, head: bytes) -> None:
    async def once() -> None:
        async with served(sends(head + tail)) as (_, url):
            with contextlib.suppress(PageError):
                assert isinstance((await fetch(url))[0], bytes)

    asyncio.run(once())


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 200", "closed"),
        (INTERIM[:40], "closed"),
        (PLAIN[:-1], "cut short"),
        (CHUNKED[:-5], "cut short"),
        (CHUNKED_HEAD + b"ffffffff\r\n", "cut short"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "not HTTP"),
        (CHUNKED_HEAD + b"zz\r\n", "not HTTP"),
        (CHUNKED_HEAD + b"-5\r\n", "not HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello", "HTTP 101"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_PAGE_BYTES + 1), "page too large"),
    ],
)
def test_response_that_cannot_be_used_is_refused(response: bytes, error: str) -> None:
    async def once() -> None:
        async with served(sends(response)) as (_, url):
            await fetch(url)

    with pytest.raises(PageError) as caught:
        asyncio.run(once())
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("head", "part", "error"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000, "not HTTP"),
        (CHUNKED_HEAD, b"10000\r\n" + b"x" * 0x10000 + b"\r\n", "page too large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", b"x" * 0x10000, "page too large"),
    ],
    ids=["headers", "header", "chunks", "body"],
)
def test_response_without_an_end_is_given_up_and_its_connection_closed(head: bytes, part: bytes, error: str) -> None:
    async def once() -> None:
        async with served(repeats(head, part)) as (server, url), PageClient(metrics_address(url, {}), None) as client:
            with pytest.raises(PageError, match=error):
                await client.get()
            await server.is_left()

    asyncio.run(once())


def test_nothing_is_taken_from_the_environment_and_no_cookie_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login ann password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(PLAIN.replace(b"\r\n", b"\r\nSet-Cookie: a=b\r\n", 1))

    async def twice() -> None:
        async with served(serve) as (_, url):
            await fetch(url.replace("ann:s3cret@", ""), times=2)

    asyncio.run(twice())
    assert len(requests) == 2
    assert [word for word in (b"Cookie", b"Authorization") if word in requests[1]] == []


def test_page_of_a_unix_socket(tmp_path: Path) -> None:
    async def once() -> list[bytes]:
        server = Server(sends(PLAIN))
        async with await asyncio.start_unix_server(server, tmp_path / "a b.sock"):
            pages = await fetch(f"unix://{tmp_path}/a%20b.sock", times=2)
            await server.is_left()
        return pages

    assert asyncio.run(once()) == [b"hello world"] * 2


def test_error_without_a_connection_is_the_systems_and_shows_no_password() -> None:
    with reserved_port() as port, pytest.raises(ConnectionRefusedError) as caught:
        asyncio.run(fetch(f"http://ann:s3cret@127.0.0.1:{port}/metrics"))
    assert "s3cret" not in repr(caught.value)


@pytest.mark.parametrize("url", [f"http://{'x' * 70}.example/metrics", "http://a..b/metrics"])
def test_host_that_cannot_be_looked_up_is_an_error_of_the_page(url: str) -> None:
    with pytest.raises((PageError, OSError)):
        asyncio.run(fetch(url))


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("http://gpu0:8000", "http://gpu0:8000/metrics"),
        ("https://gpu0/v1?x=1", "https://gpu0/metrics"),
        ("gpu0:8000", "http://gpu0:8000/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics"),
        ("unix:///run/engine.sock", "unix:///run/engine.sock"),
    ],
)
def test_metrics_stand_beside_the_api(key: str, url: str) -> None:
    assert default_metrics_url(key) == url


@pytest.mark.parametrize("key", ["gpu0", "", "grpc://gpu0:1", "http://", "http://gpu0:port"])
def test_key_that_is_no_address_has_no_metrics(key: str) -> None:
    with pytest.raises(ValueError, match=r"no address|must be valid"):
        default_metrics_url(key)


def test_request_names_host_and_target_and_lets_headers_be_replaced() -> None:
    with FakeEngine(b"page") as engine:
        url = f"http://user:p%40ss@127.0.0.1:{engine.port}/a/metr%69cs?b=c%2Fd"

        async def once() -> bytes:
            async with PageClient(metrics_address(url, {"accept": "*/*", "X-Key": "k"}), None) as client:
                return await client.get()

        assert asyncio.run(once()) == b"page"
        assert engine.paths == ["/a/metr%69cs?b=c%2Fd"]
        assert engine.requests == [
            {
                "Host": f"127.0.0.1:{engine.port}",
                "accept": "*/*",
                "Accept-Encoding": "identity",
                "User-Agent": "cachelb",
                "Authorization": "Basic dXNlcjpwQHNz",
                "X-Key": "k",
            }
        ]


def test_address_has_no_password_and_shows_none() -> None:
    address = metrics_address("https://user:s3cret@[::1]/m", {"X-Key": "s3cret"})
    assert (address.url, address.socket_path) == ("https://[::1]/m", "")
    assert "s3cret" not in repr(address)
    assert metrics_address("unix:///run/a%20b.sock", {}).socket_path == "/run/a b.sock"
    beside = metrics_address("http://user:s3cret@gpu0:8000/v1?x=1", {}, page="/kv_event_sources")
    assert beside.url == "http://gpu0:8000/kv_event_sources"


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\0b"])
def test_header_that_would_not_be_sent_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="header 'X-Key' has a line break"):
        metrics_address("http://gpu0/metrics", {"X-Key": value})


@pytest.mark.parametrize(
    "url",
    [
        "ftp://gpu0/metrics",
        "unix://gpu0",
        "http:///metrics",
        "http://gpu0/ä",
        "http://s3cret@/x",
        "http://u:s3cret/x@y",
        "http://[s3cret",
    ],
)
def test_url_that_cannot_be_polled_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="a metrics URL") as caught:
        metrics_address(url, {})
    assert "s3cret" not in str(caught.value)


async def closed_and_noticed(engine: FakeEngine) -> None:
    engine.connections[0].shutdown(socket.SHUT_RDWR)
    await asyncio.sleep(0.05)


async def closed(engine: FakeEngine) -> None:
    engine.connections[0].shutdown(socket.SHUT_RDWR)


async def answered_unasked(engine: FakeEngine) -> None:
    engine.connections[0].sendall(PLAIN)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("event", [closed_and_noticed, closed, answered_unasked])
def test_idle_connection_that_is_of_no_use_any_more_is_opened_again(
    event: Callable[[FakeEngine], Awaitable[None]],
) -> None:
    async def fetch_twice(engine: FakeEngine) -> list[bytes]:
        async with PageClient(metrics_address(f"{engine.key}/metrics", {}), None) as client:
            pages = [await client.get()]
            await event(engine)
            return [*pages, await client.get()]

    with FakeEngine(b"page") as engine:
        assert asyncio.run(fetch_twice(engine)) == [b"page", b"page"]
        assert len(engine.connections) == 2


def test_https_never_falls_back_to_plain_text() -> None:
    with FakeEngine(b"page") as engine, pytest.raises(ssl.SSLError):
        asyncio.run(fetch(f"https://127.0.0.1:{engine.port}/metrics"))


def server_tls(shown: Path, hidden: Path) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(shown, hidden)
    return tls


def test_https_checks_the_server_by_the_given_context_or_the_systems(tmp_path: Path) -> None:
    shown, hidden = certificate(tmp_path)
    tls = server_tls(shown, hidden)

    async def once(checked_by: ssl.SSLContext | None) -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's, of a failed handshake
        async with served(sends(PLAIN), tls) as (_, url):
            return await fetch(url, 2, checked_by)

    assert asyncio.run(once(ssl.create_default_context(cafile=shown))) == [b"hello world"] * 2
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(once(None))


def test_https_connection_of_a_fetch_that_was_given_up_is_closed_at_once(tmp_path: Path) -> None:
    shown, hidden = certificate(tmp_path)
    tls = server_tls(shown, hidden)
    heard: list[bytes] = []

    async def hangs(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.append(b"request")
        with contextlib.suppress(OSError):
            heard.append(await reader.read())

    async def once() -> None:
        async with served(hangs, tls) as (server, url):
            address = metrics_address(url, {})
            async with PageClient(address, ssl.create_default_context(cafile=shown)) as client:
                fetching = asyncio.create_task(client.get())
                while not heard:  # noqa: ASYNC110 - the server announces nothing
                    await asyncio.sleep(0.001)
                fetching.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await fetching
                for _ in range(3):
                    await asyncio.sleep(0)
                assert client._connector._latest is not None
                assert client._connector._latest.get_extra_info("socket") is None
                await server.is_left()

    asyncio.run(once())


def test_answer_that_comes_after_its_fetch_was_given_up_is_not_taken_for_the_next() -> None:
    async def twice(engine: FakeEngine) -> bytes:
        async with PageClient(metrics_address(f"{engine.key}/metrics", {}), None) as client:
            engine.may_answer.clear()
            given_up = asyncio.create_task(client.get())
            while not engine.requests:  # noqa: ASYNC110 - the engine announces nothing
                await asyncio.sleep(0.001)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            engine.page = b"second"
            engine.may_answer.set()
            return await client.get()

    with FakeEngine(b"first") as engine:
        assert asyncio.run(twice(engine)) == b"second"
        assert len(engine.connections) == 2


def test_json_is_posted_to_another_page_and_an_error_has_its_body() -> None:
    async def ask(url: str, body: bytes) -> tuple[int, bytes]:
        address = metrics_address(f"{url}/metrics", {}, page="/v1/completions", body=body)
        async with PageClient(address, None) as client:
            return await client.ask()

    with FakeFleet(1) as fleet:
        status, answer = asyncio.run(ask(fleet.urls[0], b'{"prompt": "hello", "max_tokens": 1}'))
        assert (status, json.loads(answer)["usage"]["prompt_tokens"]) == (200, 2)
        assert fleet.workers[0].requests[0].headers["Content-Type"] == "application/json"
        status, answer = asyncio.run(ask(fleet.urls[0], b"[]"))
        assert (status, json.loads(answer)["error"]["message"]) == (400, "the body must be a JSON object")
