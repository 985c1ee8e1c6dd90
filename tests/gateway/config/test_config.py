"""Configurations of every layout: what they give, where values come from, and what wins."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cachelb.errors import ConfigError
from cachelb.policies import POLICIES
from cachelb_gateway import config

ROUTING = """\
# gateway config
routing:
  policy: vllm_cache_aware
  vllm_cache_aware:
    block_size: 16
    max_blocks_per_backend: 100000
    eviction_interval_secs: 60
    cache_threshold: 0.3
    load_factor: 1.25
"""

PAIRED = """\
mode:
  type: vllm_prefill_decode
  prefill_urls:
    - ["http://prefill1:8081", null]
    - ["http://prefill2:8082", 8998]
    - "http://prefill3:8083"
  decode_urls:
    - "http://decode1:8083"
    - "http://decode2:8084"
  decode_policy:
    type: kv_aware
    block_size: 16
    enable_speculative: true
    speculative_ttl_ms: 2000
  kv_events:
    topic_filter: ""
    default_port: 5557

model_path: "meta-llama/Llama-3.1-8B-Instruct"
"""

OWN = """\
model_path = "meta-llama/Llama-3.1-8B-Instruct"

[router]
policy = "cache-aware"
block_size = 32
hash_seed = 7
shadow = ["random", { type = "power-of-two", choices = 4 }]

[policy]
cache_threshold = 0.5

[[workers]]
url = "http://gpu0:8000"
weight = 2.0

[[workers]]
url = "http://gpu1:8000"
gpu = "h100"

[kv_events]
topic_filter = "kv@"

