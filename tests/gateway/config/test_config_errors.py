"""Mistakes in configurations: each is refused, with the place, the path and the way out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.errors import ConfigError
from cachelb_gateway import config
from cachelb_gateway.config import schema


def refused(source: Any, **environ: str) -> str:
    with pytest.raises(ConfigError) as error:
        config.load(source, environ=environ)
    return str(error.value)


def rule(name: str, **options: Any) -> dict[str, Any]:
    return {"policy": {"type": name, **options}}


def pairs(**urls: Any) -> dict[str, Any]:
    return {"mode": {"type": "vllm_prefill_decode", **urls}}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"ruter": {}}, "mapping: ruter: unknown key; did you mean 'router'?"),
    ({"block_size": 1}, "mapping: block_size: unknown key ('block_size' belongs in [router])"),
    ({"router": {"block_sise": 16}}, "mapping: router.block_sise: unknown key; did you mean 'block_size'?"),
    ({"router": {"objective": "ttft"}}, "router.objective: is an option of a policy; write it under [policy]"),
    ({"router": {"workers": []}}, "router.workers: unknown key; workers stands at the top level: [workers]"),
    ({"router": {"clock": 1}}, "router.clock: cannot be written in a configuration; give it in code"),
    ({"shared_caches": [{"ttl_s": 1}]}, "shared_caches[0]: a shared cache has a name"),
    ({"shared_caches": [{"name": "x", "ttl": 1}]}, "shared_caches[0].ttl: unknown key; did you mean 'ttl_s'?"),
    (
        {"shared_caches": [{"name": "x", "startup_ms": 1, "ttl_s": 0}]},
        "shared_caches[0].ttl_s: ttl_s must be",
    ),
    (
        {"shared_caches": [{"name": "x"}, {"name": "y"}]},
        "shared_caches[1].name: 'y' is the second shared cache of the model after 'x'; it reads one",
    ),
    (
        {"shared_caches": [{"name": "x", "workers": []}]},
        "shared_caches[0].workers: workers is empty",
    ),
    ({"shared_caches": [{"name": "x", "workers": "a"}]}, "shared_caches[0].workers: workers must be several, got one"),
    (
        {"workers": ["x"], "shared_caches": [{"name": "x"}]},
        "shared_caches[0].name: name 'x' is the key of a worker; a shared",
    ),
    (
        {"shared_caches": [{"name": "x", "model": "m"}]},
        'shared_caches[0].model: model "m" has no index of its own; name it',
    ),
    ({"peer_groups": [{"port": 1}]}, "peer_groups[0]: a peer group has a name"),
    ({"peer_groups": [{"name": "x", "prot": 1}]}, "peer_groups[0].prot: unknown key; did you mean 'port'?"),
    ({"peer_groups": [{"name": "x"}]}, "peer_groups[0].name: port is missing"),
    ({"peer_groups": [{"name": "x", "port": 0}]}, "peer_groups[0].port: port must be at least 1, got 0"),
    ({"peer_groups": [{"name": "x", "form": "nixl"}]}, "peer_groups[0].form"),
    ({"peer_groups": [{"name": "x", "port": 1, "media": ["disk"]}]}, "peer_groups[0].media"),
    ({"peer_groups": [{"name": "x", "port": 1, "workers": []}]}, "peer_groups[0].workers: workers is empty"),
    ({"peer_groups": [{"name": "x", "port": 1, "model": "m"}]}, 'peer_groups[0].model: model "m" has no index of its'),
    ({"peer_groups": [{"name": "x", "port": 1, "load_ms_per_token": -1}]}, "peer_groups[0].load_ms_per_token: "),
    (
        {"peer_groups": [{"name": "x", "addresses": {"a": "b"}}]},
        'peer_groups[0].addresses: addresses has "b" for "a", it must',
    ),
    ({"workers": ["unix:///a"], "peer_groups": [{"name": "x", "port": 1}]}, '"unix:///a" has no address'),
    ({"workers": ["x"], "peer_groups": [{"name": "x", "port": 1}]}, 'peer_groups[0].name: "x" is the key of a worker'),
    ({"peer_groups": [{"name": "x", "port": 1}] * 2}, "peer_groups[1].name: name 'x' is that of the peer group before"),
    (
        {
            "router": {"models": {"m": 16}},
            "peer_groups": [
                {"name": "x", "port": 1, "workers": ["a", "b"]},
                {"name": "y", "port": 1, "workers": ["b", "c"], "model": "m"},
            ],
        },
        "peer_groups[1].workers: workers has 'b', which is in 'x', a peer group of another model",
    ),
    ({"router": 3}, "router: must be a table of keys and values, not a number"),
    ({"router": {3: 4}}, "router: keys must be text, and 3 is a number"),
    ({"router": {"block-size": 1, "block_size": 1}}, "router.block-size: unknown key; did you mean 'block_size'?"),
    (
        {"router": {"block_size": 16}, "policy": {"block_size": 32}},
        "policy.block_size: contradicts router.block_size (mapping); keep one of them",
    ),
    ({"policy": {"objectiv": "ttft"}}, "policy.objectiv: policy 'adaptive' has no such option; did you"),
    ({"policy": {"cache_threshold": 0.5}}, "policy.cache_threshold: policy 'adaptive' has no such option; there are"),
    (rule("random", block_size=16), "policy.block_size: policy 'random' has no such option ('block_size' belongs in"),
    (rule("cache-aware", cache_threshold=2), "policy.cache_threshold: cache_threshold must be between 0 and 1, got 2"),
    (rule("cache-aware", load_factor="x"), "policy.load_factor: load_factor must be a number, got str"),
    (
        rule("cache-aware", max_blocks_per_worker=5, max_blocks_per_backend=6),
        "policy.max_blocks_per_backend: contradicts policy.max_blocks_per_worker (mapping); keep one of them",
    ),
    ({"policy": "cache-awar"}, "policy: there is no policy 'cache-awar'; did you mean 'cache-aware'?"),
    ({"policy": {"type": 3}}, "policy.type: must be text, not a number"),
    (
        {"router": {"policy": "random"}, "policy": {"type": "rendezvous"}},
        "policy.type: 'rendezvous' contradicts router.policy (mapping), 'random'; keep one of them",
    ),
    (
        {"routing": {"policy": "random", "vllm_cache_aware": {}}},
        "routing.vllm_cache_aware: 'cache-aware' contradicts routing.policy (mapping), 'random'; keep one of them",
    ),
    ({"decode_policy": {"choices": 3}}, "decode_policy.choices: names no policy; add one as decode_policy.type"),
    ({"router": {"shadow": [{"choices": 3}]}}, "router.shadow[0]: names no policy; add one as type"),
    ({"router": {"shadow": [{}]}}, "router.shadow[0]: names no policy"),
    ({"router": {"shadow": "random"}}, "router.shadow: must be a list, not text"),
    ({"workers": "gpu0"}, "workers: must be a list, not text"),
    ({"policy": True}, "policy: must be the name of a policy or a table of its options, not a boolean"),
    ({"workers": ["gpu\n0"]}, r"workers[0]: must be printable text, got 'gpu\n0'"),
    ({"\x1b[2J": 1}, r"mapping: '\x1b[2J': unknown key"),
    ({"workers": [""]}, "workers[0]: must not be empty"),
    ({"router": {"block_size": "16"}}, "router.block_size: block_size must be int, got str"),
    ({"router": {"max_memory_mb": -1, "seed": 3}}, "router.max_memory_mb: max_memory_mb must be"),
    ({"router": {"replicas": 0, "block_size": 16}}, "router.replicas: replicas must be"),
    ({"router": {"models": {"llama": "x"}, "block_size": 16}}, "router.models: "),
    ({"router": {"models": 3}}, "router.models: "),
    ({"router": {"models": [[[[[[[[[[1]]]]]]]]]]}}, "router.models: is nested more than 8 deep"),
    ({"router": {"pd_fallback": "yes"}}, "router.pd_fallback: "),
    ({"workers": [{"url": "a", "role": "both", "weight": -1}]}, "workers[0].weight: weight must be"),
    ({"workers": ["b", {"url": "a", "role": "prefil"}]}, "workers[1].role: role must be"),
    ({"workers": [{"url": "a", "dp_size": "2"}]}, "workers[0].dp_size: dp_size must be"),
    ({"workers": [{"url": "a", "models": [3]}]}, "workers[0].models: "),
    (
        {"workers": [{"url": "a", "cache_layout": {"groups": [{"kind": "full_attention", "blok_size": 16}]}}]},
        "workers[0].cache_layout: cache_layout.groups[0] has no 'blok_size'; it takes kind, block_size, window, chunk",
    ),
    (
        {"workers": [{"url": "a", "cache_layout": {"groups": [{"kind": "mamba", "block_size": 16}]}}]},
        "workers[0].cache_layout: groups are mamba: add one of full_attention or mla_attention",
    ),
    ({"workers": [{"url": "a", "cache_layout": {}}]}, "workers[0].cache_layout: cache_layout needs 'groups'"),
    ({"workers": [{"url": "a", "cache_layout": 3}]}, "workers[0].cache_layout: cache_layout must be a cachelb"),
    ({"workers": [{"weight": 2}]}, "workers[0]: a worker has one url (or key, if it is no url)"),
    ({"workers": [{"url": "a", "key": "b"}]}, "workers[0]: a worker has one url"),
    ({"workers": [{"url": "a", "wieght": 2}]}, "workers[0].wieght: unknown key; did you mean 'weight'?"),
    ({"workers": ["a", {"url": "a"}]}, "workers[1].url: worker 'a' is there already (workers[0])"),
    ({"workers": [{"url": "a", "bootstrap_port": 0}]}, "workers[0].bootstrap_port: bootstrap_port must be from 1 to"),
    ({"mode": {}}, "mode: has no type; the one that is known is 'vllm_prefill_decode'"),
    ({"mode": {"type": "regular"}}, "mode.type: there is no mode 'regular'; the one that is known is"),
    (pairs(prefil_urls=[]), "mode.prefil_urls: unknown key; did you mean 'prefill_urls'?"),
    (pairs(decode_urls=[["a", 1, 2]]), "mode.decode_urls[0]: must be a url, or a list of a url and a bootstrap port"),
    (
        pairs(prefill_urls=["a"], decode_urls=["a"]),
        "mode.decode_urls[0]: worker 'a' is there already (mode.prefill_urls[0]); a worker that prefills and decodes",
    ),
    ({"kv_events": {"topic": ""}}, "kv_events.topic: unknown key; did you mean 'topic_filter'?"),
    ({"kv_events": {"default_port": 70_000}}, "kv_events.default_port: default_port must be from 1 to 65535, got 70"),
    ({"kv_events": {"replay_port": 0}}, "kv_events.replay_port: replay_port must be from 1 to 65535, got 0"),
    ({"kv_events": {"enabled": 1}}, "kv_events.enabled: enabled must be bool, got int"),
    ({"kv_events": {"topic_filter": 7}}, "kv_events.topic_filter: topic_filter must be text, got int"),
    ({"kv_events": {"relay": 7800}}, "kv_events.relay: relay must be an address like tcp://10.0.0.2:7800, got int"),
    ({"kv_events": {"relay": "relay:7800"}}, "kv_events.relay: relay must be an address like tcp://10.0.0.2:7800, got"),
    (
        {"kv_events": {"relay": "tcp://relay:7800", "replay_port": 1}},
        "kv_events.replay_port: replay_port is of no use beside relay",
    ),
    ({"load": {"headers": "x"}}, "load.headers: headers must be a mapping of names to values"),
    ({"load": {"interval_s": "fast"}}, "load.interval_s: interval_s must be a number, got str"),
    ({"load": {"intervall": 1}}, "load.intervall: unknown key; did you mean 'interval_s'?"),
    ({"model_path": 3}, "model_path: must be text, not a number"),
]


@pytest.mark.parametrize(("data", "message"), MISTAKES, ids=[message.partition(": ")[0] for _, message in MISTAKES])
def test_mistake_is_named_with_its_path(data: dict[str, Any], message: str) -> None:
    assert message in refused(data)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CACHELB_BLOCK_SIZES": "1"}, "env CACHELB_BLOCK_SIZES: sets nothing; did you mean 'CACHELB_BLOCK_SIZE'?"),
        ({"CACHELB_block_size": "1"}, "env CACHELB_block_size: sets nothing; did you mean"),
        ({"CACHELB_POLICY__objective": "ttft"}, "env CACHELB_POLICY__objective: sets nothing; did you mean"),
        ({"CACHELB_KV_EVENT__TOPIC_FILTER": ""}, "did you mean 'CACHELB_KV_EVENTS__TOPIC_FILTER'?"),
        (
            {"CACHELB_POLICY__OBJECTIV": "ttft"},
            "env CACHELB_POLICY__OBJECTIV: policy.objectiv: policy 'adaptive' has no such option; did you mean",
        ),
        (
            {"CACHELB_POLICY": "cache-aware", "CACHELB_POLICY__LOAD_FACTOR": "much"},
            "env CACHELB_POLICY__LOAD_FACTOR: policy.load_factor: load_factor",
        ),
        ({"CACHELB_POLICY__OBJECTIVE": "fast"}, "env CACHELB_POLICY__OBJECTIVE: policy.objective: "),
        ({"CACHELB_BLOCK_SIZE": "16k"}, "env CACHELB_BLOCK_SIZE: router.block_size: block_size must be int, got str"),
        ({"CACHELB_POLICY": "best"}, "env CACHELB_POLICY: router.policy: there is no policy 'best'"),
        ({"CACHELB_WORKERS": "a,b,a"}, "env CACHELB_WORKERS: workers[2]: worker 'a' is there already"),
        ({"CACHELB_LOAD__INTERVALS": "1"}, "env CACHELB_LOAD__INTERVALS: load.intervals: unknown key; did you mean"),
    ],
)
def test_mistake_in_the_environment_names_the_variable(environ: dict[str, str], message: str) -> None:
    assert message in refused({}, **environ)


def test_a_secret_is_not_quoted_in_its_error() -> None:
    message = refused({"router": {"hash_seed": -424242}})
    assert "router.hash_seed: hash_seed must be from 0 to" in message
    assert "424242" not in message


# === malformed files ===


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[router]\nblock_size = = 3", ":2:14: not TOML: Invalid value"),
        ("a.toml", 'a = "', ":1:6: not TOML: "),
        ("a.json", '{"router": {,}}', ":1:13: not JSON: "),
        ("a.json", '{"router": {}, "router": {}}', ": the key 'router' is there twice in one object"),
        ("a.json", "[" * 100_000, ": nested too deeply"),
        ("a.json", "3", ": must be a table of keys and values, not a number"),
        ("a.json", "9" * 5000, ": not JSON: "),
        ("a.yaml", "router:\n  block_size: [1", ":2:17: not YAML: "),
        ("a.yaml", "router:\n  seed: 1\n  seed: 2\n", ":3: the key 'seed' is there twice"),
        ("a.yaml", "a: 1\n---\nb: 2\n", ":2:1: not YAML: but found another document"),
        ("a.yaml", "when: 2026-13-40", ": not YAML: month must be in 1..12"),
        ("a.yaml", "? [a]\n: 1", ":1:3: not YAML: found unhashable key"),
        ("a.yaml", "router: !!python/object:os.system {}", ":1:9: not YAML: could not determine a constructor"),
        ("a.yaml", "", ": must be a table of keys and values, not null"),
        ("a.yaml", "a: \x00", ":1:4: not YAML: special characters are not allowed"),
        ("a.yaml", "router: &r\n  models: *r\n", ""),
        ("a.ini", "", ": a configuration ends in .json, .toml, .yaml or .yml, not in '.ini'"),
    ],
)
def test_malformed_content_is_named_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert refused(file).startswith(f"{file}{message}")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"[router]\n# caf\xe9\n")
    assert refused(file) == f"{file}: not UTF-8 text at byte 14"


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        config.load(tmp_path / "none.toml")


def test_yaml_without_pyyaml_names_the_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("router: {}")
    with pytest.raises(ModuleNotFoundError, match=r"a.yaml needs PyYAML: install it, or cachelb-gateway\[yaml\]"):
        config.load(tmp_path / "a.yaml")


def test_aliases_that_multiply_do_not_hang(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    (tmp_path / "a.yaml").write_text(bomb + "workers: []\n")
    assert "a0: unknown key" in refused(tmp_path / "a.yaml")


# === anything at all ===

VARIABLES = st.dictionaries(
    st.sampled_from([f"CACHELB_{name.upper()}" for name in schema.router_options()])
    | st.from_regex(r"CACHELB_(POLICY|LOAD|KV_EVENTS)__[A-Z_]{1,9}", fullmatch=True),
    st.text(max_size=5) | st.sampled_from(["1", "-1", "random", "[1]", "1e999", "nan", "{}"]),
    max_size=1,
)


@given(VARIABLES)
def test_any_variables_load_or_are_refused(environ: dict[str, str]) -> None:
    try:
        config.load({}, environ=environ)
    except ConfigError as error:
        assert str(error).startswith("env CACHELB_")  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize("suffix", ["toml", "json", "yaml"])
def test_any_content_loads_or_is_refused(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{suffix}"

    @given(st.binary(max_size=40) | st.text(alphabet="{}[]:-=\"'\n #&*!|>ab1.,?", max_size=40).map(str.encode))
    def check(content: bytes) -> None:
        file.write_bytes(content)
        try:
            config.load(file, environ={})
        except ConfigError as error:
            assert str(error).startswith(str(file))  # noqa: PT017 - both outcomes are right

    check()
