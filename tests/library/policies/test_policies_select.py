"""Selecting: kinds of workers, health, subsets, errors."""

from __future__ import annotations

import gc
from array import array
from dataclasses import dataclass
from sys import intern
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelb
from cachelb import policies
from cachelb.policies import CacheAware, LeastLoaded, RoundRobin

ALL = sorted(policies.POLICIES)
WORKERS = ["gpu0", "gpu1", "gpu2"]


@dataclass(frozen=True)
class Replica:
    url: str
    healthy: bool = True


class Pod:
    def __init__(self, name: str) -> None:
        self._name = name
        self.up = True
        self.calls = 0

    @property
    def url(self) -> str:
        return self._name

    def is_healthy(self) -> bool:
        self.calls += 1
        return self.up


class Numbered:
    __slots__ = ("id", "ready")

    def __init__(self, name: str) -> None:
        self.id = name
        self.ready = True


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("workers", "key"),
    [
        (["a", "b"], None),
        ([Replica("a"), Replica("b")], None),
        ([Pod("a"), Pod("b")], None),
        ([Numbered("a"), Numbered("b")], None),
        ([{"url": "a"}, {"url": "b"}], lambda worker: worker["url"]),
        (({"url": "a"}, {"url": "b"}), lambda worker: worker["url"]),
    ],
    ids=["str", "dataclass", "property", "id", "dict", "tuple"],
)
def test_the_callers_own_object_is_handed_back(name: str, workers: list[Any], key: object) -> None:
    policy = policies.make(name, seed=1, key=key)
    decision = policy.select_worker(workers, tokens=array("I", range(64)))
    assert any(decision.worker is worker for worker in workers)
    assert decision.key == workers[["a", "b"].index(decision.key)] or decision.key in {"a", "b"}
    assert policy.loads() == {"a": int(decision.key == "a"), "b": int(decision.key == "b")}


@given(
    name=st.sampled_from(ALL),
    steps=st.lists(
        st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=12,
    ),
)
def test_lists_of_the_same_text_are_routed_alike_whoever_made_them(
    name: str, steps: list[tuple[list[str], int, bool]]
) -> None:
    """One policy sees the same strings again and again, the other new ones, which it hands back."""
    known, fresh = (policies.make(name, seed=1, clock=lambda: 0.0) for _ in range(2))
    for letters, prompt, ends in steps:
        names = [f"gpu-{letter}" for letter in letters]
        request: dict[str, Any] = {"tokens": range(prompt, 99), "session": str(prompt)}
        again = known.select_worker([intern(each) for each in names], **request)
        new = fresh.select_worker(names, **request)
        assert (again.worker, again.reason, again.matched_tokens) == (new.worker, new.reason, new.matched_tokens)
        assert any(new.worker is each for each in names)
        assert known.loads() == fresh.loads()
        if ends:
            again.on_complete()
            new.on_complete()


def test_iterators_are_read_once_and_can_still_be_retried() -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(iter(WORKERS), among=iter(WORKERS), exclude=iter(["gpu0"]), by_load=True)
    assert {decision.key, decision.retry().key} == {"gpu1", "gpu2"}


@pytest.mark.parametrize(
    ("workers", "error", "message"),
    [
        ([{"url": "a"}], TypeError, r"workers\[0\] is a dict.*pass key="),
        (["a", 7], TypeError, r"workers\[1\] is a int without a url or id.*pass key="),
        ("gpu0", TypeError, "not a single str"),
        ({"gpu0": 1}, TypeError, "not a single dict"),
        (7, TypeError, "got int"),
        ([Numbered(7)], TypeError, r"id of workers\[0\] must be a str, not int"),  # type: ignore[arg-type]
        (["a", "b", "a"], ValueError, "'a' occurs twice|\"a\" occurs twice"),
        ([Replica("x"), Replica("x")], ValueError, "occurs twice"),
    ],
    ids=["dict", "int", "str", "mapping", "scalar", "int id", "twice", "equal keys"],
)
def test_workers_that_cannot_be_told_apart_are_refused(workers: object, error: type, message: str) -> None:
    policy = LeastLoaded()
    with pytest.raises(error, match=message):
        policy.select_worker(workers, by_load=True)  # type: ignore[arg-type]
    assert sum(policy.loads().values()) == 0


@pytest.mark.parametrize("name", ALL)
def test_unhealthy_workers_are_passed_over_while_they_are(name: str) -> None:
    policy = policies.make(name, seed=1)
    pods = [Pod("a"), Pod("b"), Pod("c")]
    pods[0].up = pods[2].up = False
    assert {policy.select_worker(pods, tokens=range(64)).key for _ in range(8)} == {"b"}
    pods[0].up = True
    picked = {policy.select_worker(pods, tokens=range(i, 64 * (i + 1)), session=str(i)).key for i in range(64)}
    assert picked == {"a", "b"}


@pytest.mark.parametrize(
    ("entry", "usable"),
    [
        ({"healthy": False}, False),
        ({"is_healthy": lambda: False}, False),
        ({"ready": False, "healthy": True}, False),
        ({"healthy": None}, True),
        ({"ready": lambda: True}, True),
        ({}, True),
    ],
)
def test_health_of_dicts_is_read_on_every_call(entry: dict[str, Any], usable: bool) -> None:
    policy = LeastLoaded(key=lambda worker: worker["url"])
    workers: list[dict[str, Any]] = [{"url": "a"}]
    policy.select_worker(workers, by_load=True)
    workers[0].update(entry)
    if usable:
        assert policy.select_worker(workers, by_load=True).key == "a"
    else:
        with pytest.raises(cachelb.NoWorkerAvailable, match="a is unhealthy"):
            policy.select_worker(workers, by_load=True)


