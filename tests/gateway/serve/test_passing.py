"""Requests and answers that `cachelb serve` passes on, and headers and paths that it keeps."""

from __future__ import annotations

import json
import socket
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.certificates import certificate
from tests.gateway.serve.echo import echo_worker
from tests.gateways import serving
from tests.http_client import DEADLINE_S, Answer, complete, connect, send

from cachelb import RequestBodies, Router
from cachelb_fakes import FakeFleet
from cachelb_gateway.serve import Certificate

PROMPT = "Sphinx of black quartz, judge my vow. " * 20


def ask(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    connection = connect(url)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_and_path_passes_as_it_was_sent(method: str) -> None:
    path = "/any/%2Fencoded%20path/..//x?q=a%26b&q=%ff"
    body = b"\x00\xff not JSON" if method in {"POST", "PUT", "PATCH"} else None
    with echo_worker() as worker, serving(Router([worker])) as served:
        answer = ask(served.url, method, path, body, Content_Type="x/y", Accept_Encoding="br")
    assert answer.status == 200
    assert answer.headers["x-method"] == method
    if method == "HEAD":
        assert answer.body == b""
        assert int(answer.headers["content-length"]) > 0
        return
    seen = answer.json
    assert (seen["method"], seen["path"], seen["body"]) == (method, path, (body or b"").decode("latin-1"))
    assert (seen["headers"]["content-type"], seen["headers"]["accept-encoding"]) == ("x/y", "br")
    assert seen["headers"]["host"] == urlsplit(worker).netloc


def test_headers_of_one_connection_and_those_named_by_it_stay_there() -> None:
    hops = {"Keep-Alive": "timeout=9", "TE": "trailers", "Proxy-Authorization": "Basic x", "Upgrade": "h2c"}
    sent = {"Connection": "keep-alive, X-Mine", "X-Mine": "1", "X-Other": "2", "Authorization": "Bearer k", **hops}
    untrusted = {"X-Data-Parallel-Rank": "3", "X-Cachelb-Worker": "http://evil", "X-SMG-Target-Worker": "1"}
    back = {
        "Connection": "X-Theirs",
        "X-Theirs": "1",
        "X-Kept": "2",
        "Proxy-Authenticate": "Basic",
        "X-Cachelb-Worker": "http://gpu0",
        "Set-Cookie": "a=b",
    }
    with echo_worker(back) as worker, serving(Router([worker])) as served:
        answer = send(served.url, "/v1/completions", {"prompt": PROMPT}, {**sent, **untrusted})
    seen = answer.json["headers"]
    assert (seen["authorization"], seen["x-other"], seen["accept-encoding"]) == ("Bearer k", "2", "identity")
    gone = {name.lower() for name in (*sent, *untrusted)} - {"authorization", "x-other", "connection"}
    assert gone.isdisjoint(seen)
    assert "x-mine" not in str(seen.get("connection"))
    assert (answer.headers["x-kept"], answer.headers["set-cookie"]) == ("2", "a=b")
    assert {"x-theirs", "proxy-authenticate", "x-cachelb-worker", "server"}.isdisjoint(map(str.lower, answer.headers))
    assert len(answer.headers.get_all("date", [])) == 1


def test_redirect_of_a_worker_does_not_name_it() -> None:
    location: dict[str, str] = {}
    with echo_worker(location, status=307) as worker, serving(Router([worker])) as served:
        location["Location"] = f"{worker}/v1/completions/?a=b"
        answer = send(served.url, "/v1/completions", {"prompt": "x"})
    assert (answer.status, answer.headers["location"]) == (307, "/v1/completions/?a=b")


@pytest.mark.parametrize("status", [204, 304])
def test_answer_without_a_body_is_whole(status: int) -> None:
    with echo_worker(status=status) as worker, serving(Router([worker])) as served:
        parts = urlsplit(served.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=DEADLINE_S) as connection:
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 %d" % status)
    assert b"content-length" not in received.lower()


# --- its own paths ---


def test_health_and_readiness() -> None:
    with FakeFleet(2) as fleet, serving(router := Router(fleet.urls)) as served:

        def seen(url: str) -> list[int]:
            return [send(url, path).status for path in ("/health", "/ready")]

        assert seen(served.url) == seen(served.admin_url) == [200, 200]
        assert send(served.url, "/ready").json == {"ready": True, "schedulable_workers": 2}
        router.set_ready(fleet.urls[0], False)
        assert send(served.url, "/ready").json["schedulable_workers"] == 1
        router.set_ready(fleet.urls[1], False)
        answer = send(served.url, "/ready")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert seen(served.url) == [200, 503]
        assert not any(url in answer.body.decode() for url in fleet.urls)


def test_models_of_all_workers_are_one_list_by_id() -> None:
    with FakeFleet(0) as fleet:
        for names in (["base", "a"], ["base", "org/b"]):
            fleet.add_worker(models=names)
        fleet.add_worker().fail("refuse")
        router = Router[str]()
        for url, names in zip(fleet.urls, (["base", "a"], ["base", "org/b"], ["lost"]), strict=True):
            router.add_worker(url, models=names)
        with serving(router) as served:
            models = send(served.url, "/v1/models").json
            one = send(served.url, "/v1/models/org%2Fb")
            none = send(served.url, "/v1/models/c")
            answers = [complete(served.url, PROMPT, model=name, max_tokens=1) for name in ("a", "org/b", "c")]
            assert send(served.url, "/version").status == 200, "a request that names no model"
    assert models["object"] == "list"
    assert [each["id"] for each in models["data"]] == ["base", "a", "org/b"]
    assert (one.status, one.json["id"]) == (200, "org/b")
    assert (none.status, none.json["error"]["code"]) == (404, "model_not_found")
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert answers[2].json["error"] == {
        "message": "the model does not exist",
        "type": "not_found_error",
        "code": "model_not_found",
    }


def test_models_without_an_answer_are_an_error() -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served:
        fleet.workers[0].stop()
        answer = send(served.url, "/v1/models")
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_worker_available")
    with echo_worker(status=401) as worker, serving(Router([worker])) as served:
        assert send(served.url, "/v1/models").status == 401


@pytest.mark.parametrize("path", ["/metrics", "/dump", "/capture"])
def test_admin_paths_are_not_there_for_clients(path: str) -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served:
        bodies: list[dict[str, str] | None] = [None, {}]
        for body in bodies:
            answer = send(served.url, path, body)
            assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")


# --- TLS and unix sockets ---


def test_tls_on_both_sides(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    with echo_worker(tls=(cert, key)) as worker:
        with serving(Router([worker]), certificate=Certificate(cert, key), upstream_ca=cert) as served:
            assert served.url.startswith("https://")
            connection = HTTPSConnection("127.0.0.1", urlsplit(served.url).port, timeout=DEADLINE_S, context=trusted)
            connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT}), {"Content-Type": "a/json"})
            assert json.loads(connection.getresponse().read())["path"] == "/v1/completions"
            connection.close()
        with serving(Router([worker])) as served:  # its certificate is not the system's
            answer = send(served.url, "/v1/completions", {"prompt": PROMPT})
            assert (answer.status, answer.json["error"]["code"]) == (503, "no_worker_available")
            assert worker not in answer.body.decode()


