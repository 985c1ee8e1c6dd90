"""Requests that two parsers might read in two ways, before the server of real engines: uvicorn with h11."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset
from tests.gateway.serve.raw import read_all, talking
from tests.gateways import serve_asgi, serving, wait_until
from tests.http_client import send

from cachelb import Router

HIDDEN = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
POST = "POST /any HTTP/1.1\r\nHost: a\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"


class Engine:
    """Remembers the requests that its parser has read."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] != "/health":
            headers = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
            self.seen.append({"path": scope["path"], "headers": headers, "body": body})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def engine() -> Iterator[tuple[Engine, str]]:
    app = Engine()
    with serve_asgi(app, http="h11", ws="none", lifespan="off") as worker, serving(Router([worker])) as served:
        yield app, served.url
        # Connections to the worker are used again: a request that was hidden in one would be read before this one.
        for _ in range(3):
            assert send(served.url, "/after").status == 200
        assert "/smuggled" not in [request["path"] for request in app.seen]
        assert all("smuggled" not in name for request in app.seen for name, _ in request["headers"])


def attempts() -> dict[str, str]:
    chunks = "5\r\nhello\r\n0\r\n\r\n"
    short = f"Content-Length: {len(chunks)}\r\n"
    codings = (
        "chunked, identity",
        "gzip, chunked",
        "identity",
        "xchunked",
        "chunked;q=1",
        '"chunked"',
        "\x0bchunked",
        "gzip",
    )
    lengths = ("+5", "-5", "0x5", "5 5", "5,6", "5;", "", "99999999999999999999999", "5\x00")
    sizes = ("0x5", "+5", "-5", "5 5", "g", "", "ffffffffffffffff1", "5;\n", "5\n", "5\r")
    heads = {
        "length and chunks": f"{short}{CHUNKED}\r\n{chunks}",
        "chunks and length": f"{CHUNKED}{short}\r\n{chunks}",
        "length of less": f"Content-Length: 4\r\n{CHUNKED}\r\n{len(HIDDEN):x}\r\n{HIDDEN}\r\n0\r\n\r\n",
        "chunks of less": f"{CHUNKED}Content-Length: {len(HIDDEN) + 5}\r\n\r\n0\r\n\r\n",
        "two lengths": "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "chunked twice": f"{CHUNKED}{CHUNKED}\r\n{chunks}",
        "space before colon": f"Transfer-Encoding : chunked\r\n\r\n{chunks}",
        "space before name": f"X: a\r\n Transfer-Encoding: chunked\r\n\r\n{chunks}",
        "folded": f"Transfer-Encoding:\r\n chunked\r\n\r\n{chunks}",
        "folded with a tab": f"X: a\r\n\tb\r\n{short}\r\n{chunks}",
        "bare LF": "X: a\nContent-Length: 5\r\n\r\nhello",
        "bare LF before coding": f"X: a\nTransfer-Encoding: chunked\r\n\r\n{chunks}",
        "bare LF at the end": "Content-Length: 5\r\n\nhello",
        "bare CR": f"X: a\rTransfer-Encoding: chunked\r\n\r\n{chunks}",
        "NUL": f"X: a\x00b\r\n{short}\r\n{chunks}",
        "name with NUL": f"Transfer-Encoding\x00: chunked\r\n\r\n{chunks}",
        "no name": f": chunked\r\n{short}\r\n{chunks}",
        "coding in HTTP/1.0": "",
    }
    found = {name: f"{POST}{head}{HIDDEN}" for name, head in heads.items() if head}
    found |= {f"coding {each!r}": f"{POST}Transfer-Encoding: {each}\r\n\r\n{chunks}{HIDDEN}" for each in codings}
    found |= {f"length {each!r}": f"{POST}Content-Length: {each}\r\n\r\nhello{HIDDEN}" for each in lengths}
    found |= {f"chunk size {each!r}": f"{POST}{CHUNKED}\r\n{each}\r\nhello\r\n0\r\n\r\n{HIDDEN}" for each in sizes}
    found["coding in HTTP/1.0"] = f"POST /any HTTP/1.0\r\nHost: a\r\n{CHUNKED}\r\n{chunks}{HIDDEN}"
    found["chunk that is too long"] = f"{POST}{CHUNKED}\r\n5\r\nhello world\r\n0\r\n\r\n{HIDDEN}"
    found["lines without CR"] = f"{POST}\r\n".replace("\r", "") + HIDDEN
    found["target of another site"] = f"GET http://evil/any HTTP/1.1\r\nHost: a\r\n\r\n{HIDDEN}"
    found["tunnel"] = f"CONNECT evil:80 HTTP/1.1\r\nHost: a\r\n\r\n{HIDDEN}"
    found["no target"] = f"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n{HIDDEN}"
    found["version"] = f"GET /any HTTP/1.9\r\nHost: a\r\n\r\n{HIDDEN}"
    found["space in the target"] = f"GET /any /smuggled HTTP/1.1\r\nHost: a\r\n\r\n{HIDDEN}"
    return found


