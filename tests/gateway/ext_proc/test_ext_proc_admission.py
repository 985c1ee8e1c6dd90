"""Admission at the endpoint picker: requests that are refused, held, given up."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from tests.models.ext_proc_client import URLS, Service, Stream, in_loop, serve, until
from tests.models.own_policy import Own
from tests.routers import flat_router
from tests.support_gateways import endings

from cachelb import Health, RequestBodies, Router
from cachelb.admission import AdmissionOptions
from cachelb_gateway.ext_proc import EndpointPicker

BATCH = {"x-gateway-inference-objective": "batch"}
LONG = 300_000
"""Bytes of a prompt that is read on a thread of its own."""


def body_of(length: int = 1000) -> bytes:
    return json.dumps({"prompt": "Sphinx of black quartz, judge my vow. " * (length // 38)}).encode()


def one_each(max_wait_s: float = 60.0) -> AdmissionOptions:
    return AdmissionOptions(max_pending_requests=1, max_pending_tokens=None, max_wait_s=max_wait_s, order="fcfs")


def queued(router: Router[str]) -> int:
    return sum(band.queued for band in router.stats().admission)


async def begin(service: Service, headers: dict[str, str] | None = None, body: bytes | None = None) -> Stream:
    """Send a request, whose pick is not read yet."""
    stream = service.stream()
    await stream.send_headers(headers)
    await stream.send_body(body or body_of())
    return stream


async def end(stream: Stream) -> None:
    await stream.answer_headers()
    await stream.answer_body(b"{}")
    await stream.finish()


@pytest.mark.parametrize(("max_wait_s", "why"), [(0, "refused"), (0.05, "expired")], ids=["at once", "after a wait"])
@in_loop
async def test_request_without_room_is_429_and_names_no_worker(max_wait_s: float, why: str) -> None:
    router = Router(URLS[:1], seed=1)
    async with serve(router, admission=one_each(max_wait_s)) as service:
        first = service.stream()
        await first.request(body_of())
        status, headers, body = await (await begin(service)).read_refusal()
        assert (status, headers["retry-after"], json.loads(body)["error"]["type"]) == (429, "1", "workers_busy")
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        assert b"10.0.0.1" not in body
        assert service.picker.counts == {"picked": 1, "workers-busy": 1}
        (band,) = router.stats().admission
        assert (getattr(band, why), band.queued, router.loads()) == (1, 0, {URLS[0]: 1})
        await end(first)
        assert len((await service.stream().request(body_of())).endpoints) == 1


@pytest.mark.parametrize("length", [1000, LONG], ids=["short", "long"])
@in_loop
async def test_held_requests_are_picked_by_priority_as_soon_as_there_is_room(length: int) -> None:
    router = Router(URLS[:1], seed=1)
    body = body_of(length)
    async with serve(router, admission=one_each(), priorities={"batch": -1}) as service:
        first = service.stream()
        await first.request(body)
        batch = await begin(service, BATCH, body)
        await until(lambda: queued(router) == 1)
        other = await begin(service, None, body)
        await until(lambda: queued(router) == 2)
        assert router.stats().open_requests == 1
        await end(first)
        assert (await other.read_picked()).body == body
        assert queued(router) == 1
        await end(other)
        assert (await batch.read_picked()).body == body
        await end(batch)
        await service.settled()
        stats = router.stats()
        assert [(band.priority, band.released) for band in stats.admission] == [(-1, 1), (0, 1)]
        assert sum(stats.bodies.kinds.values()) == 3, "a body is counted once, however often it is read"
        assert (endings(router), service.picker.held_bytes) == ({"completed": 3}, 0)


@pytest.mark.parametrize("how", ["client", "server"])
@in_loop
async def test_held_request_that_is_given_up_leaves_the_queue(how: str) -> None:
    router = Router(URLS[:1], seed=1)
    async with serve(router, admission=one_each()) as service:
        await service.stream().request(body_of())
        held = await begin(service)
        await until(lambda: queued(router) == 1)
        if how == "client":
            held.call.cancel()
        else:
            await service.picker.stop(0)
        is_open = int(how == "client")
        await until(lambda: queued(router) == 0 and router.stats().open_requests == is_open)
        (band,) = router.stats().admission
        # A server that stops may end the first request before the other one.
        assert (band.admitted, band.cancelled + (1 - is_open) * band.released) == (1, 1)


@in_loop
async def test_streams_that_come_and_leave_at_any_time_leave_nothing_queued_or_booked() -> None:
    router = Router(URLS, seed=1, health=Health(breaker_failures=0))

    async def one(service: Service, number: int) -> int:
        rng = random.Random(number)
        stream = await begin(service, BATCH if number % 3 else None, body_of(LONG if number % 20 == 0 else 1000))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() / 20)
            stream.call.cancel()
            return 0
        await stream.read_picked()
        await end(stream)
        return 1

    async with serve(router, admission=one_each(), priorities={"batch": -1}) as service:
        served = sum(await asyncio.gather(*(one(service, number) for number in range(200))))
        await service.settled()
        await until(lambda: queued(router) == 0 and router.stats().open_requests == 0)
        assert endings(router)["completed"] == served
        assert set(router.loads().values()) == {0}
        assert sum(band.released for band in router.stats().admission) > 0
        router.validate()


@pytest.mark.parametrize(
    ("router", "max_wait_s", "message"),
    [
        ({"policy": Own(lambda _fleet: 0)}, 1.0, "policy, shadow, renderer and clock are native"),
        ({"bodies": RequestBodies(renderer=lambda _body, _path: [1])}, 1.0, "leave it out, or those in Python"),
        ({}, 30.0, "max_wait_s of an admission must be below body_timeout_s=30.0, .* got 30.0"),
        ({}, None, "got None"),
    ],
    ids=["policy", "renderer", "wait", "any wait"],
)
def test_admission_that_cannot_be_is_refused(router: dict[str, Any], max_wait_s: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EndpointPicker(flat_router(URLS, router), admission=AdmissionOptions(max_wait_s=max_wait_s))