def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with FakeFleet(2, uds=True) as fleet:
        router = Router(fleet.urls, policy="round-robin")
        for _ in range(2):  # the second one takes the place of the first
            with serving(router, listen=f"unix:{path}") as served:
                assert served.url == f"unix://{path}"
                assert [complete(served.url, f"{n}{PROMPT}", max_tokens=1).status for n in range(4)] == [200] * 4
            assert not path.exists()
        assert [worker.counts.finished for worker in fleet.workers] == [4, 4]


def test_password_in_a_workers_url_is_sent_and_not_shown() -> None:
    with echo_worker() as worker:
        address = worker.replace("://", "://me:s%40cret@")
        with serving(Router([address])) as served:
            answer = send(served.url, "/v1/completions", {"prompt": "x"}, {"Authorization": "Bearer client"})
            dump = send(served.admin_url, "/dump").body.decode()
    assert answer.json["headers"]["authorization"] == "Basic bWU6c0BjcmV0"
    assert "cret" not in dump


# --- bodies ---


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", b"{", 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/messages", b"", 400),
        ("/v1/completions", b'{"prompt": [-1]}', 200),
        ("/v1/chat/completions", b'{"temperature": NaN}', 200),
        ("/v1/chat/completions", '{"messages": []}'.encode("utf-16"), 200),
        ("/v1/embeddings", b'{"input": [' + b'"a",' * 100_000 + b'"a"]}', 200),
        ("/v1/audio/transcriptions", b"--x\r\n", 200),
        ("/tokenize", b"{", 200),
        ("/v1/anything", b"", 200),
    ],
)
def test_prompt_that_is_no_json_is_refused_and_all_else_passes(path: str, body: bytes, status: int) -> None:
    with echo_worker() as worker, serving(router := Router([worker], bodies=RequestBodies(strict=True))) as served:
        answer = send(served.url, path, body)
        assert answer.status == status
        if status == 400:
            error: dict[str, Any] = answer.json["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_body")
        assert router.stats().open_requests == 0
