"""Peer groups: the source that a decision names, how it is sent, and what is refused."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.http_client import complete
from tests.waiting import wait_until

from cachelb import Router
from cachelb.events import ZmqSource
from cachelb.peers import HEADERS, Form, KvSource, outgoing, without_sources
from cachelb_fakes import FakeFleet, FakeWorker, PeerTier
from cachelb_fakes.fleet.tokens import encode

WORKERS = ["http://gpu0:8000", "http://gpu1:8000"]
PROMPT = "".join(map(str, range(1000, 1400)))  # 400 tokens


@contextmanager
def pair_of_engines() -> Iterator[tuple[FakeFleet, Router[str], FakeWorker, FakeWorker]]:
    """Two engines, of which the first one holds the prompt, and a router that knows how fast they compute."""
    tier = PeerTier(blocks=256, startup_ms=0.0, ms_per_token=0.001)
    now = 0.0
    with (
        FakeFleet(2, kv_events=True, peers=tier) as fleet,
        Router(fleet.urls, block_size=16, clock=lambda: now) as router,
    ):
        router.attach(ZmqSource(endpoints=fleet.kv_endpoint))
        source, worker = fleet.workers
        for url in fleet.urls:
            first = router.select_worker(tokens=range(5000, 5100), among=[url])
            now += 1.0  # 10 ms a token
            first.on_first_token()
            first.on_complete()
        complete(source.url, PROMPT)
        wait_until(lambda: all(each.index_blocks.get("cpu", 0) > 24 for each in router.stats().workers[:1]))
        yield fleet, router, source, worker


def add(router: Router[str], fleet: FakeFleet, **terms: Any) -> None:
    """Register all workers as peers."""
    addresses = {each.url: each.peer_address for each in fleet.workers}
    router.peer_groups.add("rack", **{"load_ms_per_token": 0.1, "addresses": addresses, **terms})


def test_a_source_is_named_and_the_engine_copies_from_it() -> None:
    with pair_of_engines() as (fleet, router, source, worker):
        ask: dict[str, Any] = {"tokens": encode(PROMPT), "among": [worker.url]}
        assert router.select_worker(**ask, dry_run=True).kv_source is None
        add(router, fleet)
        with router.select_worker(**ask) as decision:
            named = decision.kv_source
            assert named is not None
            assert (decision.worker, decision.matched_tokens) == (worker.url, 0)
            assert (named.key, named.dp_rank, named.group, named.medium) == (source.url, None, "rack", "cpu")
            assert (named.start_tokens, named.end_tokens, named.address) == (0, 384, source.peer_address)
            assert named.load_ms == pytest.approx(38.4)
            answer = complete(worker.url, **named.apply({"prompt": PROMPT}))
            assert answer.cached_tokens == 384
            decision.on_complete(cached_tokens=384)
        assert [record.pulled_tokens for record in router.records.since(0)[0]] == [0, 0, 384]
        assert router.records.read()[-1].pulled_tokens == 384 if hasattr(router.records, "read") else True
        # It has them now, and so has the next request.
        with router.select_worker(**ask) as decision:
            assert decision.kv_source is None
        assert router.peer_groups.remove("rack")
        assert not router.peer_groups.remove("rack")
        assert router.peer_groups.names() == []


@pytest.mark.parametrize(
    "terms", [{"load_ms_per_token": None}, {"load_ms_per_token": 20.0}, {"startup_ms": 1e6}, {"media": ["gpu"]}]
)
def test_without_a_speed_or_a_gain_none_is_named(terms: dict[str, Any]) -> None:
    with pair_of_engines() as (fleet, router, _, worker):
        add(router, fleet, **terms)
        with router.select_worker(tokens=encode(PROMPT), among=[worker.url]) as decision:
            named = decision.kv_source
            assert (named is None) == (terms.get("media") is None)
            assert named is None or named.medium == "gpu"


SOURCE = KvSource("http://gpu1:8000", None, "rack", "cpu", 0, 4096, 70.4, "gpu1:7777", "vllm")


def test_a_body_names_the_source_of_the_decision_and_none_of_the_clients() -> None:
    forged = {"kv_request_id": "x", "remote_host": "169.254.169.254", "remote_port": 80}
    body = {
        "prompt": "...",
        "kv_hints": {"actions": []},
        "kv_transfer_params": {"remote_kv_source": forged, "kv_hint": {}, "remote_decoder": {"host": "d"}},
    }
    kept = {"prompt": "...", "kv_transfer_params": {"remote_decoder": {"host": "d"}}}
    assert without_sources(body) == kept
    sent = SOURCE.apply(body)
    named = sent["kv_transfer_params"].pop("remote_kv_source")
    assert sent == kept
    assert (named["remote_host"], named["remote_port"]) == ("gpu1", 7777)
    assert uuid.UUID(named["kv_request_id"]) != uuid.UUID(
        SOURCE.apply({})["kv_transfer_params"]["remote_kv_source"]["kv_request_id"]
    )
    assert body["kv_hints"] == {"actions": []}
    assert without_sources({"kv_transfer_params": None}) == {"kv_transfer_params": None}
    with pytest.raises(ValueError, match="remote_prefiller"):
        SOURCE.apply({"kv_transfer_params": {"remote_prefiller": {}}})


@pytest.mark.parametrize("odd", ["remote_prefiller", 5, [1], None])
def test_a_body_of_odd_types_or_of_any_depth_has_the_source_alone(odd: object) -> None:
    sent = SOURCE.apply({"kv_transfer_params": odd})["kv_transfer_params"]
    assert list(sent) == ["remote_kv_source"]
    assert outgoing(None, {"kv_transfer_params": odd}) == ({"kv_transfer_params": odd}, [])
    deep: dict[str, Any] = {"own": 1}
    for _ in range(5_000):
        deep = {"extra_args": deep}
    assert without_sources({"kv_hint": 1, **deep}) == deep


def test_the_child_of_a_fork_has_the_groups_of_its_parent() -> None:
    router = Router(WORKERS)
    router.peer_groups.add("rack", load_ms_per_token=0.01, port=7777)
    assert router._fleet.after_fork(anew=True) is None
    assert router.peer_groups.names() == ["rack"]


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"kv_hint": {}, "remote_kv_source": {}, "prompt": "kv_hint"}, {"prompt": "kv_hint"}),
        ({"extra_body": {"kv_hints": {}, "x": 1}}, {"extra_body": {"x": 1}}),
        ({"vllm_xargs": {"kv_transfer_params": {"kv_hint": {}}}}, {"vllm_xargs": {"kv_transfer_params": {}}}),
        (
            {"sampling_params": {"extra_args": {"kv_transfer_params": {"remote_kv_source": {}, "own": 1}}}},
            {"sampling_params": {"extra_args": {"kv_transfer_params": {"own": 1}}}},
        ),
        (
            {"messages": [{"kv_hints": 1}], "sampling_params": [1]},
            {"messages": [{"kv_hints": 1}], "sampling_params": [1]},
        ),
    ],
)
def test_sources_of_clients_are_taken_off_wherever_an_engine_may_look(body: Any, sent: Any) -> None:
    headers = [("x-kv-cache-source-host-port", "10.0.0.1:80"), ("X-KV-Cache-Source-P2P-Port", "1"), ("a", "b")]
    assert outgoing(None, body, headers) == (sent, [("a", "b")])


def test_a_request_that_decodes_alone_gets_no_source() -> None:
    with pair_of_engines() as (fleet, router, source, worker):
        add(router, fleet)
        with router.select_worker(tokens=encode(PROMPT), among=[worker.url]) as decision:
            assert decision.headers["x-cachelb-kv-source"] == source.url
            body, _ = outgoing(decision, {"kv_transfer_params": {"remote_prefiller": {}, "kv_hint": {}}})
            assert body == {"kv_transfer_params": {"remote_prefiller": {}}}


@pytest.mark.parametrize(
    ("form", "rank", "address", "headers", "host"),
    [
        ("vllm", None, "gpu1:7777", {}, "gpu1"),
        ("vllm", 3, "[::1]:7777", {}, "::1"),
        ("llm-d", None, "gpu1:8000", {HEADERS[0]: "gpu1:8000"}, None),
        ("llm-d", 2, "gpu1:8000", {HEADERS[0]: "gpu1:8000", HEADERS[1]: "2"}, None),
    ],
)
def test_forms(form: Form, rank: int | None, address: str, headers: dict[str, str], host: str | None) -> None:
    source = KvSource("http://gpu1:8000", rank, "rack", "cpu", 0, 16, 1.0, address, form)
    params = source.apply({"prompt": "..."}).get("kv_transfer_params", {})
    assert (source.headers, params.get("remote_kv_source", {}).get("remote_host")) == (headers, host)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("rack", {"load_ms_per_token": -0.1}, "load_ms_per_token"),
        ("rack", {"load_ms_per_token": float("nan")}, "load_ms_per_token"),
        ("rack", {"startup_ms": float("inf")}, "startup_ms"),
        ("rack", {"media": ["disk"]}, 'media must be of "gpu" and "cpu", got "disk"'),
        ("rack", {"media": []}, "media is empty"),
        ("rack", {"workers": []}, "workers is empty"),
        ("rack", {"sources": []}, "sources is empty"),
        ("rack", {"form": "nixl"}, 'form must be one of "vllm", "llm-d", got "nixl"'),
        ("rack", {"port": 70_000}, "port"),
        ("rack", {"port": None}, "port is missing"),
        ("rack", {"port": None, "addresses": {"a": "b:1"}}, '"http://gpu0:8000" has no address'),
        ("rack", {"addresses": {"http://gpu0:8000": "http://gpu0:7777"}}, "it must be host:port"),
        ("rack", {"model": "other"}, 'model "other" has no index of its own'),
        ("", {}, "must not be empty"),
        ("http://gpu0:8000", {}, "is the key of a worker"),
        ("store", {}, "is a shared cache"),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, Any], text: str) -> None:
    router = Router(WORKERS)
    router.shared_caches.add("store")
    with pytest.raises(ValueError, match=re.escape(text)):
        router.peer_groups.add(name, **{"port": 7777, **options})
    assert router.peer_groups.names() == []
