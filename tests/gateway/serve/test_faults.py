"""A fault inside one request, and the end of the process under load: other requests do not notice."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gateway.serve.test_command import command, workers
from tests.gateways import serving, wait_until
from tests.http_client import DEADLINE_S, complete
from tests.support_gateways import begin_stream, endings

from cachelb import RequestBodies, Router
from cachelb.policies import FleetView, RequestView
from cachelb_fakes import FakeFleet

STREAMS = 40
DONE = b"data: [DONE]\n\n"


class Fault(BaseException):
    """An exception that no handler catches."""


class FailsFor:
    """A policy that raises for prompts of a size."""

    name = "fails"
    needs = frozenset[str]()

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        if request.prompt_tokens > 1000:
            raise Fault
        return request.randrange(len(fleet))


def render(body: bytes, _path: str) -> list[int]:
    """Render a prompt, and raise for one."""
    prompt = json.loads(body)["prompt"]
    if "fault" in prompt:
        raise Fault
    return list(prompt.encode())


@pytest.mark.parametrize(
    ("options", "prompt"),
    [({"policy": FailsFor()}, "long " * 4000), ({"bodies": RequestBodies(renderer=render)}, "fault")],
    ids=["policy", "renderer"],
)
def test_fault_in_one_request_ends_no_other(
    options: dict[str, Any], prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: logged.append(raised.exc_type))
    with FakeFleet(2) as fleet, serving(router := Router(fleet.urls, **options)) as served:
        fleet.fail("stall", after_chunks=1)
        with contextlib.ExitStack() as held:
            streams = [held.enter_context(contextlib.closing(begin_stream(served.url, "Hi"))) for _ in range(8)]
            answers = [stream.getresponse() for stream in streams]
            wait_until(lambda: router.stats().open_requests == 8)
            fleet.heal()
            failed = [complete(served.url, prompt, max_tokens=1) for _ in range(4)]
            assert {(answer.status, answer.json["error"]["code"]) for answer in failed} == {(500, "internal_error")}
            assert complete(served.url, "Hi", max_tokens=1).status == 200
            assert served.gateway.counts["failed"] == 4
            fleet.release()
            assert [answer.read()[-len(DONE) :] for answer in answers] == [DONE] * 8
        wait_until(lambda: served.gateway.open_requests == 0)
    assert logged == [Fault] * 4
    assert endings(router) == {"completed": 9}


def test_sigterm_loses_no_answer_that_has_begun() -> None:
    # An answer takes half a second or more, so that all are under way at the signal.
    with FakeFleet(2, time_scale=1.0, decode_tps=100.0, stream_interval=4, max_running=STREAMS) as fleet:
        with command(*workers(fleet.urls), "--grace-s", DEADLINE_S) as served, contextlib.ExitStack() as held:
            address = urlsplit(served.url)
            idle = held.enter_context(socket.create_connection((address.hostname, address.port), DEADLINE_S))
            streams: list[HTTPConnection] = [
                held.enter_context(contextlib.closing(begin_stream(served.url, f"{n}", max_tokens=200)))
                for n in range(STREAMS)
            ]
            answers = [stream.getresponse() for stream in streams]
            assert [answer.status for answer in answers] == [200] * STREAMS
            begun = [answer.read(16) for answer in answers]
            served.process.send_signal(signal.SIGTERM)
            refused = 0
            while served.process.poll() is None and not refused:
                try:
                    refused += complete(served.url, "late", max_tokens=1).status == 503
                except OSError:
                    refused += 1
                time.sleep(0.01)
            assert refused
            whole = [first + answer.read() for first, answer in zip(begun, answers, strict=True)]
            assert [text[-len(DONE) :] for text in whole] == [DONE] * STREAMS
            assert {text.count(b"data: ") for text in whole} == {whole[0].count(b"data: ")}
            assert idle.recv(1) == b"", "a connection without a request is closed"
            assert served.process.wait(DEADLINE_S) == 0
        assert sum(worker.counts.finished for worker in fleet.workers) >= STREAMS
        assert not any(worker.counts.aborted for worker in fleet.workers)
