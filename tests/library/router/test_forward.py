"""`Router.forward` and the transport of httpx that stands on it, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
from tests.support_gateways import endings
from tests.waiting import wait_until

import cachelb
from cachelb import Admission, Decision, NoWorkerAvailable, Overloaded, Router
from cachelb.errors import BodyError
from cachelb.forward import Answer, ClientLeft, refusal
from cachelb.integrations.httpx import RoutingTransport
from cachelb.requests import RequestError
from cachelb_fakes import FakeFleet

Send = Callable[[Decision[str]], Awaitable[Any]]

PROMPT = "Sphinx of black quartz, judge my vow. " * 20
PATH = "/v1/completions"


def body_of(**fields: object) -> bytes:
    return json.dumps({"prompt": PROMPT, "max_tokens": 4, **fields}).encode()


@asynccontextmanager
async def sender(body: bytes) -> AsyncIterator[Send]:
    async with httpx.AsyncClient(timeout=60) as client:

        async def send(decision: Decision[str]) -> httpx.Response:
            headers = {"content-type": "application/json", **decision.headers}
            asked = client.build_request("POST", decision.worker + PATH, content=body, headers=headers)
            return await client.send(asked, stream=True)

        yield send


def forward(router: Router[str], body: bytes, **options: Any) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        async with sender(body) as send, router.forward(send, body=body, path=PATH, **options) as answer:
            return answer.status, b"".join([chunk async for chunk in answer])

    return asyncio.run(run())


def test_streamed_answer_is_reported_as_it_passes() -> None:
    body = body_of(stream=True, stream_options={"include_usage": True})
    with FakeFleet(1) as fleet:
        router = Router(fleet.urls)
        status, answer = forward(router, body)
    assert status == 200
    assert answer.endswith(b"data: [DONE]\n\n")
    (record,) = router.records.recent()
    assert (record.outcome, record.output_tokens, record.cached_tokens) == ("completed", 4, 0)
    assert record.ttft_s is not None
    assert router.stats().open_requests == 0


def test_answer_reaches_the_client_of_an_asgi_server_but_for_its_end() -> None:
    sent: list[dict[str, Any]] = []

    async def to_client(message: dict[str, Any]) -> None:
        sent.append(message)

    async def run() -> None:
        async with sender(body_of()) as send, router.forward(send, body=body_of(), path=PATH) as answer:
            await answer.send_to(to_client, [(b"content-type", b"a/b")], {"x-worker": "gpu0"})

    with FakeFleet(1) as fleet:
        router = Router(fleet.urls)
        asyncio.run(run())
    start, *parts = sent
    headers = [(b"content-type", b"a/b"), (b"x-worker", b"gpu0")]
    assert start == {"type": "http.response.start", "status": 200, "headers": headers}
    assert all(part["type"] == "http.response.body" and part["more_body"] for part in parts)
    assert json.loads(b"".join(part["body"] for part in parts))["usage"]["completion_tokens"] == 4
    assert endings(router) == {"completed": 1}


@pytest.mark.parametrize(
    ("fault", "ended"),
    [
        ({"kind": "reset"}, "failed"),
        ({"kind": "status", "status": 500}, "failed"),
        ({"kind": "status", "status": 429}, "backpressure"),
        ({"kind": "status", "status": 503}, "backpressure"),
    ],
    ids=["reset", "500", "429", "503"],
)
def test_failure_before_the_first_byte_goes_to_another_worker(fault: dict[str, Any], ended: str) -> None:
    with FakeFleet(3) as fleet:
        fleet.fail(**fault, times=2)
        router = Router(fleet.urls)
        assert forward(router, body_of())[0] == 200
        assert endings(router) == {ended: 2, "completed": 1}
        fleet.fail(**fault)
        with pytest.raises(NoWorkerAvailable):
            forward(router, body_of(), attempts=4)
    assert endings(router) == {ended: 5, "completed": 1}
    assert set(router.loads().values()) == {0}


def test_last_attempt_passes_the_answer_on() -> None:
    with FakeFleet(2) as fleet:
        fleet.fail("status", status=503)
        router = Router(fleet.urls)
        status, answer = forward(router, body_of(), attempts=2)
    assert status == 503
    assert b"planned by the test" in answer
    assert endings(router) == {"backpressure": 2}


def test_error_of_the_client_is_final() -> None:
    with FakeFleet(2) as fleet:
        router = Router(fleet.urls)
        assert forward(router, body_of(max_tokens=-1))[0] == 400
    assert endings(router) == {"client": 1}


def test_hung_worker_is_left_after_the_timeout() -> None:
    with FakeFleet(2) as fleet:
        hung, _ = fleet.workers
        hung.fail("stall")
        router = Router(fleet.urls, policy="round-robin")
        statuses = [forward(router, body_of(), first_byte_timeout_s=0.2)[0] for _ in range(2)]
        assert set(endings(router)) == {"completed", "failed"}
        with pytest.raises(TimeoutError) as found:
            forward(router, body_of(), first_byte_timeout_s=0.2, attempts=1, among=[fleet.urls[0]])
    assert statuses == [200, 200]
    assert refusal(found.value).status == 504


@pytest.mark.parametrize("after_chunks", [0, 2], ids=["before-the-first-byte", "mid-stream"])
def test_client_that_leaves_ends_the_booking(after_chunks: int) -> None:
    async def run(router: Router[str], left: asyncio.Event) -> None:
        body = body_of(stream=True)
        async with sender(body) as send, router.forward(send, left=left.wait, body=body, path=PATH) as answer:
            async for _ in answer:
                pass

    async def leave(router: Router[str]) -> None:
        left = asyncio.Event()
        task = asyncio.create_task(run(router, left))
        await asyncio.to_thread(wait_until, lambda: worker._replica.counts.faults["stall"])
        left.set()
        with pytest.raises(ClientLeft):
            await task

    with FakeFleet(1) as fleet:
        (worker,) = fleet.workers
        worker.fail("stall", after_chunks=after_chunks)
        asyncio.run(leave(router := Router(fleet.urls)))
        wait_until(lambda: worker._replica.counts.aborted == 1)
    assert endings(router) == {"cancelled": 1}


@pytest.mark.parametrize("begun", [False, True], ids=["never-iterated", "one-chunk"])
def test_dropped_answer_ends_the_booking(begun: bool) -> None:
    async def run(router: Router[str]) -> None:
        body = body_of(stream=True, max_tokens=1000)
        async with sender(body) as send:
            answer = await router.forward(send, body=body, path=PATH)
            if begun:
                await anext(answer)
            await answer.aclose()

    with FakeFleet(1) as fleet:
        asyncio.run(run(router := Router(fleet.urls)))
        wait_until(lambda: fleet.workers[0].counts.open == 0)
    assert endings(router) == {"cancelled": 1}


def test_cancelled_task_ends_the_booking() -> None:
    async def never(_decision: object) -> None:
        await asyncio.Event().wait()

    async def run(router: Router[str]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await router.forward(never, left=asyncio.Event().wait, by_load=True)

    asyncio.run(run(router := Router(["gpu0"])))
    assert endings(router) == {"cancelled": 1}


def test_error_of_the_callers_own_is_not_retried() -> None:
    async def broken(_decision: object) -> None:
        raise KeyError("own")

    async def run(router: Router[str]) -> None:
        with pytest.raises(KeyError, match="own"):
            await router.forward(broken, by_load=True)

    asyncio.run(run(router := Router(["gpu0", "gpu1"])))
    assert endings(router) == {"cancelled": 1}


def test_request_waits_for_a_worker() -> None:
    with FakeFleet(1) as fleet:
        router = Router(fleet.urls)
        router.set_ready(fleet.urls[0], False)
        with pytest.raises(NoWorkerAvailable):
            forward(router, body_of())

        async def run() -> int:
            body = body_of()
            async with sender(body) as send:
                asyncio.get_running_loop().call_later(0.05, router.set_ready, fleet.urls[0], True)
                async with router.forward(send, wait_s=30, body=body, path=PATH) as answer:
                    return answer.status

        assert asyncio.run(run()) == 200


def test_admission_refuses_and_holds() -> None:
    with FakeFleet(1) as fleet:
        router = Router(fleet.urls)
        admission = Admission(router, max_pending_requests=1, max_wait_s=0)
        before = router.select_worker(by_load=True)
        with pytest.raises(Overloaded):
            forward(router, body_of(), admission=admission)
        before.on_complete()
        assert forward(router, body_of(), admission=admission)[0] == 200


def test_responses_of_aiohttp_pass_too() -> None:
    async def run(router: Router[str]) -> bytes:
        body = body_of(stream=True)
        async with aiohttp.ClientSession() as session:

            async def send(decision: Decision[str]) -> aiohttp.ClientResponse:
                return await session.post(
                    decision.worker + PATH, data=body, headers={"content-type": "application/json"}
                )

            async with router.forward(send, body=body, path=PATH) as answer:
                return b"".join([chunk async for chunk in answer])

    with FakeFleet(1) as fleet:
        assert asyncio.run(run(router := Router(fleet.urls))).endswith(b"[DONE]\n\n")
    assert endings(router) == {"completed": 1}


@pytest.mark.parametrize("options", [{"attempts": 0}, {"first_byte_timeout_s": 0}, {"attempts": "3"}], ids=str)
def test_wrong_options_are_refused_before_a_booking(options: dict[str, Any]) -> None:
    router = Router(["gpu0"])
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        router.forward(lambda _: asyncio.sleep(0), by_load=True, **options)
    assert router.loads() == {"gpu0": 0}


def test_refusals_name_no_worker() -> None:
    reasons = {"http://gpu0:8000": "not ready"}
    errors = [
        RequestError(413, "the body is longer than 10 bytes"),
        BodyError("truncated", 3),
        Overloaded(reasons, 2.0),
        NoWorkerAvailable(reasons),
        ClientLeft(),
        TimeoutError("http://gpu0:8000"),
        httpx.ConnectError("http://gpu0:8000"),
    ]
    refusals = [refusal(error) for error in errors]
    assert [found.status for found in refusals] == [413, 400, 429, 503, 499, 504, 502]
    assert "gpu0" not in str(refusals)
    assert refusals[2].headers == {"retry-after": "2"}


# --- the transport of httpx ---


def test_openai_client_is_routed() -> None:
    openai = pytest.importorskip("openai")

    async def run(router: Router[str]) -> list[str]:
        transport = RoutingTransport(router)
        async with httpx.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(api_key="none", base_url="http://fleet/v1", http_client=http)
            seen = []
            for _ in range(2):
                asked = {"model": "fake", "prompt": PROMPT, "max_tokens": 3}
                stream = await client.completions.create(**asked, stream=True)
                seen += [part.choices[0].text async for part in stream]
                whole = await client.completions.create(**asked)
                seen.append(whole.choices[0].text)
            return seen

    with FakeFleet(2) as fleet:
        texts = asyncio.run(run(router := Router(fleet.urls)))
        assert len(texts) >= 8
        assert fleet.workers[0].counts.tokenized + fleet.workers[1].counts.tokenized > 0
    assert endings(router) == {"completed": 4}
    assert [record.reason for record in router.records.recent()] == ["cold", "prefix", "prefix", "prefix"]


def test_transport_streams_chunk_by_chunk_and_closing_ends_the_booking() -> None:
    async def run(router: Router[str]) -> bytes:
        async with httpx.AsyncClient(transport=RoutingTransport(router), timeout=60) as client:
            body = {"prompt": PROMPT, "stream": True, "max_tokens": 8}
            async with client.stream("POST", f"http://fleet{PATH}", json=body) as answer:
                async for chunk in answer.aiter_raw():  # the worker stalls after it: a buffer would wait for ever
                    return chunk
        return b""

    with FakeFleet(1) as fleet:
        fleet.workers[0].fail("stall", after_chunks=1)
        assert asyncio.run(run(router := Router(fleet.urls))).startswith(b"data: ")
        wait_until(lambda: fleet.workers[0].counts.open == 0)
    assert endings(router) == {"cancelled": 1}


def test_transport_answers_without_a_worker() -> None:
    async def run(router: Router[str], **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=RoutingTransport(router, **options)) as client:
            return await client.post(f"http://fleet{PATH}", json={"prompt": PROMPT})

    empty = asyncio.run(run(Router[str]()))
    assert (empty.status_code, empty.headers["retry-after"]) == (503, "1")
    router = Router(["http://gpu0:8000"])
    admission = Admission(router, max_pending_requests=1, max_wait_s=0)
    before = router.select_worker(by_load=True)
    full = asyncio.run(run(router, admission=admission))
    assert full.status_code == 429
    assert before.is_open
    assert "gpu0" not in full.text


def test_transport_passes_other_paths_and_methods() -> None:
    async def run(router: Router[str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=RoutingTransport(router)) as client:
            return await client.get("http://fleet/v1/models", params={"a": "b"})

    with FakeFleet(1) as fleet:
        answer = asyncio.run(run(router := Router(fleet.urls)))
    assert answer.json()["object"] == "list"
    assert endings(router) == {"completed": 1}


def test_answer_has_the_response_and_the_decision() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    async def aclose() -> None:
        closed.append(True)

    async def send(_decision: Decision[str]) -> Any:
        return response

    async def run() -> Answer[Decision[str]]:
        async with cachelb.Router(["gpu0"]).forward(send, by_load=True) as answer:
            return answer

    closed: list[bool] = []
    response = SimpleNamespace(status_code=200, headers={"x": "y"}, aiter_raw=chunks, aclose=aclose)
    answer = asyncio.run(run())
    assert (answer.response, answer.decision.worker, answer.headers) == (response, "gpu0", {"x": "y"})
    assert closed == [True]
