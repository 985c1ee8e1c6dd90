"""The router a configuration gives is the one it describes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.models.metrics_server import eventually

from cachelb import ConfigError, Router, config
from cachelb.config.build import event_source
from cachelb.events import ZmqSource
from cachelb.events.relayed import RelayEndpoint

FLEET = """\
[router]
policy = "cache-aware"
block_size = 64
seed = 1

[policy]
cache_threshold = 0.9

[[workers]]
url = "http://gpu0:8000"
weight = 2.0

[[workers]]
url = "http://gpu1:8000"
"""


def build(data: dict[str, Any], **environ: str) -> Router[str]:
    return config.load(data, environ=environ).build()


def pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "cachelb" in thread.name}


def test_router_of_a_file_has_its_workers_policy_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELB_BOOKING_TTL_S", "60")
    file = tmp_path / "gateway.toml"
    file.write_text(FLEET)
    router = Router.from_config(file)
    assert router.policy == "cache-aware"
    assert [(worker.key, worker.weight) for worker in router.stats().workers] == [
        ("http://gpu0:8000", 2.0),
        ("http://gpu1:8000", 1.0),
    ]
    assert router.config is not None
    assert router.config.options == {"block_size": 64, "seed": 1, "booking_ttl_s": 60}


def test_options_of_router_and_policy_take_effect() -> None:
    data: dict[str, Any] = {"router": {"block_size": 64, "seed": 1}, "workers": ["a", "b"]}
    data["policy"] = {"type": "cache-aware", "cache_threshold": 0.9}
    prompt = list(range(640))
    with build(data) as router:
        with router.select_worker(tokens=prompt) as first:
            pass
        assert router.select_worker(tokens=[*prompt, *range(70)], dry_run=True).matched_tokens == 640
        assert router.select_worker(tokens=[*prompt[:512], *range(9000, 9128)], dry_run=True).reason == "cold"
        data["policy"] = {"type": "cache-aware", "cache_threshold": 0.8}
    with build(data) as router:
        first = router.select_worker(tokens=prompt)
        first.on_complete()
        assert router.select_worker(tokens=[*prompt[:512], *range(9000, 9128)], dry_run=True).reason == "prefix"


def test_prefill_and_decode_workers_make_pairs_by_their_own_policies() -> None:
    data = {
        "mode": {
            "type": "vllm_prefill_decode",
            "prefill_urls": [["http://p0:1", 8998]],
            "decode_urls": ["http://d0:1", "http://d1:1"],
            "decode_policy": {"type": "power_of_two", "choices": 2},
        }
    }
    with build(data) as router:
        pair = router.select_pair(tokens=list(range(100)))
        assert pair.prefill is not None
        assert pair.prefill.worker == "http://p0:1"
        assert pair.decode.worker in {"http://d0:1", "http://d1:1"}
        assert {worker.key: worker.role for worker in router.stats().workers} == {
            "http://p0:1": "prefill",
            "http://d0:1": "decode",
            "http://d1:1": "decode",
        }


def test_load_is_polled_only_if_the_configuration_says_so_and_until_the_router_closes() -> None:
    before = pollers()
    with build({"workers": ["http://127.0.0.1:9"]}):
        assert pollers() <= before
    with build({"load": {"interval_s": 5.0}}):
        assert len(pollers() - before) == 1
    assert pollers() <= before


def test_loading_leaves_no_thread_behind() -> None:
    before = pollers()
    loaded = config.load({"load": {"interval_s": 5.0}, "workers": ["http://127.0.0.1:9"]}, environ={})
    assert loaded.load == {"interval_s": 5.0}
    assert pollers() <= before


def test_every_build_is_a_router_of_its_own() -> None:
    loaded = config.load({"workers": ["a"]}, environ={})
    one, other = loaded.build(), loaded.build()
    with one.select_worker():
        assert [router.stats().workers[0].inflight for router in (one, other)] == [1, 0]


def test_what_the_router_refuses_is_refused_on_loading() -> None:
    with pytest.raises(ConfigError, match=r"mapping: router.veto_kv_usage: veto_kv_usage must be"):
        config.load({"router": {"veto_kv_usage": 7}}, environ={})


def test_seeds_configuration_subscribes_to_the_events_of_every_worker() -> None:
    paired = {
        "mode": {
            "type": "vllm_prefill_decode",
            "prefill_urls": [["http://127.0.0.1:1", None]],
            "decode_urls": ["http://127.0.0.2:1"],
            "decode_policy": {"type": "kv_aware", "block_size": 16},
            "kv_events": {"topic_filter": "", "default_port": 5557},
        }
    }
    before = pollers()
    with build(paired) as router:
        (source,) = router._sources._attached.values()
        assert isinstance(source, ZmqSource)
        eventually(lambda: len(source.stats().streams) == 2)
        addresses = {stream.address for stream in source.stats().streams.values()}
        assert addresses == {"tcp://127.0.0.1:5557", "tcp://127.0.0.2:5557"}
    assert pollers() <= before


def test_events_come_through_a_relay_if_one_is_named() -> None:
    source = event_source(config.load({"kv_events": {"relay": "tcp://relay:7800"}}, environ={}))
    assert source is not None
    assert source._settings.endpoint("http://gpu0:8000") == RelayEndpoint("tcp://relay:7800", "tcp://relay:7801")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"router": {"policy": "kv-aware"}}, (5557, None, b"")),
        ({"router": {"prefill_policy": "kv-aware"}}, (5557, None, b"")),
        ({"kv_events": {"default_port": 1, "replay_port": 2, "topic_filter": "kv@"}}, (1, 2, b"kv@")),
        ({"router": {"policy": "kv-aware"}, "kv_events": {"enabled": False}}, None),
        ({"router": {"policy": "cache-aware"}}, None),
    ],
    ids=["kv-aware", "kv-aware for prefill", "a table", "turned off", "neither"],
)
def test_events_are_received_if_asked_for_or_needed(data: dict[str, Any], expected: object) -> None:
    source = event_source(config.load(data, environ={}))
    settings = None if source is None else source._settings
    assert (settings and (settings.port, settings.replay_port, settings.stream.topic_filter)) == expected