@pytest.mark.parametrize("name", ALL)
def test_set_ready_and_remove_rule_workers_out(name: str) -> None:
    policy = policies.make(name, seed=1)
    policy.set_ready("gpu0", False)
    policy.set_ready(Replica("gpu1"), False)
    assert {policy.select_worker(WORKERS, session=str(i), by_load=True).key for i in range(20)} == {"gpu2"}
    policy.set_ready("gpu0", True)
    assert {policy.select_worker(WORKERS, session=str(i), by_load=True).key for i in range(60)} == {"gpu0", "gpu2"}
    assert policy.remove_worker("gpu0") is True
    assert policy.remove_worker("gpu0") is False
    assert "gpu0" not in policy.loads()
    policy.validate()


def test_nobody_available_names_every_reason() -> None:
    policy = CacheAware()
    with pytest.raises(cachelb.NoWorkerAvailable, match="the list of workers is empty") as empty:
        policy.select_worker([], by_load=True)
    assert empty.value.reasons == {}
    policy.set_ready("b", False)
    workers = [Replica("a", healthy=False), Replica("b"), Replica("c"), Replica("d")]
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        policy.select_worker(workers, among=["a", "b", workers[2], "unknown"], exclude=["c"], by_load=True)
    assert info.value.reasons == {"a": "unhealthy", "b": "not ready", "c": "excluded", "d": "not in `among`"}
    assert info.value.retry_after_s > 0
    assert sum(policy.loads().values()) == 0


def test_among_and_exclude_take_keys_or_workers() -> None:
    policy = RoundRobin(start="first")
    replicas = [Replica(name) for name in "abcd"]
    assert policy.select_worker(replicas, among=[replicas[2], "nobody"], by_load=True).key == "c"
    assert policy.select_worker(replicas, among=["a", "b"], exclude=[replicas[0]], by_load=True).key == "b"
    with pytest.raises(TypeError, match="not a single str"):
        policy.select_worker(replicas, among="a", by_load=True)


def test_clock_drives_ttl_and_must_return_usable_seconds() -> None:
    now = [0.0]
    policy = CacheAware(seed=1, ttl_s=10, clock=lambda: now[0])
    policy.select_worker(WORKERS, tokens=range(64)).on_complete()
    now[0] = 9.9
    assert policy.select_worker(WORKERS, tokens=range(64), dry_run=True).reason == "prefix"
    now[0] = 10.1
    assert policy.select_worker(WORKERS, tokens=range(64), dry_run=True).reason == "cold"
    assert policy.block_count() == 0
    now[0] = float("nan")
    with pytest.raises(ValueError, match="clock must return seconds"):
        policy.select_worker(WORKERS, by_load=True)


def test_a_workers_code_may_call_back_into_the_policy() -> None:
    policy = LeastLoaded(seed=1)

    class Curious(Pod):
        def is_healthy(self) -> bool:
            policy.loads()
            return policy.select_worker(["other"], by_load=True).key == "other"

    assert policy.select_worker([Curious("a"), Curious("b")], by_load=True).key in {"a", "b"}
    gc.collect()
    policy.validate()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": [1], "blocks": [1]}, TypeError, "only one of"),
        ({"tokens": [1, -1]}, ValueError, r"tokens\[1\]"),
        ({"tokens": "text"}, TypeError, "tokens"),
        ({"tokens": array("d", [1.0])}, TypeError, "tokens"),
        ({"tokens": range(3), "prompt_tokens": 2}, ValueError, "prompt_tokens is 2 but tokens holds 3"),
        ({"blocks": [1, 2], "prompt_tokens": 31}, ValueError, "prompt_tokens is 31"),
        ({"blocks": [-1]}, ValueError, r"blocks\[0\]"),
        ({"prompt_tokens": -1}, ValueError, "prompt_tokens"),
        ({"prompt_tokens": 2**63}, ValueError, "prompt_tokens"),
        ({"prompt_tokens": 1.5}, TypeError, "prompt_tokens"),
        ({"session": 7}, TypeError, "session"),
        ({"lora": 7}, TypeError, "lora"),
        ({"cache_salt": b"x"}, TypeError, "cache_salt"),
        ({"among": 7}, TypeError, "int"),
    ],
)
def test_bad_arguments_are_named_and_book_nothing(arguments: dict[str, Any], error: type, message: str) -> None:
    policy = CacheAware()
    with pytest.raises(error, match=message):
        policy.select_worker(WORKERS, **arguments)
    assert sum(policy.loads().values()) == 0


def test_names_and_aliases_make_the_policy() -> None:
    names = {name: name for name in ALL} | {name.replace("-", "_"): name for name in ALL}
    for called, name in (names | {"vllm_cache_aware": "cache-aware", "rendezvous_hash": "rendezvous"}).items():
        policy = policies.make(called)
        assert (policy.name, type(policy)) == (name, policies.POLICIES[name])


def test_the_seeds_spelling_of_the_capacity_is_accepted() -> None:
    policy = CacheAware(max_blocks_per_backend=4, eviction_interval_secs=30)
    policy.select_worker(["a"], tokens=range(160)).on_complete()
    assert policy.block_count("a") == 4
