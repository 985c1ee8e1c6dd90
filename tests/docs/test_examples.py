"""The example gateway, the tutorial's and `cachelb serve`, as real servers in front of real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples import openai_client, pd_gateway, starlette_gateway
from examples.policy_in_a_gateway import Backend, Balancer
from tests.commands import app
from tests.gateways import GATEWAYS, serve_asgi, storm, wait_until
from tests.http_client import DEADLINE_S, chat, complete, send
from tests.programs import example
from tests.support_gateways import begin_stream, endings
from tests.threads import beside

import cachelb
from cachelb import Router
from cachelb.metrics import CONTENT_TYPE
from cachelb_fakes import FakeFleet, FakeWorker

Serve = Callable[..., AbstractContextManager[str]]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROMPT = "The five boxing wizards jump quickly over the lazy dog. " * 20


def serve_the_tutorials(router: Router[str], **_: object) -> AbstractContextManager[str]:
    """The proxy of the tutorial, which has no options."""
    text = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    code = text.split("## 4. A proxy")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"cachelb": cachelb}
    exec(compile(code, "tutorial.md", "exec"), names)  # noqa: S102 - our own page
    return serve_asgi(names["make_app"](router))


PROXIES: dict[str, Serve] = {**GATEWAYS, "tutorial": serve_the_tutorials}


@pytest.fixture(params=list(GATEWAYS))
def serve(request: pytest.FixtureRequest) -> Serve:
    return GATEWAYS[request.param]


@pytest.fixture(params=list(PROXIES))
def serve_any(request: pytest.FixtureRequest) -> Serve:
    return PROXIES[request.param]


def texts(events: list[Any]) -> list[str]:
    return ["".join(choice["text"] for choice in event["choices"]) for event in events[:-1]]


def started(fleet: FakeFleet) -> int:
    return sum(worker.counts.started for worker in fleet.workers)


# --- what passes through ---


def test_stream_arrives_complete_and_in_order(serve_any: Serve) -> None:
    fields: dict[str, Any] = {"stream": True, "max_tokens": 20, "stream_options": {"include_usage": True}}
    with FakeFleet(2) as fleet, serve_any(Router(fleet.urls)) as gateway:
        direct = complete(fleet.urls[0], PROMPT, **fields)
        through = complete(gateway, PROMPT, **fields)
    assert through.status == 200
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert texts(through.events) == texts(direct.events)
    assert len(texts(direct.events)) == 21
    assert through.events[-1] == "[DONE]"


def test_event_reaches_the_client_before_the_next_one_exists(serve: Serve) -> None:
    with FakeFleet(1) as fleet, serve(Router(fleet.urls)) as gateway:
        fleet.fail("stall", times=1, after_chunks=2)
        with closing(begin_stream(gateway, PROMPT)) as connection:
            response = connection.getresponse()
            first = [response.readline() for _ in range(4)]
            assert [line[:5] for line in first] == [b"data:", b"\n", b"data:", b"\n"]
            fleet.release()
            assert response.read().endswith(b"data: [DONE]\n\n")


def test_whole_answer_and_chat_pass_through(serve_any: Serve) -> None:
    with FakeFleet(1) as fleet, serve_any(Router(fleet.urls)) as gateway:
        direct, through = (complete(url, PROMPT, max_tokens=3).json for url in (fleet.urls[0], gateway))
        talk = chat(gateway, "Hello", "Hi, how can I help?", "Sing")
    assert through["choices"] == direct["choices"]
    assert talk.json["choices"][0]["message"]["role"] == "assistant"


def test_request_reaches_the_worker_as_it_was_sent(serve_any: Serve) -> None:
    body = b'{"prompt":  [1, 2, 3], "max_tokens":1, "unknown": {"kept": true}}'
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "r1", "Content-Type": "application/json"}
    with FakeFleet(1) as fleet, serve_any(Router(fleet.urls)) as gateway:
        answer = send(gateway, "/v1/completions", body, headers)
        seen = fleet.workers[0].requests[-1]
    assert answer.json["usage"]["prompt_tokens"] == 3
    assert seen.body == json.loads(body)
    assert (seen.headers["Content-Type"], seen.headers["Authorization"]) == ("application/json", "Bearer secret")
    assert answer.json["id"] == "cmpl-r1"
    assert fleet.workers[0].counts.tokenized == 0


def test_unix_sockets_are_workers_too(serve: Serve) -> None:
    with FakeFleet(3, uds=True) as fleet, serve(Router(fleet.urls, policy="round-robin")) as gateway:
        answers = [complete(gateway, f"{n}{PROMPT}", max_tokens=1) for n in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        assert [worker.counts.finished for worker in fleet.workers] == [2, 2, 2]


# --- requests to the router, and its answers ---


@pytest.mark.parametrize("trouble", ["none", "no worker", "no answer"])
def test_clients_see_nothing_of_the_decision_unless_told_to(serve_any: Serve, trouble: str) -> None:
    with FakeFleet(4) as fleet, serve_any(router := Router(fleet.urls), wait_s=0, attempts=1) as gateway:
        if trouble == "no worker":
            for url in fleet.urls:
                router.set_ready(url, False)
        if trouble == "no answer":
            fleet.fail("reset")
        answer = complete(gateway, PROMPT, max_tokens=1)
        shown = str(answer.headers) + answer.body.decode()
        for secret in ("x-cachelb", "x-data-parallel", *fleet.urls, "not ready"):
            assert secret not in shown
        assert (started(fleet) > 0) == (trouble != "no worker")
        wait_until(lambda: router.stats().open_requests == 0)
    assert answer.status == {"none": 200, "no worker": 503, "no answer": 502}[trouble]
    assert int(answer.headers["retry-after"] or 0) >= (trouble == "no worker")


def test_header_that_no_decision_has_is_named() -> None:
    for make_app in (starlette_gateway.make_app, pd_gateway.make_app):
        with Router[str](["http://gpu0"]) as router, pytest.raises(ValueError, match="called 'x-cachelb-wroker'"):
            make_app(router, expose_headers=["x-cachelb-wroker"])


def test_clients_do_not_choose_the_rank(serve: Serve) -> None:
    with FakeFleet(1) as fleet, serve(Router(fleet.urls)) as gateway:
        complete(gateway, PROMPT, {"X-Data-Parallel-Rank": "3"}, max_tokens=1)
        assert "x-data-parallel-rank" not in fleet.workers[0].requests[-1].headers


def test_exposed_headers_name_the_decision(serve: Serve) -> None:
    exposed = [f"x-cachelb-{name}" for name in ("worker", "Reason", "matched-tokens")]
    with FakeFleet(3) as fleet, serve(Router(fleet.urls), expose_headers=exposed) as gateway:
        first = complete(gateway, PROMPT, max_tokens=1)
        again = complete(gateway, PROMPT, max_tokens=1)
        streamed = complete(gateway, PROMPT, max_tokens=1, stream=True)
        assert first.headers["x-cachelb-worker"] in fleet.urls
        assert "x-cachelb-decision" not in first.headers
    assert first.headers["x-cachelb-reason"] == "cold"
    for answer in (again, streamed):
        assert answer.headers["x-cachelb-reason"] == "prefix"
        assert answer.headers["x-cachelb-worker"] == first.headers["x-cachelb-worker"]
        assert int(answer.headers["x-cachelb-matched-tokens"]) > 200


def test_cached_tokens_of_the_engine_reach_the_router(serve_any: Serve) -> None:
    with FakeFleet(1) as fleet, serve_any(router := Router(fleet.urls)) as gateway:
        asked: list[dict[str, Any]] = [
            {},
            {},
            {"stream": True, "stream_options": {"include_usage": True}},
            {"stream": True},
        ]
        for length, fields in enumerate(asked, 1):
            complete(gateway, PROMPT, max_tokens=length, **fields)
            wait_until(lambda: router.stats().open_requests == 0)
        records = router.records.recent(4)
    assert [record.cached_tokens for record in records] == [0, 272, 272, None]
    assert [record.output_tokens for record in records] == [1, 2, 3, None]
    assert [record.outcome for record in records] == ["completed"] * 4


@pytest.mark.parametrize("name", ["starlette", "tutorial"])  # that of `cachelb serve` is on its admin address
def test_metrics_page_shows_the_router(name: str) -> None:
    with FakeFleet(2) as fleet, PROXIES[name](router := Router(fleet.urls)) as gateway:
        complete(gateway, PROMPT, max_tokens=1)
        page = send(gateway, "/metrics")
        shown = json.loads(CliRunner().invoke(app, ["watch", gateway, "--once", "--json"]).output)
        router.remove_worker(fleet.urls[0])
        left = send(gateway, "/metrics").body.decode()
    assert page.headers["Content-Type"] == CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
    assert 'reason="cold"' in page.body.decode()
    assert [worker["worker"] for worker in shown["workers"]] == fleet.urls
    assert [f'worker="{url}"' in left for url in fleet.urls] == [False, True]


def test_session_stays_on_its_worker(serve: Serve) -> None:
    router = Router[str](policy="rendezvous", hash_seed=1)
    with FakeFleet(4) as fleet, serve(router, expose_headers=["x-cachelb-worker"]) as gateway:
        router.sync_workers(fleet.urls)

        def workers(headers: Any = None, **fields: object) -> set[str]:
            answers = [complete(gateway, turn, headers, max_tokens=1, **fields) for turn in "vwxyz"]
            return {answer.headers["x-cachelb-worker"] for answer in answers}

        by_header = {name: workers({"x-session-id": name}) for name in "abcdefgh"}
        by_body = workers(session_id="a")
        by_user = workers({"x-user-id": "a", "x-tenant-id": "a"}, user="a")
    assert [len(workers) for workers in by_header.values()] == [1] * 8
    assert len(set.union(*by_header.values())) > 1
    assert len(by_body) == 1
    assert len(by_user) > 1, "a user has many conversations"


# --- what goes wrong ---


@pytest.mark.parametrize("kind", ["refuse", "reset", "die", "429", "500", "502", "503", "504"])
def test_failure_before_the_first_byte_is_retried_elsewhere_and_pauses_are_given(serve: Serve, kind: Any) -> None:
    pauses = kind in {"429", "503"}
    status: dict[str, Any] = {"status": int(kind), "retry_after_s": 60 if pauses else None} if kind.isdigit() else {}
    with FakeFleet(2) as fleet, serve(router := Router(fleet.urls)) as gateway:
        fleet.fail("status" if status else kind, times=1, **status)
        answer = complete(gateway, PROMPT, stream=True, max_tokens=4)
        assert answer.status == 200
        assert answer.events[-1] == "[DONE]"
        assert [worker.counts.started for worker in fleet.workers] == [1, 1]
        assert sorted(row.state for row in router.stats().workers) == ["pushing back" if pauses else "ready", "ready"]
    assert endings(router) == {"backpressure" if pauses else "failed": 1, "completed": 1}


def test_worker_that_is_down_is_passed_over(serve: Serve) -> None:
    with FakeFleet(2) as fleet, serve(router := Router(fleet.urls)) as gateway:
        fleet.workers[0].stop()
        answers = [complete(gateway, f"{n}{PROMPT}", max_tokens=1) for n in range(8)]
        assert [answer.status for answer in answers] == [200] * 8
        assert router.stats().endings["failed"] > 0


def test_stream_that_dies_later_is_torn_for_the_client_and_not_retried(serve: Serve) -> None:
    with FakeFleet(2) as fleet, serve(router := Router(fleet.urls)) as gateway:
        fleet.fail("die", times=1, after_chunks=3)
        with closing(begin_stream(gateway, PROMPT)) as connection, pytest.raises(IncompleteRead) as torn:
            connection.getresponse().read()
        assert torn.value.partial.count(b"data:") == 3
        assert started(fleet) == 1
        wait_until(lambda: router.stats().endings["failed"] == 1)
        assert router.stats().open_requests == 0


def test_error_of_the_client_is_final(serve: Serve) -> None:
    with FakeFleet(2) as fleet, serve(router := Router(fleet.urls)) as gateway:
        answer = complete(gateway, PROMPT, max_tokens=-1)
        assert answer.status == 400
        assert "max_tokens" in answer.json["error"]["message"]
        assert started(fleet) == 1
        assert router.stats().endings["client"] == 1


@pytest.mark.parametrize(
    ("workers", "fault", "status"),
    [(4, {"kind": "status", "status": 500}, 500), (4, {"kind": "reset"}, 502), (2, {"kind": "reset"}, 503)],
    ids=["last answer", "no answer", "no more workers"],
)
def test_attempts_are_bounded(serve: Serve, workers: int, fault: dict[str, Any], status: int) -> None:
    with FakeFleet(workers) as fleet, serve(router := Router(fleet.urls), attempts=3) as gateway:
        fleet.fail(**fault)
        answer = complete(gateway, PROMPT)
        assert answer.status == status
        assert status != 500 or "planned by the test" in answer.body.decode()
        assert int(answer.headers["retry-after"] or 0) >= (status == 503)
        assert started(fleet) == min(workers, 3)
        assert endings(router) == {"failed": min(workers, 3)}
        assert router.stats().open_requests == 0


def test_request_waits_for_a_worker_that_comes_back(serve: Serve) -> None:
    seen: list[int] = []
    with FakeFleet(1) as fleet, serve(router := Router(fleet.urls), wait_s=DEADLINE_S) as gateway:
        router.set_ready(fleet.urls[0], False)
        with beside(lambda url: seen.append(complete(url, PROMPT).status), [gateway]):
            wait_until(lambda: router._waiting or router.stats().no_worker)
            router.set_ready(fleet.urls[0], True)
    assert seen == [200]


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"", b"\xff", b"[]", b"null", b"[" * 70_000, b'{"prompt": 7}', b'{"prompt": [-1]}'),
        *(b'{"prompt": [1, "2"]}', b'{"messages": [{"content": "x"}]}'),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_malformed_body_is_refused_by_the_worker(serve_any: Serve, body: bytes) -> None:
    with FakeFleet(1) as fleet, serve_any(router := Router(fleet.urls)) as gateway:
        assert send(gateway, "/v1/chat/completions", body).status == 400
        assert router.stats().open_requests == 0


def test_books_balance_after_refusals_resets_and_aborts(serve: Serve) -> None:
    prompts = [f"{number % 7}{PROMPT}{number}" for number in range(600)]
    with FakeFleet(4, seed=2, time_scale=0.05) as fleet, serve(router := Router(fleet.urls, seed=1)) as gateway:
        fleet.set_rates(refuse=0.2, die=0.05)
        seen = asyncio.run(storm(gateway, prompts, clients=32, leavers_tokens=100))
        wait_until(lambda: router.stats().open_requests == 0)
        faults = sum((worker.counts.faults for worker in fleet.workers), Counter[str]())
    stats = router.stats()
    assert set(router.loads().values()) == {0}
    assert sum(stats.endings.values()) == sum(stats.decisions.values())
    assert stats.endings["abandoned"] == 0
    assert min(faults["refuse"] / 600, seen["200"] / 600 / 3) > 0.15
    assert min(faults["die"], seen["torn"], seen["left"], stats.endings["cancelled"]) > 0
    router.validate()


# --- clients that leave ---


@pytest.mark.parametrize("after_chunks", [0, 2], ids=["before-the-first-byte", "mid-stream"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_stops_the_worker(serve_any: Serve, after_chunks: int, stream: bool) -> None:
    with FakeFleet(1) as fleet, serve_any(router := Router(fleet.urls)) as gateway:
        worker: FakeWorker = fleet.workers[0]
        worker.fail("stall", after_chunks=after_chunks)
        with closing(begin_stream(gateway, PROMPT, stream=stream)):
            wait_until(lambda: worker._replica.counts.faults["stall"] == 1)
        wait_until(lambda: worker._replica.counts.aborted == 1)
        wait_until(lambda: router.stats().open_requests == 0)
        assert endings(router) == {"cancelled": 1}
        assert worker.counts.open == 0


# --- the files themselves ---


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short_enough_to_copy(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 160


def test_openais_client_keeps_a_conversation_on_one_worker() -> None:
    with FakeFleet(3) as fleet, Router(fleet.urls) as router:
        workers = asyncio.run(openai_client.converse(router, "any"))
        cached = [record.cached_tokens or 0 for record in router.records.recent()]
        assert router.stats().open_requests == 0
    assert workers == workers[:1] * 3
    assert cached[0] == 0 < cached[1] < cached[2]


def test_policy_in_a_gateway_reuses_a_prefix_and_leaves_a_sick_backend() -> None:
    backends = [Backend(f"http://gpu{number}") for number in range(3)]
    balancer, turns = Balancer(backends), [{"role": "user", "content": PROMPT}]
    with balancer.pick({"messages": turns}) as first, balancer.pick({"prompt": PROMPT * 2}) as other:
        assert first.worker is not other.worker
    with balancer.pick({"messages": [*turns, {"role": "assistant", "content": "Yes."}]}) as second:
        assert (second.worker, second.reason) == (first.worker, "prefix")
    first.worker.healthy = False
    with balancer.pick({"messages": turns}) as third:
        assert third.worker is not first.worker
    assert set(balancer.policy.loads().values()) == {0}


def test_example_runs_from_the_command_line() -> None:
    with FakeFleet(2) as fleet:
        with example("starlette_gateway", *fleet.urls) as (process, output, address):
            answers = [complete(address, f"{n}{PROMPT}", max_tokens=2) for n in range(4)]
            process.send_signal(signal.SIGINT)
            rest = output.read()
            assert process.wait(DEADLINE_S) in {0, -signal.SIGINT}, rest
        assert [answer.status for answer in answers] == [200] * 4
        assert "Traceback" not in rest