ATTEMPTS = attempts()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_ambiguous_request_is_refused_with_an_error_and_hides_no_other(name: str) -> None:
    with engine() as (app, url):
        with talking(url, ATTEMPTS[name].encode("latin-1")) as connection:
            received = read_all(connection)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4"), received
        assert json.loads(body)["error"]["code"] == "invalid_request"
        assert app.seen == []


SIZED = "Content-Length: 5\r\n\r\nhello"
PLAIN = {
    "chunk extensions": (f"{CHUNKED}\r\n5;a=b;smuggled\r\nhello\r\n0;c\r\n\r\n", "hello"),
    "trailers": (
        f"{CHUNKED}Trailer: X-Smuggled\r\n\r\n5\r\nhello\r\n0\r\nX-Smuggled: 1\r\nContent-Length: 9\r\n\r\n",
        "hello",
    ),
    "length is of the connection": (f"Connection: Content-Length\r\n{SIZED}", "hello"),
    "coding is of the connection": (
        f"Connection: Transfer-Encoding\r\n{CHUNKED}\r\n5\r\nhello\r\n0\r\n\r\n",
        "hello",
    ),
    "host is of the connection": (f"Connection: Host, X-Smuggled\r\nX-Smuggled: 1\r\n{SIZED}", "hello"),
    "body that looks like a request": (f"Content-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}", HIDDEN),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_request_reaches_the_worker_as_one_with_its_body(name: str) -> None:
    rest, body = PLAIN[name]
    with engine() as (app, url):
        with talking(url, (POST + rest).encode()) as connection:
            received = b""
            while not received.endswith(b"ok"):
                received += connection.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 200 ")
        (request,) = app.seen
        assert (request["path"], request["body"].decode()) == ("/any", body)
        framing = [value for name, value in request["headers"] if name in {"content-length", "transfer-encoding"}]
        assert framing == [str(len(body))]


def test_requests_that_follow_each_other_are_answered_in_order() -> None:
    one = f"{POST}Content-Length: 5\r\n\r\nhello"
    last = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with engine() as (app, url):
        with talking(url, (one * 3 + last).encode()) as connection:
            assert read_all(connection).count(b"HTTP/1.1 200 ") == 4
        assert [(request["path"], request["body"]) for request in app.seen] == [("/any", b"hello")] * 3 + [
            ("/last", b"")
        ]


# --- HTTP/2, whose frames may carry what a line of HTTP/1.1 may not ---

H2 = {
    "line break in a value": [("x", "a\r\nx-smuggled: 1")],
    "line feed in a value": [("x", "a\nx-smuggled: 1")],
    "NUL in a value": [("x", "a\x00b")],
    "line break in a name": [("x: a\r\nx-smuggled", "1")],
    "space in a name": [("x smuggled", "1")],
    "name in capitals": [("X-Smuggled", "1")],
    "coding": [("transfer-encoding", "chunked")],
    "connection": [("connection", "x-smuggled"), ("x-smuggled", "1")],
    "length of more": [("content-length", "99")],
    "length of less": [("content-length", "1")],
    "line break in the path": [(":path", f"/any HTTP/1.1\r\nHost: a\r\n\r\n{HIDDEN}")],
    "space in the path": [(":path", "/any /smuggled")],
    "line break in the method": [(":method", "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nPOST")],
    "line break in the authority": [(":authority", "a\r\nx-smuggled: 1")],
}


@pytest.mark.parametrize("name", H2)
def test_request_of_http2_injects_nothing(name: str) -> None:
    parts = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": "/any"}
    given = H2[name]
    headers = [*(parts | {key: value for key, value in given if key in parts}).items()]
    headers += [each for each in given if each[0] not in parts]
    with engine() as (app, url):
        with talking(url, b"") as connection:
            talk = H2Connection(
                H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None)
            )
            talk.initiate_connection()
            talk.send_headers(1, headers)
            talk.send_data(1, b"hello", end_stream=True)
            connection.sendall(talk.data_to_send())
            over, status = False, b""
            while not over and (data := connection.recv(1 << 16)):
                for event in talk.receive_data(data):
                    if isinstance(event, ResponseReceived):
                        status = dict(event.headers)[b":status"]
                    over = over or isinstance(event, StreamEnded | StreamReset | ConnectionTerminated)
                with contextlib.suppress(OSError):
                    connection.sendall(talk.data_to_send())
        assert status[:1] in {b"", b"4"}
        assert app.seen == []


def test_answers_of_a_worker_inject_nothing() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2"), (b"connection", b"x-smuggled"), (b"x-smuggled", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    with (
        serve_asgi(app, http="h11", ws="none", lifespan="off") as worker,
        serving(router := Router([worker])) as served,
    ):
        answer = send(served.url, "/any")
        assert (answer.status, answer.body, answer.headers["x-smuggled"]) == (200, b"ok", None)
        assert urlsplit(worker).netloc not in str(answer.headers)
        wait_until(lambda: router.stats().open_requests == 0)
