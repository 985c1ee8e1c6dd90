"""A fake fleet publishes what its prefix caches do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
from tests.http_client import complete
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import receiving
from tests.waiting import wait_until

from cachelb import Router
from cachelb.events import ZmqSource
from cachelb_fakes import FakeFleet, PeerTier
from cachelb_fakes.fleet.tokens import encode

PROMPT = "word" * 64


@contextlib.contextmanager
def publishing(workers: int = 1, **options: Any) -> Iterator[tuple[FakeFleet, RecordingSink]]:
    with FakeFleet(workers, kv_events=True, **options) as fleet:
        sink = RecordingSink(dict.fromkeys(fleet.urls, 1))
        with receiving(sink, fleet.kv_endpoint):
            yield fleet, sink


def events(sink: RecordingSink, url: str, batches: int) -> list[list[dict[str, Any]]]:
    """Wait for batches; return their events."""
    sink.wait_for(lambda: sink.of(url).last == batches - 1)
    return [msgpack.unpackb(sink.of(url).payloads[seq])[1] for seq in range(batches)]


def test_evictions_come_before_the_blocks_that_cause_them_last_block_first() -> None:
    with publishing(kv_blocks=6, default_max_tokens=1) as (fleet, sink):
        (worker,) = fleet.workers
        complete(worker.url, PROMPT)
        complete(worker.url, "else" * 64)
        (first,), second = events(sink, worker.url, 2)
        names = first["block_hashes"]
        assert [event["type"] for event in second] == ["BlockRemoved", "BlockRemoved", "BlockStored"]
        assert [event["block_hashes"] for event in second[:-1]] == [[names[3]], [names[2]]]
        assert worker.cached_blocks == 6


def test_salt_is_named_by_the_first_block_only_and_an_adapter_by_all() -> None:
    with publishing(models=["base", "adapter"]) as (fleet, sink):
        (url,) = fleet.urls
        complete(url, "word" * 32, cache_salt="salt")
        complete(url, "word" * 32, model="adapter", cache_salt="salt")
        complete(url, "word" * 48, model="adapter", cache_salt="salt")
        ((salted,), (both,), (tail,)) = events(sink, url, 3)
        assert (salted["lora_name"], salted["extra_keys"]) == (None, [["salt"], None])
        assert (both["lora_name"], both["extra_keys"]) == ("adapter", [["adapter", "salt"], ["adapter"]])
        assert (tail["lora_name"], tail["extra_keys"]) == ("adapter", [["adapter"]])


def test_a_reset_is_told_with_the_next_change() -> None:
    with publishing() as (fleet, sink):
        (worker,) = fleet.workers
        complete(worker.url, PROMPT)
        worker.reset_cache()
        assert complete(worker.url, PROMPT).cached_tokens == 0
        _, again = events(sink, worker.url, 2)
        assert [event["type"] for event in again] == ["AllBlocksCleared", "BlockStored"]


def test_a_fleet_without_events_has_no_endpoints() -> None:
    with FakeFleet(1) as fleet:
        assert fleet.kv_endpoint(fleet.urls[0]) is None
        assert fleet.workers[0].events is None


def test_a_router_finds_in_host_memory_what_the_cache_lost() -> None:
    options: dict[str, Any] = {"kv_events": True, "kv_blocks": 8, "peers": PeerTier(blocks=64)}
    with FakeFleet(2, **options) as fleet, Router(fleet.urls, block_size=16) as router:
        router.attach(ZmqSource(endpoints=fleet.kv_endpoint))
        for prompt in ("".join(map(str, range(1000, 1100))), "".join(map(str, range(2000, 2100)))):
            complete(fleet.urls[0], prompt)
        wait_until(lambda: router.stats().workers[0].index_blocks.get("cpu") == 12)
        wait_until(lambda: router.stats().workers[0].index_blocks.get("gpu") == 8)
        with router.select_worker(tokens=encode("".join(map(str, range(1000, 1100))))) as decision:
            assert (decision.worker, decision.matched_tokens) == (fleet.urls[0], 96)
