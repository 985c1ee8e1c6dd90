"""The example for disaggregated prefill, as a real server in front of real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import IncompleteRead
from typing import Any, NamedTuple

import pytest
from examples import pd_gateway
from tests.gateways import serve_asgi, storm, wait_until
from tests.http_client import chat, complete
from tests.support_gateways import begin_stream, endings

from cachelb import Health, Pairs, Router
from cachelb_fakes import FakeFleet, FakeWorker

PROMPT = "Sphinx of black quartz, judge my vow. " * 20


class Setup(NamedTuple):
    """Two prefill and two decode workers behind a gateway."""

    fleet: FakeFleet
    router: Router[str]
    url: str

    @property
    def prefill(self) -> list[FakeWorker]:
        return self.fleet.workers[:2]

    @property
    def decode(self) -> list[FakeWorker]:
        return self.fleet.workers[2:]

    def half(self, name: str) -> list[FakeWorker]:
        return self.prefill if name == "prefill" else self.decode

    def settled(self) -> dict[str, int]:
        """Wait until nothing is booked; return how requests ended."""
        wait_until(lambda: self.router.stats().open_requests == 0)
        assert set(self.router.loads().values()) == {0}
        return endings(self.router)


@contextmanager
def setup(*, exposed: Sequence[str] = (), **options: Any) -> Iterator[Setup]:
    with FakeFleet(4) as fleet:
        router: Router[str] = Router(seed=1, **{"pairs": Pairs(uncached_token_threshold=0), **options})
        for number, worker in enumerate(fleet.urls):
            router.add_worker(worker, role="prefill" if number < 2 else "decode")
        with serve_asgi(pd_gateway.make_app(router, expose_headers=exposed)) as url:
            yield Setup(fleet, router, url)
            router.validate()


def total(workers: list[FakeWorker], count: str) -> int:
    return sum(getattr(worker.counts, count) for worker in workers)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_decode_worker_never_tokenises_and_answers_as_one_worker_would(kind: str, stream: bool) -> None:
    fields: dict[str, Any] = {"stream": stream, "max_tokens": 5}
    with setup(exposed=["x-cachelb-worker", "x-cachelb-prefill-worker"]) as pd:

        def ask(url: str) -> Any:
            answer = complete(url, PROMPT, **fields) if kind == "completion" else chat(url, PROMPT, **fields)
            assert answer.status == 200
            choices = [event["choices"] for event in answer.events[:-1]] if stream else answer.json["choices"]
            return choices, answer.headers

        with FakeFleet(1) as alone:
            expected, _ = ask(alone.urls[0])
        choices, headers = ask(pd.url)
        assert choices == expected
        assert (total(pd.prefill, "tokenized"), total(pd.prefill, "finished")) == (1, 1)
        assert (total(pd.decode, "tokenized"), total(pd.decode, "finished")) == (0, 1)
        assert total(pd.decode, "remote_prefills") == 1
        assert total(pd.prefill, "output_tokens") == 1
        assert headers["x-cachelb-prefill-worker"] in pd.fleet.urls[:2]
        assert headers["x-cachelb-worker"] in pd.fleet.urls[2:]
        assert pd.settled() == {"completed": 2}


def test_prefill_request_is_what_the_connector_expects() -> None:
    with setup() as pd:
        complete(pd.url, PROMPT, stream=True, stream_options={"include_usage": True}, max_tokens=5)
        [prefilled] = [seen for worker in pd.prefill for seen in worker.requests]
        [decoded] = [seen for worker in pd.decode for seen in worker.requests]
    assert prefilled.body["max_tokens"] == 1
    assert "stream_options" not in prefilled.body
    assert not prefilled.body.get("stream")
    assert prefilled.body["kv_transfer_params"]["do_remote_decode"] is True
    assert decoded.body["stream_options"] == {"include_usage": True}
    assert decoded.body["kv_transfer_params"]["do_remote_prefill"] is True
    assert isinstance(decoded.body["prompt"], list)


def test_cached_tokens_are_those_of_the_prefill_worker() -> None:
    with setup(pairs=Pairs(uncached_token_threshold=0, prefill="cache-aware")) as pd:
        for _ in range(2):
            complete(pd.url, PROMPT, max_tokens=2)
        reported = [record.cached_tokens for record in pd.router.records.recent(4)]
    assert [tokens for tokens in reported if tokens is not None] == [0, 176]


def test_decode_worker_alone_serves_what_is_not_worth_a_transfer() -> None:
    with setup(pairs=Pairs(uncached_token_threshold=100_000), exposed=["x-cachelb-prefill-worker"]) as pd:
        answer = complete(pd.url, PROMPT, max_tokens=2)
        assert answer.status == 200
        assert "x-cachelb-prefill-worker" not in answer.headers
        assert total(pd.prefill, "started") == 0
        assert total(pd.decode, "finished") == 1
        assert pd.settled() == {"completed": 1}


@pytest.mark.parametrize("fallback", [True, False])
def test_without_prefill_workers_the_fallback_decides(fallback: bool) -> None:
    with setup(pairs=Pairs(uncached_token_threshold=0, fallback=fallback)) as pd:
        for worker in pd.prefill:
            pd.router.set_ready(worker.url, False)
        answer = complete(pd.url, PROMPT, max_tokens=2)
        assert answer.status == (200 if fallback else 503)
        assert fallback or int(answer.headers["retry-after"]) >= 1
        assert pd.settled() == ({"completed": 1} if fallback else {})


@pytest.mark.parametrize("half", ["prefill", "decode"])
@pytest.mark.parametrize("fault", [{"kind": "reset"}, {"kind": "status", "status": 500}], ids=["reset", "500"])
def test_failure_in_either_half_is_retried_without_the_worker_that_failed(half: str, fault: dict[str, Any]) -> None:
    with setup() as pd:
        for worker in pd.half(half):
            worker.fail(**fault, times=1)
        # Both workers of the half fail once, and there are three attempts.
        assert complete(pd.url, PROMPT, max_tokens=2, stream=True).status in {200, 503}
        assert {worker.counts.failed for worker in pd.half(half)} == {1}
        assert complete(pd.url, PROMPT, max_tokens=2, stream=True).events[-1] == "[DONE]"
        assert pd.settled()["failed"] == 2


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_worker_that_asks_for_a_pause_gets_it_in_either_half(half: str) -> None:
    with setup() as pd:
        asked, other = pd.half(half)
        asked.fail("status", status=503, retry_after_s=60, times=1)
        pd.router.set_ready(other.url, False)
        assert complete(pd.url, PROMPT, max_tokens=2).status == 503
        assert [row.state for row in pd.router.stats().workers if row.key == asked.url] == ["pushing back"]


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_error_of_the_client_is_final_in_either_half(half: str) -> None:
    with setup() as pd:
        for worker in pd.half(half):
            worker.fail("status", status=400)
        answer = complete(pd.url, PROMPT)
        assert answer.status == 400
        assert "planned by the test" in answer.body.decode()
        assert total(pd.half(half), "started") == 1
        assert pd.settled()["client"] == 1


def test_stream_that_dies_is_torn_and_releases_both_halves() -> None:
    with setup() as pd:
        for worker in pd.decode:
            worker.fail("die", after_chunks=2)
        with closing(begin_stream(pd.url, PROMPT)) as connection, pytest.raises(IncompleteRead):
            connection.getresponse().read()
        assert pd.settled() == {"completed": 1, "failed": 1}


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_client_that_leaves_stops_the_half_at_work(half: str) -> None:
    with setup() as pd:
        for worker in pd.half(half):
            worker.fail("stall")
        with closing(begin_stream(pd.url, PROMPT)):
            wait_until(lambda: sum(worker._replica.counts.faults["stall"] for worker in pd.half(half)) == 1)
        wait_until(lambda: sum(worker._replica.counts.aborted for worker in pd.half(half)) == 1)
        assert pd.settled() == ({"cancelled": 2} if half == "prefill" else {"completed": 1, "cancelled": 1})


def test_unix_sockets_are_refused_when_the_gateway_is_built() -> None:
    router: Router[str] = Router()
    router.add_worker("http://127.0.0.1:1", role="prefill")
    router.add_worker("unix:///run/vllm.sock", role="decode")
    with pytest.raises(ValueError, match=r"'unix:///run/vllm\.sock' is a Unix socket"):
        pd_gateway.make_app(router)


def test_books_balance_after_failures_and_aborts_in_both_halves() -> None:
    with setup(health=Health(breaker_failures=0)) as pd:
        pd.fleet.set_rates(refuse=0.1, die=0.05)
        prompts = [f"{number}{PROMPT}" for number in range(400)]
        seen = asyncio.run(storm(pd.url, prompts, clients=16, leavers_tokens=400))
        ended = pd.settled()
    assert sum(ended.values()) == sum(pd.router.stats().decisions.values())
    assert "abandoned" not in ended
    assert seen["200"] > 250
    assert min(seen["torn"], seen["left"], ended["cancelled"], ended["failed"]) > 0
