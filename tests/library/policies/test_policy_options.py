"""Options of policies: those of 0.1 keep name and default, or the upgrading page names their replacement."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cachelb import policies
from cachelb.policies import POLICIES, BuiltinPolicy

OF_0_1: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "policy_options_0_1.json").read_text("utf-8")
)
CHANGED = re.compile(r"^\| `([a-z-]+)` \| `(\w+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
REMOVED = re.compile(r"^\| `([a-z-]+)` \| (`[^|]*`) \| [^|]+ \|$", re.MULTILINE)


def upgrading() -> str:
    return (Path(__file__).parents[3] / "docs" / "upgrading.md").read_text("utf-8")


def removed() -> set[tuple[str, str]]:
    """Policies and options that the upgrading page lists as gone."""
    rows = REMOVED.findall(upgrading())
    return {(policy, option) for policy, options in rows for option in re.findall(r"`(\w+)`", options)}


def test_options_of_0_1_are_there_with_their_defaults_or_listed_as_removed_or_changed() -> None:
    gone = {
        (name, option)
        for name, options in OF_0_1.items()
        for option in options
        if name not in POLICIES or option not in POLICIES[name].keywords()
    }
    assert gone == removed()
    changed = {
        (name, option): (default, now)
        for name, options in OF_0_1.items()
        for option, default in options.items()
        if (name, option) not in gone
        for now in [POLICIES[name].keywords()[option][2]]
        if (list(now) if isinstance(now, tuple) else now) != default
    }
    assert set(changed) == set(CHANGED.findall(upgrading()))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_class_shows_its_own_options_in_signature_and_help(policy: type[BuiltinPolicy]) -> None:
    own = [name for name, *_ in policy.options]
    parameters = inspect.signature(policy).parameters
    assert list(parameters) == [*own, "shared"]
    assert all(parameters[name].default == default for name, _, default, _ in policy.options)
    assert all(text.strip().endswith(".") for *_, text in policy.keywords().values())
    assert all(f"    {name}: " in (policy.__doc__ or "") for name in own)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_defaults_given_by_name_are_what_a_policy_has_without(policy: type[BuiltinPolicy]) -> None:
    given = {name: default for name, _, default, _ in policy.keywords().values() if default is not None}
    workers = ["gpu0", "gpu1", "gpu2"]
    picks = [
        [made.select_worker(workers, tokens=range(i % 3, 400), session=f"s{i % 5}").worker for i in range(20)]
        for made in (policy(seed=7), policy(**{**given, "seed": 7}))
    ]
    assert picks[0] == picks[1]


NAN = float("nan")
WRONG_TYPE: dict[str, dict[str, list[Any]]] = {
    "cache-aware": {"block_size": [True, 16.0], "cache_threshold": ["0.3"], "matcher": [1]},
    "prefix-cache": {"gate": [1], "hash_seed": ["x"]},
    "overlap-cost": {"overlap_score_credit_decay": ["fast"]},
    "least-expected-wait": {"cache_aware": ["yes"]},
    "prefill-times-batch": {"crowding": ["1"]},
    "queue-over-throughput": {"throughput": ["fast", {1: 1}]},
    "estimated-ttft": {"prefill": [16.5]},
    "kv-aware": {"enable_speculative": [1], "speculative_ttl_ms": [1.5], "credits": [0.5]},
    "rendezvous": {"bounded": [1], "epsilon": [None]},
    "consistent-hash": {"vnodes": [1.5], "epsilon": ["0.25"]},
    "prefix-hash": {"balance_abs_threshold": ["auto"], "cache_boundaries": [512, [512.0], "512"]},
    "length-bucket": {"l_max": [4096.0]},
    "boundary-learning": {"max_routes": [1.5], "multi_depth": [1]},
    "learned": {"theta": [1.5], "fallback": [7], "guards": [1]},
    "session": {"mode": [None], "hard": [1], "base": [5]},
    "random": {"key": ["url"]},
}
WRONG_VALUE: dict[str, dict[str, list[Any]]] = {
    "cache-aware": {
        "block_size": [1025],
        "cache_threshold": [1.1],
        "load_factor": [NAN],
        "ttl_s": [0],
        "balance_abs_threshold": ["fast", -1],
        "seed": [-1],
    },
    "prefix-cache": {"tau": [1.5], "max_blocks_per_worker": [0], "ttl_s": [-1], "block_size": [0]},
    "prefix-cache-and-load": {"imbalance_threshold": [-1], "k": [float("inf")], "scope": ["world"]},
    "overlap-cost": {
        "overlap_score_credit": [-1],
        "prefill_load_scale": [NAN],
        "decode_active_request_weight": [-1],
        "host_cache_hit_weight": [-1],
        "disk_cache_hit_weight": [-1],
        "shared_cache_multiplier": [-1],
        "router_temperature": [-1],
        "router_predicted_ttl_secs": [0],
    },
    "sticky-until-saturated": {
        "affinity_threshold": [2],
        "min_matched_tokens": [0],
        "exploration_probability": [-0.1],
        "max_ttft_penalty_ms": [-1],
        "peak_prefill_throughput": [0],
    },
    "least-expected-wait": {"kv_pressure_weight": [-1], "max_waiting_requests": [-1]},
    "prefill-times-batch": {"crowding": [-1.0]},
    "queue-over-throughput": {"throughput": [0]},
    "estimated-ttft": {
        "prefill": ["abc"],
        "transfer_ms_per_token": [-1],
        "kvcache_balancing_threshold": [-1],
        "ttft_slo_ms": [0],
        "tbt_slo_ms": [0],
        "on_slo": ["drop"],
    },
    "kv-aware": {
        "scoring": ["best"],
        "speculative_ttl_ms": [0],
        "router_temperature": [-1],
        "continuation": ["both"],
    },
    "least-loaded": {"load": ["cpu"]},
    "power-of-two": {"choices": [0]},
    "round-robin": {"start": ["last"]},
    "random": {"booking_ttl_s": [0]},
    "rendezvous": {"epsilon": [-0.1], "prefix_token_count": [0]},
    "consistent-hash": {"vnodes": [0, 10_001], "epsilon": [NAN]},
    "prefix-hash": {
        "load_factor": [0.9],
        "balance_abs_threshold": [-1],
        "hash_seed": [-1],
    },
    "length-bucket": {
        "l_max": [0],
        "balance_abs_threshold": [-1],
        "balance_rel_threshold": [0.99],
        "bucket_adjust_interval_secs": [0],
    },
    "boundary-learning": {
        "max_routes": [0],
        "ttl_s": [0],
        "prefix_token_length": [0],
        "min_prefix_boundary_tokens": [-1],
        "load_imbalance_factor": [-1],
        "epsilon": [-0.1],
        "learn": ["both"],
    },
    "learned": {
        "epsilon": [1.5],
        "delta": [-0.1],
        "k": [-1],
        "k_slack": [-1],
        "tau_sat": [2],
        "n_min": [0],
        "tie": ["first"],
        "outside": ["all"],
        "replay": ["some"],
        "training": ["later"],
        "model_kind": ["rnn"],
        "max_scored": [1],
        "clip_ttft_s": [0],
        "timeout_ms": [0],
        "model": [b"nothing"],
    },
    "session": {
        "mode": ["soft"],
        "assignment": ["min-load"],
        "ttl_s": [0],
        "max_sessions": [0],
        "load_factor": [0.5],
        "balance_abs_threshold": ["always"],
    },
    "prefix-affinity": {"compat": ["serve"], "imbalanced_threshold": [NAN]},
}
REFUSED = [
    (policy, option, value, error)
    for error, table in ((TypeError, WRONG_TYPE), (ValueError, WRONG_VALUE))
    for policy, options in table.items()
    for option, values in options.items()
    for value in values
]


@pytest.mark.parametrize(("policy", "option", "value", "error"), REFUSED)
def test_a_value_that_an_option_cannot_have_is_refused_by_name(
    policy: str, option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=rf"\b{option}\b"):
        policies.make(policy, **{option: value})


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("cache-awar", {}, "did you mean 'cache-aware'"),
        ("cache-aware", {"block_size": 0}, "block_size must be from 1 to 1024, got 0"),
        ("cache-aware", {"matcher": "quick"}, 'matcher must be one of "kary", "binary", "linear", got "quick"'),
        ("cache-aware", {"page_size": 0, "index": "radix"}, "page_size"),
        ("prefix-affinity", {"eviction_target_chars": 500_000}, "eviction_target_chars is 500000"),
        ("sticky-until-saturated", {"peak_prefill_throughput": "seen"}, '"observed" or a number.*"seen"'),
        ("queue-over-throughput", {"throughput": {"w1": -1}}, r'throughput\["w1"\]'),
        ("estimated-ttft", {"prefill": (1, 2)}, r"prefill must be three numbers.*got \(1, 2\)"),
        ("estimated-ttft", {"prefill": (0, 0, -1)}, r"prefill\[2\]"),
        ("kv-aware", {"credits": {"cpu": 1.5}}, r'credits\["cpu"\] must be between 0 and 1'),
        ("kv-aware", {"credits": {"tape": 1}}, "credits must be of \"gpu\".*got 'tape'"),
        ("prefix-hash", {"cache_boundaries": [512, 15]}, r"cache_boundaries\[1\] must be from 16"),
        ("learned", {"fallback": "learned"}, "fallback must not be a learned policy"),
        ("learned", {"fallback": "none"}, "there is no policy 'none'"),
        ("learned", {"reward": "slo"}, "needs slo_ttft_ms"),
        ("session", {"base": "round-robbin"}, "did you mean 'round-robin'"),
        ("session", {"base": "session"}, "base must not be a session policy"),
        ("session", {"base": policies.Session()}, "base must not be a session policy"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(policy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policies.make(policy, **options)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="'cache-aware' has no option 'load_facter'; did you mean 'load_factor'"):
        policies.CacheAware(load_facter=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="policy 'round-robin' has no option 'hash_seed'"):
        policies.RoundRobin(hash_seed=1)  # type: ignore[call-arg]
