"""Connections of `cachelb serve` that break, and workers that do not answer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import struct
from collections.abc import Iterator
from http.client import IncompleteRead
from itertools import takewhile
from pathlib import Path

import pytest
from tests.answering import Handler, answering, server
from tests.answering import serving as serving_in_thread
from tests.gateway.serve.raw import HEAD, talking
from tests.gateways import Served, serving, wait_until
from tests.http_client import DEADLINE_S, complete, send
from tests.support_gateways import begin_stream, endings

from cachelb import Router
from cachelb_fakes import FakeFleet
from cachelb_gateway.serve import Gateway

PROMPT = "Waltz, bad nymph, for quick jigs vex. " * 20
RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def forgetful_worker(when: str) -> Iterator[tuple[str, list[int]]]:
    """Serve one request of each connection, and reset it at the second one; yield the URL, and requests so answered."""
    counts = [0, 0]

    class Forgetful(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for is_second in (False, True):
                if is_second and when == "idle":
                    break
                head = b"".join(takewhile(b"\r\n".__ne__, iter(self.rfile.readline, b"")))
                if not head:  # the gateway closed the connection
                    return
                self.rfile.read(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                counts[is_second] += 1
                if not is_second:
                    self.wfile.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                    )
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 128
        daemon_threads = True

    with serving_in_thread(Server(("127.0.0.1", 0), Forgetful)) as (_, port):
        yield f"http://127.0.0.1:{port}", counts


@pytest.mark.parametrize("when", ["request", "idle"])
def test_reset_of_every_used_connection_fails_no_request(when: str) -> None:
    with forgetful_worker(when) as (url, counts), serving(router := Router([url]), health_interval_s=None) as served:
        answers = [send(served.url, "/v1/completions", {"prompt": "x" * 40}) for _ in range(60)]
        assert [answer.status for answer in answers] == [200] * 60
        assert endings(router) == {"completed": 60}
        assert counts[0] == 60
        assert served.gateway.counts.get("stale-connection", 0) >= counts[1]
        assert served.gateway.counts.get("unreachable", 0) == 0


@pytest.mark.parametrize("beyond", [0, 300_000], ids=["one more", "300 KB more"])
@pytest.mark.parametrize("after_chunks", [0, 2], ids=["before the answer", "in the answer"])
def test_client_that_pipelines_and_leaves_is_noticed(beyond: int, after_chunks: int) -> None:
    body = json.dumps({"prompt": PROMPT, "stream": True, "max_tokens": 50}).encode()
    one = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    more = f"{HEAD}Content-Length: {beyond}\r\n\r\n".encode() + b" " * beyond if beyond else one
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        fleet.fail("stall", after_chunks=after_chunks)
        with talking(served.url, one) as connection:
            wait_until(lambda: fleet.workers[0]._replica.counts.faults["stall"] == 1)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.sendall(more)
        wait_until(lambda: not served.gateway.open_requests and not router.stats().open_requests)
        fleet.wait_for(lambda: fleet.workers[0]._replica.counts.open == 0, timeout_s=DEADLINE_S)
        assert fleet.workers[0].counts.started == 1
    assert endings(router) == {"cancelled": 1}


def test_clients_that_pipeline_much_are_closed_and_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

    body = json.dumps({"prompt": PROMPT, "stream": True}).encode()
    one = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    second = f"{HEAD}Content-Length: 9999999\r\n\r\n".encode()
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served, contextlib.ExitStack() as stack:
        fleet.fail("stall")
        before = resident()
        for _ in range(20):
            connection = stack.enter_context(talking(served.url, one + second))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b" " * (8 << 20))
        assert send(served.url, "/health").status == 200
        assert resident() - before < 64 << 20
        wait_until(lambda: not router.stats().open_requests)
        assert served.gateway.counts["pipelined"] == 20


def quiet(handler: Handler) -> None:
    handler.content()
    handler.reply(b"{}")


def schedulable(served: Served) -> int:
    count: int = send(served.url, "/ready").json["schedulable_workers"]
    return count


def test_worker_that_accepts_and_never_answers_is_passed_over_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    hung = server(quiet)
    url = f"http://127.0.0.1:{hung.server_port}"
    router = Router[str]()
    caplog.set_level(logging.INFO, "cachelb_gateway.serve")
    with FakeFleet(1) as fleet, serving(router, health_interval_s=0.05, expose_headers=["x-cachelb-worker"]) as served:
        router.sync_workers([url, *fleet.urls])
        wait_until(lambda: schedulable(served) == 1)
        answers = [complete(served.url, f"{number}{PROMPT}", max_tokens=1) for number in range(20)]
        assert {(answer.status, answer.headers["x-cachelb-worker"]) for answer in answers} == {(200, fleet.urls[0])}
        with serving_in_thread(hung):
            wait_until(lambda: schedulable(served) == 2)
            wait_until(lambda: f"worker {url} passes its health check" in caplog.messages)
            fleet.workers[0].stop()
            wait_until(lambda: complete(served.url, PROMPT).headers["x-cachelb-worker"] == url)
    assert ("cachelb_gateway.serve", logging.WARNING, f"worker {url} fails its health check, and is not picked") in (
        caplog.record_tuples
    )


@pytest.mark.parametrize("interval_s", [None, 0.01])
def test_health_checks_are_sent_unless_they_are_off(interval_s: float | None) -> None:
    seen: list[str] = []

    def answer(handler: Handler) -> None:
        seen.append(handler.path)
        quiet(handler)

    with answering(answer) as url, serving(Router([url]), health_interval_s=interval_s) as served:
        assert send(served.url, "/any").status == 200
        wait_until(lambda: interval_s is None or "/health" in seen)
    assert set(seen) == {"/any", *(["/health"] if interval_s else [])}


def test_late_first_byte_is_tried_elsewhere() -> None:
    with FakeFleet(2) as fleet, serving(router := Router(fleet.urls), first_byte_timeout_s=0.3) as served:
        fleet.fail("stall", times=1)
        assert complete(served.url, PROMPT, max_tokens=1).status == 200
        assert endings(router) == {"failed": 1, "completed": 1}
        fleet.fail("stall", times=1, after_chunks=1)
        with contextlib.closing(begin_stream(served.url, PROMPT)) as connection:
            answer = connection.getresponse()
            assert answer.readline().startswith(b"data:")
            wait_until(lambda: sum(worker._replica.counts.faults["stall"] for worker in fleet.workers) == 2)
            fleet.release()
            assert answer.read().endswith(b"data: [DONE]\n\n"), "an answer that has begun may take its time"


def test_worker_that_ends_its_answer_early_tears_the_clients() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        fleet.fail("die", times=1, after_chunks=2)
        with contextlib.closing(begin_stream(served.url, PROMPT)) as connection, pytest.raises(IncompleteRead):
            connection.getresponse().read()
        wait_until(lambda: not served.gateway.open_requests)
        assert served.gateway.counts == {"torn": 1}
        assert endings(router) == {"failed": 1}


def test_gateway_in_a_forked_child_neither_serves_nor_hangs() -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served:
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                served.gateway.stop(0.0, 0.0)
                try:
                    served.gateway.start("127.0.0.1:0")
                except RuntimeError:
                    with Gateway(Router(fleet.urls)) as own:
                        own.start("127.0.0.1:0")
                        code = 0 if complete(own.urls[0], PROMPT, max_tokens=1).status == 200 else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert complete(served.url, PROMPT, max_tokens=1).status == 200
