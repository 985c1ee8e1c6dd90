"""Fake engines with several cache groups find, publish and report what vLLM's do."""

from __future__ import annotations

import re
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from tests.http_client import complete, send
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import receiving

from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_fakes import FakeFleet

SLIDING, FULL = CacheGroup("sliding_window", 32, window=128), CacheGroup("full_attention", 32)
WINDOWS = CacheLayout([SLIDING, FULL])
STATES = CacheLayout([CacheGroup("mamba", 64), CacheGroup("full_attention", 64)])


def words(number: int, count: int) -> str:
    """Write a text of so many tokens of four bytes."""
    return "".join(f"{number}{i:03}" for i in range(count))


@pytest.mark.parametrize(("layout", "block", "repeated"), [(WINDOWS, 32, 288), (STATES, 64, 256)])
def test_prompts_resume_at_their_ends_and_where_they_part(layout: CacheLayout, block: int, repeated: int) -> None:
    with FakeFleet(1, block_size=block, cache_groups=layout) as fleet:
        prompts = [words(1, 200) + words(number, 100) for number in (2, 2, 3, 4)]
        cached = [complete(fleet.urls[0], prompt, max_tokens=1).cached_tokens for prompt in prompts]
    assert cached == [0, repeated, 0, 192]


def test_generated_tokens_are_published_and_not_resumed() -> None:
    with FakeFleet(1, block_size=32, cache_groups=WINDOWS, kv_events=True) as fleet:
        sink = RecordingSink(dict.fromkeys(fleet.urls, 1))
        with receiving(sink, fleet.kv_endpoint):
            (url,) = fleet.urls
            prompt = words(1, 100)
            answer = complete(url, prompt, max_tokens=80).json["choices"][0]["text"]
            assert complete(url, prompt + answer, max_tokens=1).cached_tokens == 96
            sink.wait_for(lambda: sink.of(url).last >= 2)
            prefill, decode = (msgpack.unpackb(sink.of(url).payloads[seq])[1] for seq in range(2))
    window: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    for batch, kept, tokens in ((prefill, [3, 3], 96), (decode, [0, 1], 32)):
        for event, group, blocks in zip(batch, (window, full), kept, strict=True):
            assert event.items() >= group.items()
            assert (len(event["block_hashes"]), len(event["token_ids"])) == (blocks, tokens)
            assert len(event.get("extra_keys", [])) == blocks
    assert [event.get("kv_cache_spec_sliding_window") for event in prefill] == [128, None]
    assert prefill[0]["block_hashes"] == prefill[1]["block_hashes"]
    assert decode[0]["parent_block_hash"] == prefill[1]["block_hashes"][-1]


def test_groups_share_blocks_and_name_themselves_when_they_lose_one() -> None:
    with FakeFleet(1, block_size=32, kv_blocks=20, cache_groups=WINDOWS, kv_events=True) as fleet:
        sink = RecordingSink(dict.fromkeys(fleet.urls, 1))
        with receiving(sink, fleet.kv_endpoint):
            (worker,) = fleet.workers
            for number in range(4):
                complete(worker.url, words(number, 200), max_tokens=1)
            sink.wait_for(lambda: sink.of(worker.url).last == 3)
            batches = [msgpack.unpackb(sink.of(worker.url).payloads[seq])[1] for seq in range(4)]
            held: dict[int, set[int]] = {0: set(), 1: set()}
            for event in (event for batch in batches for event in batch):
                names = set(event["block_hashes"])
                if event["type"] == "BlockStored":
                    held[event["group_idx"]] |= names
                else:
                    assert names <= held[event["group_idx"]]
                    held[event["group_idx"]] -= names
            assert sum(map(len, held.values())) == worker.cached_blocks <= 20
            assert any(event["type"] == "BlockRemoved" for event in batches[-1])


def test_metrics_have_the_settings_of_vllm_and_not_the_groups() -> None:
    with FakeFleet(1, block_size=64, cache_groups=STATES) as fleet:
        page = send(fleet.urls[0], "/metrics").body.decode()
    (labels,) = re.findall(r"vllm:cache_config_info\{(.*?)\}", page)
    found = dict(re.findall(r'(\w+)="(.*?)"', labels))
    assert found["block_size"] == "64"
    assert (found["prefix_cache_retention_interval"], found["mamba_cache_mode"]) == ("0", "align")
    assert (found["hash_block_size"], found["sliding_window"]) == ("None", "None")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache_groups": [FULL]}, TypeError, "cache_groups must be a CacheLayout or None, got list"),
        ({"cache_groups": WINDOWS}, ValueError, "block_size is 16, .* pass block_size=32"),
        ({"cache_groups": WINDOWS, "block_size": 32, "engine": "sglang"}, ValueError, "not for 'sglang'"),
        ({"cache_groups": WINDOWS, "block_size": 32, "kv_blocks": 1}, ValueError, "kv_blocks is 1, too few"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FakeFleet(1, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CacheGroup("sliding", 32), "kind is 'sliding', it must be one of full_attention"),  # type: ignore[arg-type]
        (lambda: CacheGroup("full_attention", 0), "block_size must be at least 1, got 0"),
        (lambda: CacheGroup("sliding_window", 32), "sliding_window needs window: pass that of the model"),
        (lambda: CacheGroup("mamba", 32, window=5), "window is 5 for mamba; leave it out"),
        (lambda: CacheLayout([SLIDING]), "groups are sliding_window: add one of full_attention or mla_attention"),
        (lambda: CacheLayout([]), "groups are none: add"),
        (lambda: CacheLayout([FULL, CacheGroup("mamba", 64)]), "mamba blocks of 64 tokens .* the same block_size"),
        (lambda: CacheLayout([SLIDING, FULL], 100), "retention_interval is 100, .* a multiple of 32"),
        (lambda: CacheLayout([FULL], 32), "no group is sliding_window or mamba; use 0"),
        (
            lambda: CacheLayout([FULL, CacheGroup("chunked_local_attention", 32, chunk=64)], eagle=True),
            "eagle does not go with chunked_local_attention",
        ),
        (
            lambda: CacheLayout([FULL, CacheGroup("chunked_local_attention", 64, chunk=64)]),
            "chunked_local_attention needs groups of one block_size",
        ),
        (lambda: CacheLayout([CacheGroup("full_attention", n) for n in (4099, 4111)]), "use sizes that divide"),
    ],
)
def test_groups_that_no_engine_has_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
