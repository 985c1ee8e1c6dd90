"""A fake fleet publishes what its prefix caches do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
from tests.http_client import complete
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import receiving

from cachelb_fakes import FakeFleet

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
