"""The endpoint picker and the answers of workers: bookings, ends of requests, and that nothing stays booked."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from tests.models.ext_proc_client import BUFFERED, DUPLEX, URLS, Service, Stream, in_loop, serve, served
from tests.support_gateways import endings

from cachelb import Health, Router

A, C = "10.0.0.1:8000", "10.0.0.3:8000"
BODY = json.dumps({"prompt": "The five boxing wizards jump quickly over the lazy dog. " * 20}).encode()
USAGE = b'"usage":{"prompt_tokens":64,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":48}}'


async def answered(
    service: Service, *headers: Any, modes: Any = DUPLEX, **answer: Any
) -> tuple[Stream, dict[str, str]]:
    """Send a request and the headers of its answer; return what the picker adds to these."""
    stream = service.stream(modes)
    await stream.request(BODY)
    return stream, await stream.answer_headers(*headers, **answer)


# --- the worker that served it ---


@served(expose_headers=["x-cachelb-worker"])
async def test_fallback_that_served_the_request_is_booked_in_place_of_the_pick(
    router: Router[str], service: Service
) -> None:
    stream = service.stream()
    picked, fallback, _ = (await stream.request(BODY)).endpoints
    assert router.loads()[f"http://{picked}"] == 1
    added = await stream.answer_headers(served=fallback)
    assert added["x-cachelb-worker"] == f"http://{fallback}"
    assert router.loads() == {url: int(url.endswith(fallback)) for url in URLS}
    await stream.answer_body(b"{" + USAGE + b"}")
    assert endings(router) == {"failed": 1, "completed": 1}
    assert service.picker.counts == {"picked": 1, "served-fallback": 1}
    # It holds the prompt now, and is picked for it.
    assert (await service.stream().request(BODY)).endpoints[0] == fallback


@pytest.mark.parametrize("names", [[], ["x-cachelb-worker", "X-Cachelb-Matched-Tokens"]], ids=["none", "two"])
@in_loop
async def test_pick_that_served_stays_booked_and_shows_what_is_exposed_by_name(names: list[str]) -> None:
    router = Router(URLS, seed=1)
    async with serve(router, expose_headers=names) as service:
        stream = service.stream()
        picked = (await stream.request(BODY)).endpoints[0]
        added = await stream.answer_headers(served=picked)
        shown = {"x-cachelb-worker": f"http://{picked}", "x-cachelb-matched-tokens": "0"}
        assert added == (shown if names else {})
        assert router.loads()[f"http://{picked}"] == 1
        await stream.answer_body(b"{}")
        assert endings(router) == {"completed": 1}


@in_loop
async def test_workers_may_share_an_address() -> None:
    router = Router([f"http://{A}/left", f"http://{A}/right"], seed=1)
    async with serve(router) as service:
        for _ in range(4):
            stream = service.stream()
            assert (await stream.request(BODY)).endpoints == [A, A]
            await stream.answer_headers(served=A)
        assert service.picker.counts == {"picked": 4}


@served()
async def test_request_served_by_a_worker_that_left_meanwhile_is_booked_nowhere(
    router: Router[str], service: Service
) -> None:
    stream = service.stream()
    fallback = (await stream.request(BODY)).endpoints[1]
    router.set_ready(f"http://{fallback}", False)
    await stream.answer_headers(served=fallback)
    assert router.stats().open_requests == 0
    assert service.picker.counts["served-unbooked"] == 1
    reply = await stream.answer_body(b"{}")
    assert reply.response_body.response.body_mutation.streamed_response.body == b"{}"


# --- how it ends ---


@pytest.mark.parametrize(
    ("status", "details", "ending"),
    [
        *((status, None, "completed") for status in (200, 302)),
        (400, None, "client"),
        *((status, None, "backpressure") for status in (429, 503)),
        *((status, None, "failed") for status in (500, 504)),
        (503, "via_upstream", "backpressure"),
        (503, "upstream_reset_before_response_started{connection_failure}", "failed"),
        (503, "upstream_reset_before_response_started{overflow}", "cancelled"),
        (504, "response_timeout", "failed"),
        (503, "overload", "cancelled"),
        (413, "request_payload_too_large", "cancelled"),
        (429, "rate_limited", "cancelled"),
    ],
)
@served()
async def test_status_decides_how_the_request_ends(
    router: Router[str], service: Service, status: int, details: str | None, ending: str
) -> None:
    stream, _ = await answered(service, status, details=details)
    assert endings(router) == ({ending: 1} if status >= 400 else {})
    await stream.answer_body(b"{}")
    await stream.finish()
    await service.settled()
    assert endings(router) == {ending: 1}


@pytest.mark.parametrize("modes", [DUPLEX, BUFFERED], ids=["duplex", "streamed"])
@served()
async def test_usage_is_read_from_the_last_events_however_they_are_cut(
    router: Router[str], service: Service, modes: dict[str, int]
) -> None:
    events = b'data: {"text":"a"}\n\n' * 50 + b"data: {" + USAGE + b"}\n\ndata: [DONE]\n\n"
    stream = service.stream(modes)
    await stream.send_headers()
    if modes is BUFFERED:
        await stream.read()
    await stream.send_body(BODY)
    await stream.read_picked(body=modes is DUPLEX)
    await stream.answer_headers(kind="text/event-stream; charset=utf-8")
    returned = b""
    for start in range(0, len(events), 7):
        reply = await stream.answer_body(events[start : start + 7], end=False)
        returned += reply.response_body.response.body_mutation.streamed_response.body
    assert returned == (events if modes is DUPLEX else b"")
    assert router.records.recent() == []
    await stream.answer_body(b"")
    [record] = router.records.recent()
    assert (record.cached_tokens, record.engine_prompt_tokens, record.output_tokens) == (48, 64, 3)
    assert 0 <= (-1 if record.ttft_s is None else record.ttft_s) <= (record.duration_s or 0)


BEFORE_THE_PICK, BEFORE_THE_ANSWER, WITHIN_THE_ANSWER, AT_THE_END = PHASES = range(4)


async def leave(stream: Stream, phase: int, how: str) -> None:
    """Send a part of a request and of its answer, and end the stream."""
    await stream.send_headers()
    await stream.send_body(BODY[: 50 if phase == BEFORE_THE_PICK else None], end=phase > BEFORE_THE_PICK)
    if phase > BEFORE_THE_PICK:
        await stream.read_picked()
    if phase > BEFORE_THE_ANSWER:
        await stream.answer_headers()
        await stream.answer_body(b"{", end=phase == AT_THE_END)
    if how == "cancel":
        stream.call.cancel()
    else:
        await stream.finish()


# --- nothing stays booked ---


async def _one(service: Service, number: int) -> None:
    rng = random.Random(number)
    stream = service.stream()
    how = rng.choice(["whole", "cancel", "close", "fallback", "refused", "error"])
    if how == "refused":
        await stream.send_headers(subset=["10.9.9.9:1"])
        await stream.send_body(BODY)
        assert (await stream.read_refusal())[0] == 503
    elif how == "fallback":
        picked = await stream.request(BODY)
        await stream.answer_headers(served=picked.endpoints[rng.randrange(3)])
        await stream.answer_body(b"{}", end=rng.random() < 0.5)
        stream.call.cancel()
    elif how == "error":
        await stream.request(BODY)
        await stream.answer_headers(rng.choice([400, 429, 500, 503]))
        await stream.finish()
    else:
        await leave(stream, rng.choice(PHASES), how)


@in_loop
async def test_300_streams_at_once_with_aborts_leave_nothing_booked() -> None:
    router = Router(URLS, seed=1, health=Health(breaker_failures=0))
    async with serve(router) as service:
        await asyncio.gather(*(_one(service, number) for number in range(300)))
        await service.settled()
        assert router.stats().open_requests == 0
        assert set(router.loads().values()) == {0}
        ended = Counter(endings(router))
        counts = service.picker.counts
        assert ended.total() == counts["picked"] + counts["served-fallback"]
        assert ended["abandoned"] == 0
        assert min(ended["completed"], ended["cancelled"], ended["failed"], ended["backpressure"]) > 0
        router.validate()
