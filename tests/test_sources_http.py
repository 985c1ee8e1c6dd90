"""The HTTP client of the poller: addresses and responses."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.metrics_server import FakeEngine

from cachelb.sources.http import (
    MAX_PAGE_BYTES,
    Answer,
    PageClient,
    PageError,
    default_metrics_url,
    metrics_address,
    read_answer,
)
from cachelb.testing import FakeFleet

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN


def answer(*parts: bytes, ends: bool = True) -> Answer:
    """Read what a server sends in parts, before it closes the connection."""

    async def read() -> Answer:
        stream = asyncio.StreamReader(limit=2**16)
        answer = asyncio.create_task(read_answer(stream))
        for part in parts:
            stream.feed_data(part)
            await asyncio.sleep(0)
        if ends:
            stream.feed_eof()
        return await answer

    return asyncio.run(read())


@pytest.mark.parametrize("response", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
@given(data=st.data())
def test_response_is_the_same_wherever_it_is_cut(response: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(1, len(response) - 1), max_size=6)))
    parts = [response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True)]
    assert answer(*parts, ends=False) == Answer(200, b"hello world", keep_alive=True)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED[:48], b"HTTP/1.1 200 OK\r\n\r\n"])
)
def test_any_bytes_are_a_response_or_a_page_error(tail: bytes, head: bytes) -> None:
    try:
        answer(head + tail)
    except PageError as error:
        assert str(error) in {"not HTTP", "page too large", "cut short", "closed"}  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (CHUNKED[:-2] + b"Trailer: x\r\n\r\n", b"hello world"),
    ],
    ids=["no length", "close", "trailer"],
)
def test_connection_is_not_used_again_after_a_response_that_ends_it(response: bytes, body: bytes) -> None:
    assert answer(response) == Answer(200, body, keep_alive=False)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 200", "cut short"),
        (INTERIM[:40], "cut short"),
        (PLAIN[:-1], "cut short"),
        (CHUNKED[:-5], "cut short"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "not HTTP"),
        (CHUNKED[:48] + b"zz\r\n", "not HTTP"),
        (CHUNKED[:48] + b"-5\r\n", "not HTTP"),
        (CHUNKED[:48] + b"0" * 70_000, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "header too large"),
        (CHUNKED[:48] + b"ffffffff\r\n", "page too large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_PAGE_BYTES + 1), "page too large"),
    ],
)
def test_response_that_cannot_be_used_is_refused(response: bytes, error: str) -> None:
    with pytest.raises(PageError, match=error):
        answer(response)


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
    address = metrics_address("http://user:p%40ss@gpu0:81/a/metrics?b=c", {"accept": "*/*", "X-Key": "k"})
    assert (address.host, address.port, address.tls) == ("gpu0", 81, False)
    lines = address.request.decode().split("\r\n")
    assert lines[:2] == ["GET /a/metrics?b=c HTTP/1.1", "Host: gpu0:81"]
    assert {"accept: */*", "X-Key: k", "Authorization: Basic dXNlcjpwQHNz"} <= set(lines)
    assert "Accept: text/plain" not in lines


def test_scheme_decides_port_and_tls() -> None:
    assert (metrics_address("https://[::1]/m", {}).host, metrics_address("https://[::1]/m", {}).port) == ("::1", 443)
    assert metrics_address("http://gpu0/m", {}).port == 80
    assert metrics_address("unix:///run/a%20b.sock", {}).socket_path == "/run/a b.sock"


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


async def closed_and_noticed(engine: FakeEngine, client: PageClient) -> None:
    engine.connections[0].shutdown(socket.SHUT_RDWR)
    while client._connection is not None and not client._connection[0].at_eof():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)


async def closed(engine: FakeEngine, _: PageClient) -> None:
    engine.connections[0].shutdown(socket.SHUT_RDWR)


async def answered_unasked(engine: FakeEngine, _: PageClient) -> None:
    engine.connections[0].sendall(PLAIN)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("event", [closed_and_noticed, closed, answered_unasked])
def test_idle_connection_that_is_of_no_use_any_more_is_opened_again(
    event: Callable[[FakeEngine, PageClient], Awaitable[None]],
) -> None:
    async def fetch_twice(engine: FakeEngine) -> list[bytes]:
        client = PageClient(metrics_address(f"{engine.key}/metrics", {}), None)
        pages = [await client.get()]
        await event(engine, client)
        pages.append(await client.get())
        client.close()
        return pages

    with FakeEngine(b"page") as engine:
        assert asyncio.run(fetch_twice(engine)) == [b"page", b"page"]
        assert len(engine.connections) == 2


def test_https_never_falls_back_to_plain_text() -> None:
    async def fetch(engine: FakeEngine) -> None:
        await PageClient(metrics_address(f"https://127.0.0.1:{engine.port}/metrics", {}), None).get()

    with FakeEngine(b"page") as engine, pytest.raises(ssl.SSLError):
        asyncio.run(fetch(engine))


def test_answer_that_comes_after_its_fetch_was_given_up_is_not_taken_for_the_next() -> None:
    async def fetch(engine: FakeEngine) -> bytes:
        client = PageClient(metrics_address(f"{engine.key}/metrics", {}), None)
        engine.may_answer.clear()
        given_up = asyncio.create_task(client.get())
        while not engine.requests:  # noqa: ASYNC110 - the engine announces nothing
            await asyncio.sleep(0.001)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        engine.page = b"second"
        engine.may_answer.set()
        page = await client.get()
        client.close()
        return page

    with FakeEngine(b"first") as engine:
        assert asyncio.run(fetch(engine)) == b"second"
        assert len(engine.connections) == 2


def test_json_is_posted_to_another_page_and_an_error_has_its_body() -> None:
    async def ask(url: str, body: bytes) -> tuple[int, bytes]:
        client = PageClient(metrics_address(f"{url}/metrics", {}, page="/v1/completions", body=body), None)
        try:
            return await client.ask()
        finally:
            client.close()

    with FakeFleet(1) as fleet:
        status, answer = asyncio.run(ask(fleet.urls[0], b'{"prompt": "hello", "max_tokens": 1}'))
        assert (status, json.loads(answer)["usage"]["prompt_tokens"]) == (200, 2)
        assert fleet.workers[0].requests[0].headers["Content-Type"] == "application/json"
        status, answer = asyncio.run(ask(fleet.urls[0], b"[]"))
        assert (status, json.loads(answer)["error"]["message"]) == (400, "the body must be a JSON object")