[load]
interval_s = 0.5
"""


def load(source: Any, **environ: str) -> config.RouterConfig:
    return config.load(source, environ=environ)


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def shown(loaded: config.RouterConfig) -> dict[str, tuple[object, str]]:
    return {row.path: (row.value, row.origin) for row in config.show(loaded)}


# === layouts ===


def test_routing_snippet_gives_the_policy_and_options_it_names(tmp_path: Path) -> None:
    file = written(tmp_path, "gateway.yaml", ROUTING)
    loaded = load(file)
    options = {"cache_threshold": 0.3, "load_factor": 1.25, "eviction_interval_secs": 60}
    assert loaded.policy == config.PolicyConfig("cache-aware", {"max_blocks_per_worker": 100_000, **options})
    assert (loaded.options, loaded.workers) == ({"block_size": 16}, ())
    assert loaded.origins["router.policy"] == f"{file} as routing.policy"
    assert loaded.origins["router.block_size"] == f"{file} as routing.vllm_cache_aware.block_size"
    renamed = f"{file} as routing.vllm_cache_aware.max_blocks_per_backend"
    assert loaded.origins["policy.max_blocks_per_worker"] == renamed


def test_paired_snippet_gives_the_roles_policies_ports_and_topic_filter_it_names(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, "gateway.yaml", PAIRED))
    assert [(worker.key, worker.role, worker.bootstrap_port) for worker in loaded.workers] == [
        ("http://prefill1:8081", "prefill", None),
        ("http://prefill2:8082", "prefill", 8998),
        ("http://prefill3:8083", "prefill", None),
        ("http://decode1:8083", "decode", None),
        ("http://decode2:8084", "decode", None),
    ]
    speculative = {"enable_speculative": True, "speculative_ttl_ms": 2000}
    assert loaded.decode_policy == config.PolicyConfig("kv-aware", speculative)
    assert loaded.options == {"block_size": 16}
    assert loaded.kv_events == {"topic_filter": "", "default_port": 5557}
    assert loaded.model_path == "meta-llama/Llama-3.1-8B-Instruct"
    with loaded.build() as router:
        pair = router.select_pair(tokens=range(100))
        assert pair.prefill is not None
        assert (pair.prefill.worker[:-6], pair.decode.reason) == ("http://prefill", "cold")


def test_own_layout_gives_everything_it_says(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, "gateway.toml", OWN))
    assert loaded.policy == config.PolicyConfig("cache-aware", {"cache_threshold": 0.5})
    assert loaded.options == {"block_size": 32, "hash_seed": 7}
    assert loaded.shadow == (config.PolicyConfig("random"), config.PolicyConfig("power-of-two", {"choices": 4}))
    assert loaded.workers == (
        config.WorkerConfig("http://gpu0:8000", "both", {"weight": 2.0}),
        config.WorkerConfig("http://gpu1:8000", "both", {"gpu": "h100"}),
    )
    assert loaded.kv_events == {"topic_filter": "kv@"}
    assert loaded.load == {"interval_s": 0.5}
    assert loaded.model_path == "meta-llama/Llama-3.1-8B-Instruct"


def test_toml_json_and_mapping_say_the_same(tmp_path: Path) -> None:
    data = tomllib.loads(OWN)
    files = [written(tmp_path, f"a.{kind}", text) for kind, text in (("json", json.dumps(data)), ("toml", OWN))]
    rows = [[(row.path, row.value) for row in config.show(load(source))] for source in (data, *files)]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("name", ["power_of_two", "power-of-two"])
@pytest.mark.parametrize(
    "layout",
    [
        lambda name: {"router": {"policy": name}, "policy": {"choices": 3}},
        lambda name: {"policy": {"type": name, "choices": 3}},
        lambda name: {"router": {"policy": {"type": name, "choices": 3}}},
        lambda name: {"routing": {"policy": name, name: {"choices": 3}}},
        lambda name: {"router": {"policy": name}, "policy": {"type": name, "choices": 3}},
    ],
)
def test_a_policy_can_be_named_with_its_options_in_five_ways(layout: Any, name: str) -> None:
    assert load(layout(name)).policy == config.PolicyConfig("power-of-two", {"choices": 3})


def test_what_the_router_governs_may_stand_among_the_options_of_a_policy() -> None:
    loaded = load({"policy": {"block_size": 64, "seed": 3}})
    assert loaded.options == {"block_size": 64, "seed": 3}
    assert loaded.policy.options == {}
    assert loaded.origins["router.block_size"] == "mapping as policy.block_size"


def test_an_empty_mapping_is_a_router_without_workers() -> None:
    loaded = load({})
    assert (loaded.policy.name, loaded.workers, loaded.options, loaded.load) == ("adaptive", (), {}, None)


def test_later_changes_of_a_mapping_do_not_reach_the_configuration() -> None:
    data: dict[str, Any] = {"router": {"models": {"llama": 16}}}
    loaded = load(data)
    data["router"]["models"]["llama"] = 32
    assert loaded.options["models"] == {"llama": 16}


def test_null_says_nothing() -> None:
    nothing = {"router": {"policy": None, "shadow": None}, "decode_policy": None, "workers": None, "kv_events": None}
    loaded = load({**nothing, "mode": {"type": "vllm_prefill_decode", "decode_policy": None, "prefill_urls": None}})
    assert (loaded.origins, loaded.decode_policy, loaded.kv_events) == ({}, None, None)


# === workers ===


PREFILL = {"url": "http://p:1", "role": "prefill"}


@pytest.mark.parametrize(
    "data",
    [
        {"mode": {"type": "vllm_prefill_decode", "prefill_urls": ["unix:///p.sock"], "decode_urls": ["http://d:1"]}},
        {"workers": [PREFILL, {"url": "unix:///d.sock", "role": "decode"}]},
        {"workers": [PREFILL, "unix:///both.sock"]},
    ],
)
def test_unix_sockets_cannot_transfer_kv_cache(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"unix:///\w+.sock' is a Unix socket, but .* give it a host and a port"):
        load(data)
    assert load({"workers": ["unix:///a.sock"]}).workers[0].key == "unix:///a.sock"


def test_passwords_in_urls_are_not_shown() -> None:
    key = "http://me:hunter2@gpu0:8000"
    loaded = load({"workers": [key]})
    assert loaded.workers[0].key == key
    assert "hunter2" not in repr(loaded.workers) + repr(config.show(loaded))
    with pytest.raises(ConfigError, match="'http://gpu0:8000' is there already"):
        load({"workers": [key, key]})


# === environment ===


def test_environment_wins_over_the_file_and_says_so(tmp_path: Path) -> None:
    loaded = load(
        written(tmp_path, "gateway.toml", OWN),
        CACHELB_BLOCK_SIZE="64",
        CACHELB_POLICY__CACHE_THRESHOLD="0.9",
        CACHELB_KV_EVENTS__TOPIC_FILTER="1",
        CACHELB_LOAD__INTERVAL_S="2",
        CACHELB_SHADOW="least-loaded, round_robin",
        CACHELB_PD_FALLBACK="true",
        PATH="/bin",
    )
    assert loaded.options == {"block_size": 64, "hash_seed": 7, "pd_fallback": True}
    assert loaded.policy.options == {"cache_threshold": 0.9}
    assert loaded.kv_events == {"topic_filter": "1"}
    assert loaded.load == {"interval_s": 2}
    assert [policy.name for policy in loaded.shadow] == ["least-loaded", "round-robin"]
    assert loaded.origins["router.block_size"] == "env CACHELB_BLOCK_SIZE"
    assert loaded.origins["policy.cache_threshold"] == "env CACHELB_POLICY__CACHE_THRESHOLD"


def test_workers_of_the_environment_keep_what_the_file_says_of_them(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, "gateway.toml", OWN), CACHELB_WORKERS="http://gpu9:8000, http://gpu0:8000,")
    assert loaded.workers == (
        config.WorkerConfig("http://gpu9:8000", "both"),
        config.WorkerConfig("http://gpu0:8000", "both", {"weight": 2.0}),
    )
    assert loaded.origins["workers[1].url"] == "env CACHELB_WORKERS"
    assert loaded.origins["workers[1].weight"].startswith(str(tmp_path))


def test_options_of_a_policy_that_the_environment_replaces_are_set_aside() -> None:
    options = {"type": "cache-aware", "load_factor": 2, "block_size": 32}
    loaded = load({"policy": options}, CACHELB_POLICY="least_loaded")
    assert loaded.policy == config.PolicyConfig("least-loaded")
    assert loaded.options == {"block_size": 32}  # the router's, whatever the policy
    assert loaded.unused == {"policy.load_factor": "env CACHELB_POLICY names another policy"}
    same = load({"policy": options}, CACHELB_POLICY="vllm_cache_aware")
    assert (same.policy, same.unused) == (config.PolicyConfig("cache-aware", {"load_factor": 2}), {})


@pytest.mark.parametrize(
    "variable", ["DATA", "SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP_ADDR", "GATEWAY_PORT_8000_TCP"]
)
def test_variables_of_the_tests_and_of_kubernetes_services_are_left_alone(variable: str) -> None:
    assert load({}, **{f"CACHELB_{variable}": "tcp://10.0.0.1:80"}).origins == {}


# === show ===


def test_show_lists_defaults_beside_what_was_set(tmp_path: Path) -> None:
    file = written(tmp_path, "gateway.toml", OWN)
    rows = shown(load(file))
    assert rows["router.block_size"] == (32, str(file))
    assert rows["router.replicas"] == (1, "default")
    assert rows["policy.cache_threshold"] == (0.5, str(file))
    assert rows["policy.load_factor"] == (1.25, "default")
    assert rows["workers[0].weight"] == (2.0, str(file))
    assert rows["workers[1].role"] == ("both", "default")
    assert rows["workers[1].url"] == ("http://gpu1:8000", str(file))
    assert rows["kv_events.default_port"] == (5557, "default")
    assert rows["shadow[1].choices"] == (4, f"{file} as router.shadow[1].choices")
    assert rows["router.shadow[0]"][0] == "random"


def test_show_has_each_setting_once_under_its_canonical_name() -> None:
    rows = config.show(load({"policy": {"type": "cache-aware", "max_blocks_per_backend": 5}}))
    paths = [row.path for row in rows]
    assert len(paths) == len(set(paths))
    assert "policy.max_blocks_per_backend" not in paths
    assert "policy.block_size" not in paths
    assert not {"router.key", "router.clock", "policy.key", "policy.clock"} & set(paths)


def test_secrets_are_shown_as_set_and_kept_out_of_repr() -> None:
    loaded = load({"router": {"hash_seed": 424242}})
    assert shown(loaded)["router.hash_seed"] == ("set", "mapping")
    assert "424242" not in repr(loaded) + repr(config.show(loaded))
    assert shown(load({}))["router.hash_seed"] == (None, "default")


# === every policy ===


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_its_own_defaults_and_aliases_from_a_configuration(name: str) -> None:
    rows = [row for row in config.show(load({"policy": name})) if row.path.startswith("policy.")]
    options = {row.path.removeprefix("policy."): row.value for row in rows if row.value is not None}
    loaded = load({"policy": {"type": name.replace("-", "_"), **options}})
    with loaded.build() as router:
        assert router.policy.name == loaded.policy.name == name
    assert {row.path: row.value for row in rows} == {row.path: shown(loaded)[row.path][0] for row in rows}
    assert set(loaded.policy.options) == set(options)
    for alias, option in POLICIES[name].option_aliases.items():
        assert load({"policy": {"type": name, alias: options[option]}}).policy.options == {option: options[option]}
