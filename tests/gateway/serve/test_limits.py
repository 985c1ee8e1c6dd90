"""Bounds of `cachelb serve` on clients and workers, and its end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.client import IncompleteRead
from typing import Any

import pytest
from tests.gateway.serve.echo import echo_worker, worker
from tests.gateway.serve.raw import HEAD, answer_of, read_all, talking
from tests.gateways import Served, serving, wait_until
from tests.http_client import DEADLINE_S, JSON, complete, connect, send
from tests.support_gateways import begin_stream, endings

from cachelb import Router
from cachelb.admission import AdmissionOptions
from cachelb_fakes import FakeFleet

PROMPT = "Jackdaws love my big sphinx of quartz. " * 20


def bounds(max_wait_s: float | None) -> AdmissionOptions:
    return AdmissionOptions(max_pending_tokens=100, max_wait_s=max_wait_s)


def is_refused(url: str) -> bool:
    try:
        return not send(url, "/health")
    except ConnectionError:
        return True


def is_stalled(fleet: FakeFleet) -> bool:
    """Whether the one request that is to stall has reached its worker."""
    return fleet.workers[0]._replica.counts.faults["stall"] == 1


def queued(router: Router[str]) -> int:
    return sum(band.queued for band in router.stats().admission)


def none_open(served: Served, router: Router[str]) -> bool:
    return not served.gateway.open_requests and not served.gateway.held_bytes and not router.stats().open_requests


# --- what clients send ---


@pytest.mark.parametrize(
    "sent",
    [f"{HEAD}Content-Length: 1000001\r\n\r\n", HEAD + "Transfer-Encoding: chunked\r\n\r\nfffff\r\n" + "x" * 1_000_001],
    ids=["declared", "chunked"],
)
def test_longer_body_is_answered_with_413_before_it_is_there(sent: str) -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), max_body_bytes=1_000_000) as served:
        with talking(served.url, sent.encode()) as connection:
            status, error = answer_of(connection)
        assert (status, error["code"], error["type"]) == (413, "body_too_large", "invalid_request_error")
        assert none_open(served, router)
        assert fleet.workers[0].counts.started == 0


def test_slow_body_is_answered_with_408() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), body_timeout_s=0.2) as served:
        with talking(served.url, f"{HEAD}Content-Length: 100\r\n\r\n{{".encode()) as connection:
            status, error = answer_of(connection)
        assert (status, error["code"]) == (408, "body_timeout")
        assert none_open(served, router)


@pytest.mark.parametrize("limit", [{"max_open": 2}, {"max_held_bytes": 20}], ids=["requests", "bytes"])
def test_more_than_the_bounds_are_answered_with_503_and_a_time_to_wait(limit: dict[str, Any]) -> None:
    begun = f'{HEAD}Content-Length: 100\r\n\r\n{{"prompt":'.encode()
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), **limit) as served:
        with talking(served.url, begun), talking(served.url, begun):
            wait_until(lambda: served.gateway.open_requests == 2 and served.gateway.held_bytes == 20)
            answer = complete(served.url, PROMPT)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json["error"]["code"] == "overloaded"
            assert send(served.url, "/health").status == 200
        wait_until(lambda: none_open(served, router))
        assert complete(served.url, "x", max_tokens=1).status == (200 if "max_open" in limit else 503)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + "X-Long: " + "x" * 70_000 + "\r\n\r\n", 431),
        (HEAD + "".join(f"X-{n}: 1\r\n" for n in range(300)) + "\r\n", 431),
        ("GET /" + "x" * 70_000 + " HTTP/1.1\r\n\r\n", 431),
        (HEAD + "X Y: 1\r\n\r\n", 400),
        ("nothing of HTTP\r\n\r\n", 400),
    ],
    ids=["one header", "headers", "target", "name", "line"],
)
def test_malformed_and_endless_heads_are_answered_with_an_error(sent: str, status: int) -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served:
        with talking(served.url, sent.encode()) as connection:
            seen, error = answer_of(connection)
        assert (seen, error["code"], error["type"]) == (status, "invalid_request", "invalid_request_error")
        assert complete(served.url, PROMPT, max_tokens=1).status == 200
        assert fleet.workers[0].counts.started == 1


def test_endless_trailers_end_the_connection() -> None:
    sent = HEAD + 'Transfer-Encoding: chunked\r\n\r\ne\r\n{"prompt":"x"}\r\n0\r\nX-Trailer: ' + "x" * (9 << 20)
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        with contextlib.suppress(ConnectionError), talking(served.url, b"") as connection:
            connection.sendall(sent.encode())
            assert connection.recv(1 << 16)[9:10] in {b"", b"4"}
        wait_until(lambda: none_open(served, router))
        assert fleet.workers[0].counts.started == 0


@pytest.mark.parametrize("sent", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_silent_connections_are_closed(sent: bytes) -> None:
    limits: dict[str, Any] = {"head_timeout_s": 0.1, "keep_alive_s": 0.1}
    with serving(Router[str](), **limits) as served, talking(served.url, sent) as connection:
        assert read_all(connection)[9:10] in {b"", b"2", b"4"}


def test_connections_beyond_the_bound_are_closed() -> None:
    with serving(Router[str](), max_connections=1) as served:
        with talking(served.url, b""):
            wait_until(lambda: is_refused(served.url))
        wait_until(lambda: not is_refused(served.url))
        assert served.gateway.counts["too-many-connections"] >= 1


def test_clients_that_send_and_read_slowly_hold_up_no_others() -> None:
    body = b'{"prompt": "x", "max_tokens": 20000, "stream": true}'
    sent = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with FakeFleet(1, kv_blocks=1 << 20) as fleet, serving(router := Router(fleet.urls)) as served:
        with contextlib.ExitStack() as stack:
            for _ in range(16):
                stack.enter_context(talking(served.url, sent))  # reads nothing
                stack.enter_context(talking(served.url, sent[:-10]))  # sends no more
            wait_until(lambda: served.gateway.open_requests == 32)
            assert [complete(served.url, PROMPT, max_tokens=1).status for _ in range(4)] == [200] * 4
            slow = stack.enter_context(talking(served.url, b""))
            for byte in sent.replace(b"20000", b"2    "):
                slow.sendall(bytes([byte]))
            received = b""
            while b"[DONE]" not in received:
                received += slow.recv(7)
        wait_until(lambda: none_open(served, router))


def test_prompts_beyond_what_may_be_pending_are_answered_with_429_until_an_answer_begins() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), admission=bounds(max_wait_s=0)) as served:
        fleet.fail("stall", times=1)
        with contextlib.closing(begin_stream(served.url, PROMPT)):
            wait_until(lambda: router.stats().open_requests == 1)
            refused = complete(served.url, "Hi")
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json["error"]["code"] == "workers_busy"
            assert fleet.urls[0] not in refused.body.decode()
            assert send(served.url, "/v1/load_lora_adapter", {}).status == 404, "no prompt, and not refused"
        wait_until(lambda: none_open(served, router))
        assert complete(served.url, "Hi").status == 200
    assert router.stats().overloaded == 1


def test_held_prompts_go_to_the_worker_when_an_answer_begins_or_are_refused() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), admission=bounds(max_wait_s=None)) as served:
        fleet.fail("stall", times=1)
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(contextlib.closing(begin_stream(served.url, PROMPT))) for _ in "ab")
            wait_until(lambda: queued(router) == 1 and is_stalled(fleet))
            assert router.stats().open_requests == 1
            fleet.release()
            assert [each.getresponse().read()[-6:] for each in (first, second)] == [b"ONE]\n\n"] * 2
    (band,) = router.stats().admission
    assert (band.admitted, band.released, endings(router)) == (1, 1, {"completed": 2})


def test_prompts_that_waited_too_long_get_429() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), admission=bounds(max_wait_s=0.05)) as served:
        fleet.fail("stall", times=1)
        with contextlib.closing(begin_stream(served.url, PROMPT)):
            wait_until(lambda: is_stalled(fleet))
            refused = complete(served.url, "Hi")
        assert (refused.status, refused.json["error"]["code"]) == (429, "workers_busy")
    (band,) = router.stats().admission
    assert (band.admitted, band.expired) == (1, 1)


def test_client_that_leaves_while_its_prompt_is_held_leaves_the_queue() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), admission=bounds(max_wait_s=None)) as served:
        fleet.fail("stall", times=1)
        with contextlib.closing(begin_stream(served.url, PROMPT)) as first:
            wait_until(lambda: is_stalled(fleet))
            with contextlib.closing(begin_stream(served.url, PROMPT)):
                wait_until(lambda: queued(router) == 1)
            wait_until(lambda: served.gateway.open_requests == 1)
            assert (queued(router), router.stats().open_requests) == (0, 1)
            fleet.release()
            first.getresponse().read()
        wait_until(lambda: none_open(served, router))
        assert fleet.workers[0].counts.started == 1
    (band,) = router.stats().admission
    assert (band.cancelled, endings(router)) == (1, {"completed": 1})


def test_prompts_wait_for_a_worker_that_joins_though_there_is_an_admission() -> None:
    with FakeFleet(1) as fleet, serving(router := Router[str](), admission=bounds(max_wait_s=0)) as served:
        with contextlib.closing(begin_stream(served.url, PROMPT)) as waiting:
            wait_until(lambda: served.gateway.open_requests == 1)
            router.sync_workers(fleet.urls)
            assert waiting.getresponse().status == 200
        assert complete(served.url, PROMPT, max_tokens=1).status == 200


def test_prompts_that_wait_for_a_worker_do_not_fall_upon_the_first_that_joins() -> None:
    with FakeFleet(1) as fleet, serving(router := Router[str](), admission=bounds(max_wait_s=None)) as served:
        fleet.fail("stall", times=1)
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(contextlib.closing(begin_stream(served.url, PROMPT)))
            wait_until(lambda: served.gateway.open_requests == 3)
            router.sync_workers(fleet.urls)
            wait_until(lambda: is_stalled(fleet) and queued(router) == 2)
            assert router.stats().open_requests == 1
            fleet.release()
        wait_until(lambda: none_open(served, router))


# --- clients that leave, and clients that do nothing ---


@pytest.mark.parametrize("after_chunks", [0, 3])
def test_client_that_leaves_frees_worker_and_booking_within_100_ms(after_chunks: int) -> None:
    took = []
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        worker = fleet.workers[0]
        for n in range(5):
            worker.fail("stall", times=1, after_chunks=after_chunks)
            with contextlib.closing(begin_stream(served.url, PROMPT)):
                wait_until(lambda n=n: worker._replica.counts.faults["stall"] == n + 1)  # type: ignore[misc]
            left = time.monotonic()
            wait_until(lambda n=n: worker._replica.counts.aborted == n + 1 and none_open(served, router))  # type: ignore[misc]
            took.append(time.monotonic() - left)
        assert endings(router) == {"cancelled": 5}
    assert min(took) < 0.1


@pytest.mark.parametrize("after_chunks", [0, 2])
def test_worker_that_does_nothing_is_given_up(after_chunks: int) -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), idle_timeout_s=0.3) as served:
        fleet.fail("stall", after_chunks=after_chunks)
        with contextlib.closing(begin_stream(served.url, PROMPT)) as connection:
            answer = connection.getresponse()
            if after_chunks:
                with pytest.raises(IncompleteRead):
                    answer.read()
            else:
                assert (answer.status, json.loads(answer.read())["error"]["code"]) == (504, "timeout")
        wait_until(lambda: none_open(served, router))
        fleet.wait_for(lambda: fleet.workers[0]._replica.counts.open == 0, timeout_s=DEADLINE_S)
    assert endings(router) == {"cancelled" if after_chunks else "failed": 1}


def test_client_that_does_not_read_is_given_up() -> None:
    given_up = threading.Event()

    def flood(handler: Any) -> None:
        handler.content()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        with contextlib.suppress(ConnectionError):
            while True:  # far more than all buffers take
                handler.wfile.write(b'data: {"choices": []}\n\n' * 1000)
        given_up.set()

    with worker(flood) as url, serving(router := Router([url]), idle_timeout_s=1.0) as served:
        with contextlib.closing(connect(served.url)) as connection:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "stream": True}), JSON)
            wait_until(lambda: endings(router) == {"cancelled": 1})
            wait_until(lambda: none_open(served, router))
        assert given_up.wait(DEADLINE_S)


def test_request_that_may_have_an_effect_is_sent_once() -> None:
    with FakeFleet(3) as fleet, serving(router := Router(fleet.urls)) as served:
        for worker in fleet.workers[1:]:
            worker.stop()
        assert [send(served.url, "/v1/load_lora_adapter", {}).status for _ in range(8)] == [404] * 8, "never sent"
    assert endings(router)["client"] == 8
    with echo_worker(status=503) as url, FakeFleet(1) as fleet, serving(Router([url, *fleet.urls])) as served:
        assert {send(served.url, "/v1/load_lora_adapter", {}).status for _ in range(8)} >= {503}


def test_answer_of_the_only_worker_reaches_the_client_though_it_may_be_retried() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        fleet.fail("status", times=1, status=429, retry_after_s=7)
        answer = complete(served.url, PROMPT)
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert endings(router) == {"backpressure": 1}


# --- the end ---


def test_end_is_unready_first_then_a_second_stop_cancels() -> None:
    router = Router[str](policy="round-robin")
    with FakeFleet(2) as fleet, serving(router, drain_s=DEADLINE_S, grace_s=DEADLINE_S) as served:
        router.sync_workers(fleet.urls)
        fleet.fail("stall", times=2, after_chunks=1)
        with contextlib.ExitStack() as held:
            streams = [held.enter_context(contextlib.closing(begin_stream(served.url, PROMPT))) for _ in range(2)]
            answers = [each.getresponse() for each in streams]
            waiting = held.enter_context(talking(served.url, f"{HEAD}Content-Length: 9\r\n\r\n{{".encode()))
            wait_until(lambda: served.gateway.open_requests == 3)
            served.stop()
            for url in (served.admin_url, served.url):
                wait_until(lambda url=url: send(url, "/ready").status == 503)  # type: ignore[misc]
                assert send(url, "/health").status == 200
            assert complete(served.url, PROMPT, max_tokens=1).status == 200, "it serves on"
            fleet.workers[0].release()
            wait_until(lambda: endings(router)["completed"] == 2)
            served.stop()
            ends = []
            for answer in answers:
                try:
                    ends.append(answer.read()[-6:])
                except IncompleteRead:
                    ends.append(b"torn")
            status, error = answer_of(waiting)
            assert sorted(ends) == [b"ONE]\n\n", b"torn"]
            assert (status, error["code"]) == (503, "shutting_down")
            assert served.has_ended()
    assert none_open(served, router)
    assert endings(router) == {"completed": 2, "cancelled": 1}


def test_end_serves_held_prompts_and_admits_no_others() -> None:
    router = Router[str]()
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(FakeFleet(1))
        served = stack.enter_context(serving(router, admission=bounds(max_wait_s=None), grace_s=DEADLINE_S))
        router.sync_workers(fleet.urls)
        fleet.fail("stall", times=1)
        streams = [stack.enter_context(contextlib.closing(begin_stream(served.url, PROMPT))) for _ in range(2)]
        late = stack.enter_context(talking(served.url, f"{HEAD}Content-Length: 15\r\n\r\n{{".encode()))
        wait_until(lambda: queued(router) == 1 and is_stalled(fleet))
        wait_until(lambda: served.gateway.open_requests == 3)
        served.stop()
        wait_until(lambda: is_refused(served.url))
        late.sendall(b'"prompt":"Hi"}')
        status, error = answer_of(late)
        assert (status, error["code"]) == (503, "shutting_down")
        fleet.release()
        assert [each.getresponse().read()[-6:] for each in streams] == [b"ONE]\n\n"] * 2
        assert served.has_ended()
    assert endings(router) == {"completed": 2}


def test_stalled_requests_end_with_the_grace() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls), grace_s=0.2) as served:
        fleet.fail("stall")
        with contextlib.closing(begin_stream(served.url, PROMPT)) as connection:
            wait_until(lambda: router.stats().open_requests == 1)
            served.stop()
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "shutting_down")
            assert served.has_ended()
        fleet.wait_for(lambda: fleet.workers[0]._replica.counts.open == 0, timeout_s=DEADLINE_S)
    assert endings(router) == {"cancelled": 1}
