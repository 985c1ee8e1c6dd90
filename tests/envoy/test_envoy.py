"""The endpoint picker behind a real Envoy, in front of fake workers: `make test-envoy`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from tests.envoy.proxy import Gateway, configuration, filter_of, route_of, run_envoy, run_gateway, run_picker
from tests.http_client import JSON, complete, connect, send
from tests.waiting import wait_until

from cachelb import Router
from cachelb_fakes import FakeFleet

PROMPT = "The five boxing wizards jump quickly over the lazy dog. " * 20
NO_TRAILERS = {"request_trailer_mode": "SKIP", "response_trailer_mode": "SKIP"}
MODES = {
    "duplex": {},
    "buffered-streamed": {"request_body_mode": "BUFFERED", "response_body_mode": "STREAMED", **NO_TRAILERS},
    "buffered-buffered": {"request_body_mode": "BUFFERED", "response_body_mode": "BUFFERED", **NO_TRAILERS},
    "buffered-none": {"request_body_mode": "BUFFERED", "response_body_mode": "NONE", **NO_TRAILERS},
    "none-none": {"request_body_mode": "NONE", "response_body_mode": "NONE", **NO_TRAILERS},
}


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_answers_pass_and_requests_complete_in_every_mode(modes: dict[str, str], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"stream": True, "max_tokens": 20, "stream_options": {"include_usage": True}}
    with FakeFleet(3) as fleet, run_gateway(tmp_path, fleet.urls, modes=modes) as gateway:
        direct = complete(fleet.urls[0], PROMPT, **fields)
        whole: dict[str, Any] = {"max_tokens": 20}
        for some in (fields, whole):
            through = complete(gateway.url, PROMPT, **some)
            assert through.status == 200
            assert through.headers["x-cachelb-worker"] in fleet.urls
        assert len(complete(gateway.url, PROMPT, **fields).events) == len(direct.events)
        assert gateway.settled() == {"completed": 3}


@pytest.mark.parametrize("name", ["duplex", "buffered-streamed"])
def test_conversation_stays_with_the_worker_that_holds_it(name: str, tmp_path: Path) -> None:
    with FakeFleet(3) as fleet, run_gateway(tmp_path, fleet.urls, modes=MODES[name]) as gateway:
        # Long enough for several messages.
        told = PROMPT + "and on " * 20_000
        first = complete(gateway.url, told)
        again = complete(gateway.url, told + PROMPT)
        assert again.headers["x-cachelb-worker"] == first.headers["x-cachelb-worker"]
        assert again.headers["x-cachelb-reason"] == "prefix"
        assert again.json["usage"]["prompt_tokens"] == (2 * len(PROMPT) + 140_000) // 4
        gateway.settled()
        assert gateway.router.records.recent()[-1].cached_tokens == again.cached_tokens > 0


def test_requests_without_a_body_pass(tmp_path: Path) -> None:
    with FakeFleet(2) as fleet, run_gateway(tmp_path, fleet.urls) as gateway:
        assert send(gateway.url, "/v1/models").json["object"] == "list"
        assert gateway.settled() == {"completed": 1}


def test_fallback_serves_and_is_booked_when_the_pick_refuses(tmp_path: Path) -> None:
    with FakeFleet(3) as fleet, run_gateway(tmp_path, fleet.urls) as gateway:
        first = complete(gateway.url, PROMPT).headers["x-cachelb-worker"]
        down = next(worker for worker in fleet.workers if worker.url == first)
        down.fail("status", status=503, times=1)
        answer = complete(gateway.url, PROMPT)
        assert answer.status == 200
        assert answer.headers["x-cachelb-worker"] != first
        gateway.settled()
        assert gateway.picker.counts["served-fallback"] == 1
        down.stop()
        answer = complete(gateway.url, PROMPT + "more", max_tokens=2)
        assert answer.status == 200
        assert answer.headers["x-cachelb-worker"] != first
        gateway.settled()


def test_worker_that_cannot_be_reached_failed_and_did_not_push_back(tmp_path: Path) -> None:
    with FakeFleet(1) as fleet, run_gateway(tmp_path, fleet.urls) as gateway:
        fleet.workers[0].stop()
        assert complete(gateway.url, PROMPT).status == 503
        assert gateway.settled() == {"failed": 1}
        fleet.workers[0].start()
        fleet.workers[0].fail("status", status=429, times=3)
        assert complete(gateway.url, PROMPT).status == 429
        assert gateway.settled() == {"failed": 1, "backpressure": 1}


def test_worker_that_takes_too_long_failed(tmp_path: Path) -> None:
    with FakeFleet(1) as fleet, ExitStack() as stack:
        router = Router(fleet.urls, seed=1)
        picker, port = stack.enter_context(run_picker(router))
        document = configuration([fleet.urls[0].removeprefix("http://")], port)
        route_of(document)["timeout"] = "0.2s"
        url = stack.enter_context(run_envoy(tmp_path, document))
        fleet.fail("stall", times=1)
        assert complete(url, PROMPT).status == 504
        assert Gateway(url, router, picker).settled() == {"failed": 1}


def test_worker_that_dies_within_its_answer_looks_like_a_client_that_left(tmp_path: Path) -> None:
    slow = FakeFleet(1, time_scale=1, decode_tps=20)  # the client has the headers before the worker dies
    with slow as fleet, run_gateway(tmp_path, fleet.urls) as gateway:
        fleet.fail("die", times=1, after_chunks=4)
        with pytest.raises(IncompleteRead):
            complete(gateway.url, PROMPT, stream=True, max_tokens=8)
        assert gateway.settled() == {"cancelled": 1}


def test_proxy_answers_in_the_name_of_the_picker(tmp_path: Path) -> None:
    with (
        FakeFleet(2) as fleet,
        run_gateway(tmp_path, fleet.urls, max_body_bytes=100_000, large_bodies="refuse") as gateway,
    ):
        large = complete(gateway.url, "x" * 200_000)
        assert large.status == 413
        for url in fleet.urls:
            gateway.router.set_ready(url, False)
        refused = complete(gateway.url, PROMPT)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["error"]["type"] == "no_worker"
        assert gateway.settled() == {}


@pytest.mark.parametrize("name", ["duplex", "buffered-none"])
def test_clients_that_leave_free_their_worker(name: str, tmp_path: Path) -> None:
    with FakeFleet(2) as fleet, run_gateway(tmp_path, fleet.urls, modes=MODES[name]) as gateway:
        fleet.fail("stall", after_chunks=1)

        def leave(number: int) -> None:
            connection = connect(gateway.url)
            body = json.dumps({"prompt": f"{number} {PROMPT}", "stream": True, "max_tokens": 8})
            connection.request("POST", "/v1/completions", body, JSON)
            if number % 2:
                connection.getresponse().read(20)
            connection.close()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(leave, range(40)))
        wait_until(lambda: gateway.router.stats().open_requests == 0)
        gateway.settled()
        assert gateway.picker.counts["picked"] > 0
        wait_until(lambda: sum(worker.counts.started - worker.counts.aborted for worker in fleet.workers) == 0)


def test_proxy_with_buffered_bodies_goes_on_serving_without_the_picker(tmp_path: Path) -> None:
    with FakeFleet(2) as fleet, ExitStack() as stack:
        _, port = stack.enter_context(run_picker(Router(fleet.urls), expose_headers=["x-cachelb-worker"]))
        addresses = [url.removeprefix("http://") for url in fleet.urls]
        document = configuration(addresses, port, **MODES["buffered-streamed"])
        filter_of(document)["failure_mode_allow"] = True
        with run_envoy(tmp_path, document) as url:
            assert "x-cachelb-worker" in complete(url, PROMPT).headers
            stack.close()
            answers = [complete(url, PROMPT) for _ in range(4)]
            assert [answer.status for answer in answers] == [200] * 4
            assert "x-cachelb-worker" not in answers[0].headers
