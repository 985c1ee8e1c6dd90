"""The drop-in for the prefix tree of Ray's router: its loop, and the answers of Ray's own to any sequence of calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree as RaysTree
from tests.gateways import wait_until
from tests.models.text_tree import ObviousTextTree

from cachelb.integrations.ray_serve.prefix_tree import PrefixTree

KINDS: dict[str, Callable[[], PrefixTree]] = {
    "radix": PrefixTree,
    "obvious": lambda: PrefixTree(cast("Any", ObviousTextTree())),
}


@pytest.fixture(params=list(KINDS))
def tree(request: pytest.FixtureRequest) -> PrefixTree:
    return KINDS[request.param]()


# --- the loop and the actor ---


def test_there_is_one_eviction_loop(tree: PrefixTree) -> None:
    assert tree.start_eviction_loop(10, 8, 60) is True
    assert tree.start_eviction_loop(10, 0, 60) is False
    tree.stop_eviction_loop()
    assert tree.start_eviction_loop(10, 8, 60) is True
    tree.stop_eviction_loop()
    tree.stop_eviction_loop()


@pytest.fixture
def evicting(tree: PrefixTree) -> Iterator[PrefixTree]:
    tree.start_eviction_loop(10, 8, 0.01)
    tree.start_eviction_loop(10, 0, 0.01)
    yield tree
    tree.stop_eviction_loop()
    assert not any(thread.name == "cachelb-prefix-tree" for thread in threading.enumerate())


def test_loop_evicts_from_those_above_the_threshold_down_to_the_target(evicting: PrefixTree) -> None:
    evicting.add_tenants(["over", "at it", "far over"], 0)
    evicting.insert("ten letter", "at it", 1)
    for time_s, (tenant, text) in enumerate(
        [("over", "a"), ("over", "bb"), ("far over", "bigstring"), ("over", "excesses"), ("far over", "more")], 2
    ):
        evicting.insert(text, tenant, time_s)
    wait_until(lambda: evicting.getattr("tenant_to_char_count") == {"over": 8, "at it": 10, "far over": 4})
    assert evicting.prefix_match("excess") == ("excess", ["over"])
    evicting.insert("ten letters", "at it", 9)
    wait_until(lambda: evicting.getattr("tenant_to_char_count")["at it"] == 0)


def test_attributes_are_set_and_read_as_an_actor_needs_it(tree: PrefixTree) -> None:
    tree.setattr("note", 7)
    assert tree.getattr("note") == 7
    assert tree.getattr("tenant_to_char_count") == {}


# --- any calls ---

TENANTS = st.sampled_from(["t1", "t2", "t3"])
TEXTS = st.text("ab", max_size=6) | st.sampled_from(
    ["", "aaaa", "abab", "ababab", "aé", "aè", "你好世界", "你好", "a\ud800b", "a\ud800"]
)
CALLS = st.one_of(
    st.tuples(st.just("add_tenants"), st.tuples(st.lists(TENANTS, max_size=2), st.just(0.0))),
    st.tuples(st.just("insert"), st.tuples(TEXTS, TENANTS)),
    st.tuples(st.just("insert"), st.tuples(TEXTS, TENANTS)),
    st.tuples(st.just("prefix_match"), st.tuples(TEXTS, st.none() | st.lists(TENANTS, max_size=3, unique=True))),
    st.tuples(st.just("remove_tenants"), st.tuples(st.lists(TENANTS, max_size=2))),
    st.tuples(st.just("evict_tenant_by_lru"), st.tuples(TENANTS, st.integers(-2, 8))),
    st.tuples(st.just("get_smallest_tenants"), st.just(())),
    st.tuples(st.just("tick"), st.just(())),
)


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=3 * settings().max_examples)
@given(calls=st.lists(CALLS, max_size=40))
@example(calls=[("insert", ("abab", "t1")), ("remove_tenants", (["t1", "t3"],)), ("add_tenants", (["t1"], 0.0))])
@example(calls=[("insert", ("abab", "t1")), ("add_tenants", (["t1", "t3"], 0.0)), ("get_smallest_tenants", ())])
@example(calls=[("insert", ("aaaa", "t1")), ("insert", ("aab", "t2")), ("evict_tenant_by_lru", ("t1", 4))])
@example(calls=[("insert", ("ab", "t1")), ("tick", ()), ("insert", ("b", "t1")), ("evict_tenant_by_lru", ("t1", 1))])
@example(calls=[("insert", ("x", "t3")), ("evict_tenant_by_lru", ("t3", 5)), ("prefix_match", ("x", ["t3", "t2"]))])
def test_answers_are_those_of_rays_own_tree(kind: str, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    ours, rays, now = KINDS[kind](), RaysTree(), 1.0
    ours.add_tenants(["t1", "t2"], 0)
    rays.add_tenants(["t1", "t2"], 0)
    for name, given_arguments in calls:
        if name == "tick":
            now += 1
            continue
        arguments = (*given_arguments, now) if name == "insert" else given_arguments
        assert getattr(ours, name)(*arguments) == getattr(rays, name)(*arguments), (name, arguments)
        assert ours.tenant_to_char_count == rays.tenant_to_char_count, (name, arguments)
