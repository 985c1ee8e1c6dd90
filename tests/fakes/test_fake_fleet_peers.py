"""Fake engines copy blocks from the source that a request names, and compute what it does not send."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import OrderedDict
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http_client import Answer, complete
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import receiving

from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_fakes import FakeFleet, FakeWorker, PeerTier
from cachelb_fakes.fleet.faults import PullFault
from cachelb_fakes.fleet.prefix_cache import HostMemory

PROMPT = "".join(f"{number:04}" for number in range(100))  # 100 tokens, 6 full blocks
TIER = PeerTier(blocks=64)


def vllm(source: FakeWorker, **more: object) -> dict[str, Any]:
    """Name a source as vLLM reads it."""
    host, port = source.peer_address.split(":")
    named = {"kv_request_id": str(uuid.uuid4()), "remote_host": host, "remote_port": int(port)}
    return {"kv_transfer_params": {"remote_kv_source": named, **more}}


def fetch(source: FakeWorker) -> dict[str, Any]:
    """Name a source as an action of KV hints."""
    payload = {"source_control_endpoint": f"tcp://{source.peer_address}", "block_hashes": [1], "mode": "copy"}
    action = {"action_id": "1", "action_type": "kv.fetch", "action_version": "1.0", "payload": payload}
    return {"protocol_version": "1.0", "message_id": "1", "actions": [action]}


def pull(source: FakeWorker, worker: FakeWorker, prompt: str = PROMPT) -> Answer:
    """Complete a prompt on a worker that copies it from a source."""
    return complete(worker.url, prompt, **vllm(source))


@pytest.mark.parametrize("form", ["remote_kv_source", "kv_hints", "kv_hint", "header", "old name"])
def test_every_form_names_the_source(form: str) -> None:
    with FakeFleet(2, peers=TIER) as fleet:
        source, worker = fleet.workers
        text = complete(source.url, PROMPT).json["choices"][0]["text"]
        named = vllm(source)
        fields: dict[str, Any] = {
            "remote_kv_source": named,
            "kv_hints": {"kv_hints": fetch(source)},
            "kv_hint": {"kv_transfer_params": {"kv_hint": fetch(source)}},
            "header": {"headers": {"x-kv-cache-source-host-port": source.url.removeprefix("http://")}},
            "old name": {"kv_transfer_params": {"p2p": named["kv_transfer_params"]["remote_kv_source"]}},
        }[form]
        answer = complete(worker.url, PROMPT, **fields)
        cached = 0 if form == "old name" else 96
        assert (answer.cached_tokens, worker.counts.pulled_tokens) == (cached, cached)
        assert answer.json["choices"][0]["text"] == text
        # The copy is a source too.
        third = fleet.add_worker()
        assert pull(worker, third).cached_tokens == 96


FAULTS: dict[str, tuple[PullFault | None, int, int, int]] = {  # fault, its blocks, cached tokens, missed pulls
    "miss": ("miss", 0, 0, 1),
    "evict": ("evict", 0, 0, 1),
    "short": ("short", 2, 32, 0),
    "stall": ("stall", 0, 0, 1),
    "dead": (None, 0, 0, 1),
    "restarted": (None, 0, 0, 1),
    "wrong seed": (None, 0, 0, 1),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_a_source_does_not_send_is_computed(case: str) -> None:
    fault, blocks, cached, missed = FAULTS[case]
    with FakeFleet(2, peers=TIER) as fleet:
        source, worker = fleet.workers
        text = complete(source.url, PROMPT).json["choices"][0]["text"]
        if fault is not None:
            source.fail_pulls(fault, times=1, blocks=blocks)
        elif case == "wrong seed":
            worker = fleet.add_worker(peers=PeerTier(blocks=64, hash_seed="1"))
        else:
            source.stop()
        if case == "restarted":
            source.start(restart=True)
        answer = pull(source, worker)
        assert answer.json["choices"][0]["text"] == text
        counts = worker.counts
        assert (answer.cached_tokens, counts.pulled_tokens, counts.missed_pulls) == (cached, cached, missed)
        assert complete(worker.url, PROMPT).cached_tokens == 96


def test_only_what_is_missing_is_copied_and_a_source_of_oneself_is_passed_over() -> None:
    with FakeFleet(2, peers=TIER) as fleet:
        source, worker = fleet.workers
        complete(worker.url, PROMPT[: 4 * 40])
        complete(source.url, PROMPT)
        assert (pull(worker, worker, PROMPT[: 4 * 50]).cached_tokens, worker.counts.missed_pulls) == (32, 0)
        assert (pull(source, worker).cached_tokens, worker.counts.pulled_tokens) == (96, 96 - 48)


def test_others_are_computed_while_a_request_waits_for_its_copy() -> None:
    with FakeFleet(2, peers=PeerTier(blocks=64, startup_ms=1e6), time_scale=0.001) as fleet:
        source, worker = fleet.workers
        complete(source.url, PROMPT)

        async def both() -> None:
            waits = asyncio.create_task(asyncio.to_thread(pull, source, worker))
            await asyncio.to_thread(fleet.wait_for, lambda: worker.counts.running == 1)
            await asyncio.to_thread(complete, worker.url, "other prompt " * 20)
            assert not waits.done()
            assert (await waits).cached_tokens == 96

        asyncio.run(both())


def test_host_memory_outlives_the_cache_and_is_published_by_names_alone() -> None:
    with FakeFleet(1, kv_blocks=8, peers=PeerTier(blocks=12), kv_events=True) as fleet:
        (worker,) = fleet.workers
        sink = RecordingSink(dict.fromkeys(fleet.urls, 1))
        with receiving(sink, fleet.kv_endpoint):
            for prompt in (PROMPT, PROMPT[::-1]):
                complete(worker.url, prompt)
            assert complete(worker.url, PROMPT).cached_tokens == 96  # from host memory
            complete(worker.url, "again" * 80)
            sink.wait_for(
                lambda: any(
                    b"BlockRemoved" in each and b"CPU" in each for each in sink.of(worker.url).payloads.values()
                )
            )
            events = [event for each in sink.of(worker.url).payloads.values() for event in msgpack.unpackb(each)[1]]
    stored = [event for event in events if event["medium"] == "CPU" and event["type"] == "BlockStored"]
    assert all(
        (event["token_ids"], event["block_size"], event["parent_block_hash"]) == ([], 0, None) for event in stored
    )
    known: set[int] = set()
    for event in events:
        if event["medium"] == "GPU" and event["type"] == "BlockStored":
            known |= set(event["block_hashes"])
        assert event["medium"] == "GPU" or set(event["block_hashes"]) <= known


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
@settings(max_examples=200)
def test_host_memory_is_that_of_the_model(most: int, prompts: list[tuple[int, int]]) -> None:
    events: list[dict[str, Any]] = []
    memory, model, seen = HostMemory(most, events.extend), OrderedDict[int, None](), set[int]()
    for first, length in prompts:
        names = [first, *(100 * first + at for at in range(1, length))][:length]
        held = 0
        while held < length and names[held] in model:
            held += 1
        assert memory.run_end(names, 0) == held
        memory.keep(names)
        for name in reversed(names):
            model.pop(name, None)
            model[name] = None
        while len(model) > most:
            model.popitem(last=False)
        for event in events:
            change = seen.update if event["type"] == "BlockStored" else seen.difference_update
            change(event["block_hashes"])
        events.clear()
        assert seen == set(model)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PeerTier(blocks=0), "blocks"),
        (lambda: PeerTier(blocks=1, ms_per_token=-1.0), "ms_per_token"),
        (lambda: PeerTier(blocks=1, timeout_s=float("nan")), "timeout_s"),
        (lambda: FakeFleet(peers=7), "peers must be a PeerTier"),  # type: ignore[arg-type]
        (lambda: FakeFleet(peers=TIER, cache_groups=CacheLayout([CacheGroup("full_attention", 16)])), "cache_groups"),
    ],
)
def test_wrong_options_are_named(make: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


def test_unknown_fault_is_named() -> None:
    with FakeFleet(1, peers=TIER) as fleet, pytest.raises(ValueError, match="unknown fault 'slow'"):
        fleet.workers[0].fail_pulls("slow")  # type: ignore[arg-type]


def test_many_requests_copy_from_many_sources() -> None:
    with FakeFleet(4, peers=PeerTier(blocks=200)) as fleet:
        rng, texts = random.Random(1), dict[str, str]()
        for _ in range(60):
            source, worker = rng.sample(fleet.workers, 2)
            prompt = f"{rng.randrange(6):04}" * 80
            text = pull(source, worker, prompt).json["choices"][0]["text"]
            assert texts.setdefault(prompt, text) == text
        counts = [worker.counts for worker in fleet.workers]
        assert sum(each.finished for each in counts) == 60
        assert sum(each.pulled_tokens for each in counts) > 0
