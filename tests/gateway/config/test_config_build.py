"""The router a configuration gives is the one it describes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.library.events.test_router_events import batch
from tests.models.metrics_server import eventually

from cachelb import Router
from cachelb.events import ZmqSource
from cachelb.events.zmq.relayed import RelayEndpoint
from cachelb_fakes.events import stored
from cachelb_gateway import config


def build(data: dict[str, Any], **environ: str) -> Router[str]:
    return config.load(data, environ=environ).build()


def pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "cachelb" in thread.name}


def test_router_of_a_file_has_its_workers_policy_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELB_BOOKING_TTL_S", "60")
    file = tmp_path / "gateway.json"
    workers = [{"url": "http://gpu0:8000", "weight": 2.0}, "http://gpu1:8000"]
    file.write_text(json.dumps({"router": {"policy": "random", "block_size": 64}, "workers": workers}))
    loaded = config.load(file)
    router = loaded.build()
    assert router.policy.name == "random"
    assert [(row.key[7:11], row.weight) for row in router.stats().workers] == [("gpu0", 2.0), ("gpu1", 1.0)]
    assert loaded.options == {"block_size": 64, "booking_ttl_s": 60}


def test_options_of_router_and_policy_take_effect() -> None:
    prompt = list(range(640))
    for threshold, reason in ((0.9, "cold"), (0.8, "prefix")):
        policy = {"type": "cache-aware", "cache_threshold": threshold}
        with build({"router": {"block_size": 64, "seed": 1}, "workers": ["a", "b"], "policy": policy}) as router:
            router.select_worker(tokens=prompt).on_complete()
            assert router.select_worker(tokens=[*prompt, *range(70)], dry_run=True).matched_tokens == 640
            assert router.select_worker(tokens=[*prompt[:512], *range(9000, 9128)], dry_run=True).reason == reason


def test_peer_groups_are_registered_with_their_options() -> None:
    group = {"name": "rack", "load_ms_per_token": 0.01, "port": 7777, "workers": ["http://a:1", "http://b:1"]}
    other = {"name": "pool", "form": "llm-d", "addresses": {"c": "c:80"}, "workers": ["c"], "model": "m"}
    data = {"router": {"models": {"m": 32}}, "workers": ["http://a:1", "c"], "peer_groups": [group, other]}
    loaded = config.load(data, environ={})
    assert [(each.name, each.options["workers"]) for each in loaded.peer_groups] == [
        ("rack", ("http://a:1", "http://b:1")),
        ("pool", ("c",)),
    ]
    shown = {row.path: (row.value, row.origin) for row in config.show(loaded)}
    assert shown["peer_groups[0].port"] == (7777, "mapping")
    assert shown["peer_groups[1].startup_ms"] == (0.0, "default")
    assert shown["peer_groups[1].addresses"] == ({"c": "c:80"}, "mapping")
    with loaded.build() as router:
        assert router.peer_groups.names() == ["pool", "rack"]


def test_shared_caches_are_registered_with_their_options() -> None:
    cache = {"name": "store", "load_ms_per_token": 0.01, "media": ["cpu"]}
    other = {"name": "other", "model": "m", "ttl_s": None, "workers": ["b", "c"]}
    data = {"router": {"models": {"m": 32}}, "workers": ["a", "b"], "shared_caches": [cache, other]}
    loaded = config.load(data, environ={})
    assert loaded.shared_caches == (
        config.SharedCacheConfig("store", {"load_ms_per_token": 0.01, "media": ("cpu",)}),
        config.SharedCacheConfig("other", {"model": "m", "ttl_s": None, "workers": ("b", "c")}),
    )
    shown = {row.path: (row.value, row.origin) for row in config.show(loaded)}
    assert shown["shared_caches[0].load_ms_per_token"] == (0.01, "mapping")
    assert shown["shared_caches[0].ttl_s"] == (1800.0, "default")
    assert [shown[f"shared_caches[{n}].workers"][0] for n in (0, 1)] == [None, ["b", "c"]]
    with loaded.build() as router:
        router.event_sink.apply_events("a", batch(stored([1, 2], range(32), medium="cpu")), seq=0)
        assert router.shared_caches.blocks() == {"store": 2, "other": 0}
        router.event_sink.apply_events("other", batch(stored([1, 2], range(32))), seq=0)
        views = router.explain(tokens=range(65), model="m").candidates
        assert [view.shared_blocks for view in views] == [0, 1]


def test_cache_layout_of_a_worker_takes_effect() -> None:
    groups = [{"kind": "sliding_window", "block_size": 32, "window": 128}, {"kind": "full_attention", "block_size": 32}]
    prompt = list(range(300))
    for layout, resumed in (
        ({"groups": groups}, 0),
        ({"groups": groups, "retention_interval": "all"}, 192),
        ({"groups": groups[1:], "eagle": True}, 160),
    ):
        workers = [{"url": "a", "cache_layout": layout}]
        with build({"router": {"block_size": 32, "policy": "kv-aware"}, "workers": workers}) as router:
            router.select_worker(tokens=prompt).on_complete()
            parted = [*prompt[:200], *range(9000, 9100)]
            assert router.select_worker(tokens=parted, dry_run=True).matched_tokens == resumed


def test_load_is_polled_only_if_the_configuration_says_so_and_until_the_router_closes() -> None:
    before = pollers()
    with build({"workers": ["http://127.0.0.1:9"]}):
        assert pollers() <= before
    loaded = config.load({"load": {"interval_s": 5.0}, "workers": ["http://127.0.0.1:9"]}, environ={})
    assert loaded.load == {"interval_s": 5.0}
    assert pollers() <= before
    with loaded.build():
        assert len(pollers() - before) == 1
    assert pollers() <= before


def test_every_build_is_a_router_of_its_own() -> None:
    loaded = config.load({"workers": ["a"]}, environ={})
    one, other = loaded.build(), loaded.build()
    with one.select_worker(by_load=True):
        assert [router.stats().workers[0].inflight for router in (one, other)] == [1, 0]


def test_seeds_configuration_subscribes_to_the_events_of_every_worker() -> None:
    urls = {"prefill_urls": [["http://127.0.0.1:1", None]], "decode_urls": ["http://127.0.0.2:1"]}
    policy = {"type": "kv_aware", "block_size": 16}
    events = {"topic_filter": "", "default_port": 5557}
    before = pollers()
    with build(
        {"mode": {"type": "vllm_prefill_decode", "decode_policy": policy, "kv_events": events, **urls}}
    ) as router:
        (source,) = router._sources._attached.values()
        assert isinstance(source, ZmqSource)
        eventually(lambda: len(source.stats().streams) == 2)
        addresses = {stream.address for stream in source.stats().streams.values()}
        assert addresses == {"tcp://127.0.0.1:5557", "tcp://127.0.0.2:5557"}
    assert pollers() <= before


def event_source(data: dict[str, Any]) -> ZmqSource | None:
    with build(data) as router:
        return next((each for each in router._sources._attached.values() if isinstance(each, ZmqSource)), None)


def test_events_come_through_a_relay_if_one_is_named() -> None:
    source = event_source({"kv_events": {"relay": "tcp://relay:7800"}})
    assert source is not None
    assert source.endpoint("http://gpu0:8000") == RelayEndpoint("tcp://relay:7800", "tcp://relay:7801")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"router": {"policy": "kv-aware"}}, (5557, None, "")),
        ({"router": {"prefill_policy": "kv-aware"}}, (5557, None, "")),
        ({"kv_events": {"default_port": 1, "replay_port": 2, "topic_filter": "kv@"}}, (1, 2, "kv@")),
        ({"router": {"policy": "kv-aware"}, "kv_events": {"enabled": False}}, None),
        ({"router": {"policy": "cache-aware"}}, None),
    ],
    ids=["kv-aware", "kv-aware for prefill", "a table", "turned off", "neither"],
)
def test_events_are_received_if_asked_for_or_needed(data: dict[str, Any], expected: object) -> None:
    source = event_source(data)
    assert (source and (source.default_port, source.replay_port, source.topic_filter)) == expected
