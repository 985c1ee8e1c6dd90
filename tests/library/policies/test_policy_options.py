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


NAN, INF = float("nan"), float("inf")
OF_NO_TYPE: dict[str, list[tuple[type[Exception], list[Any]]]] = {
    "bool": [(TypeError, [1, "1"])],
    "int": [(TypeError, [True, 1.5, "1"]), (ValueError, [-1, 2**64])],
    "float": [(TypeError, [True, "1"]), (ValueError, [-1, NAN])],
    "Literal": [(TypeError, [True]), (ValueError, ["nonsense"])],
    "PolicyName": [(TypeError, [7])],
    "Mapping": [(TypeError, [True, "1", [0.5]])],
    "Sequence": [(TypeError, [True, 512])],
    "Key": [(TypeError, ["url"])],
    "Clock": [(TypeError, [5])],
}
"""Values that no option takes whose declared type begins so, by their error."""


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_option(policy: type[BuiltinPolicy]) -> None:
    for name, kind, *_ in policy.keywords().values():
        (first,) = re.findall(r"^\w+", kind)
        for error, values in OF_NO_TYPE.get(first, []):
            for value in values:
                with pytest.raises(error, match=rf"\b{name}\b"):
                    policy(**{name: value})
        if first in OF_NO_TYPE and first not in {"Key", "Clock"} and "None" not in kind:
            with pytest.raises(TypeError, match=rf"\b{name}\b"):
                policy(**{name: None})


OUT_OF_RANGE: dict[str, dict[str, list[Any]]] = {
    "cache-aware": {"block_size": [1025], "cache_threshold": [1.1], "ttl_s": [0], "balance_abs_threshold": [-1]},
    "prefix-cache": {"tau": [1.5], "max_blocks_per_worker": [0], "block_size": [0]},
    "prefix-cache-and-load": {"k": [INF]},
    "overlap-cost": {"router_predicted_ttl_secs": [0]},
    "sticky-until-saturated": {"affinity_threshold": [2], "min_matched_tokens": [0], "peak_prefill_throughput": [0]},
    "queue-over-throughput": {"throughput": [0]},
    "estimated-ttft": {"prefill": ["abc"], "ttft_slo_ms": [0], "tbt_slo_ms": [0]},
    "kv-aware": {"speculative_ttl_ms": [0]},
    "power-of-two": {"choices": [0]},
    "random": {"booking_ttl_s": [0]},
    "rendezvous": {"prefix_token_count": [0]},
    "consistent-hash": {"vnodes": [0, 10_001]},
    "prefix-hash": {"load_factor": [0.9]},
    "length-bucket": {"l_max": [0], "balance_rel_threshold": [0.99], "bucket_adjust_interval_secs": [0]},
    "boundary-learning": {"max_routes": [0], "ttl_s": [0], "prefix_token_length": [0]},
    "learned": {
        "epsilon": [1.5],
        "tau_sat": [2],
        "n_min": [0],
        "max_scored": [1],
        "clip_ttft_s": [0],
        "timeout_ms": [0],
        "model": [b"nothing"],
    },
    "session": {"ttl_s": [0], "max_sessions": [0], "load_factor": [0.5]},
}


ITEMS: list[tuple[str, str, Any]] = [
    ("queue-over-throughput", "throughput", {1: 1}),
    ("prefix-hash", "cache_boundaries", [512.0]),
    ("prefix-hash", "cache_boundaries", "512"),
]
REFUSED = [(*row, TypeError) for row in ITEMS] + [
    (policy, option, value, ValueError)
    for policy, options in OUT_OF_RANGE.items()
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
