"""The drop-in for the prefix tree of Ray's router: facts, and the answers of Ray's own to any sequence of calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree as RaysTree
from tests.gateways import wait_until
from tests.models.text_tree import ObviousTextTree

from cachelb.integrations.ray_serve.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: dict[str, Callable[[], PrefixTree]] = {"radix": PrefixTree, "obvious": lambda: PrefixTree(ObviousTextTree())}


@pytest.fixture(params=list(KINDS))
def tree(request: pytest.FixtureRequest) -> PrefixTree:
    return KINDS[request.param]()


def three(tree: PrefixTree) -> PrefixTree:
    """Fill the tree as most of the facts have it."""
    tree.add_tenants(["t1", "t2"], 0)
    tree.insert("helloworld", "t1", 1)
    tree.insert("hellothere", "t2", 2)
    tree.insert("hellothomas", "t2", 3)
    return tree


def evictions(tree: PrefixTree, tenant: str) -> list[int]:
    """Sizes of what leaves by and by, the oldest first."""
    found = []
    while removed := tree.evict_tenant_by_lru(tenant, 1):
        found.append(removed)
    return found


# --- facts R1 to R10 ---


def test_r1_nobody_is_known(tree: PrefixTree) -> None:
    assert tree.prefix_match("hello") == ("", None)
    assert tree.prefix_match("hello", ["a"]) == ("", None)
    assert tree.get_smallest_tenants() is None


def test_r2_known_tenants_match_nothing(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    assert tree.prefix_match("hello") == ("", ["t1", "t2"])
    assert tree.get_smallest_tenants() == ["t1", "t2"]


def test_r3_characters_are_counted_once(tree: PrefixTree) -> None:
    assert three(tree).tenant_to_char_count == {"t1": 10, "t2": 14}


def test_r4_what_was_used_last_leaves_last(tree: PrefixTree) -> None:
    """Newest to oldest: t1 has "hello" and "world" of one time, t2 "omas", "th", "hello" of one, and "ere"."""
    three(tree)
    assert evictions(tree, "t1") == [10]
    assert tree.evict_tenant_by_lru("t2", 1) == 3
    assert tree.prefix_match("hellothere") == ("helloth", ["t2"])
    assert tree.prefix_match("hellothomas") == ("hellothomas", ["t2"])
    assert evictions(tree, "t2") == [11]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("hello",), ("hello", ["t1", "t2"])),
        (("hellotheremate",), ("hellothere", ["t2"])),
        (("helloworld", ["t2"]), ("hello", ["t2"])),
        (("foo",), ("", ["t1", "t2"])),
        (("helloworld", ["zz"]), ("", None)),
        (("helloworld", ["zz", "t2"]), ("hello", ["t2"])),
        (("hello", []), ("hello", ["t1", "t2"])),
    ],
)
def test_r5_longest_match_among_the_tenants_asked_for(
    tree: PrefixTree, arguments: tuple[Any, ...], expected: tuple[str, list[str] | None]
) -> None:
    assert three(tree).prefix_match(*arguments) == expected


def test_r6_oldest_edge_goes_whole(tree: PrefixTree) -> None:
    three(tree)
    assert tree.evict_tenant_by_lru("t2", 1) == 3
    assert tree.tenant_to_char_count == {"t1": 10, "t2": 11}


def test_r7_evicted_tenant_is_still_known(tree: PrefixTree) -> None:
    three(tree)
    assert tree.evict_tenant_by_lru("t2", 14) == 14
    assert tree.prefix_match("hellothere") == ("hello", ["t1"])
    assert tree.remove_tenants(["t1"]) == {"t1": 10}
    assert tree.prefix_match("hello") == ("", ["t2"])
    assert tree.get_smallest_tenants() == ["t2"]


def test_r8_unknown_tenant_is_no_error(tree: PrefixTree) -> None:
    tree.insert("x", "zz", 1)
    assert tree.tenant_to_char_count == {}
    assert tree.prefix_match("x") == ("", None)
    assert tree.evict_tenant_by_lru("zz", 5) == 0
    assert tree.remove_tenants(["zz"]) == {"zz": 0}


def test_r9_what_has_the_oldest_time_goes_together(tree: PrefixTree) -> None:
    """ "help" renews no part of "hello" that is not its own, when all came at one time."""
    tree.add_tenants(["t1"], 0)
    tree.insert("hello", "t1", 1)
    tree.insert("help", "t1", 1)
    tree.insert("world", "t1", 2)
    assert tree.evict_tenant_by_lru("t1", 1) == 6
    assert tree.tenant_to_char_count == {"t1": 5}
    assert tree.prefix_match("world") == ("world", ["t1"])
    assert tree.prefix_match("help") == ("", ["t1"])


def test_r10_there_is_one_eviction_loop(tree: PrefixTree) -> None:
    assert tree.start_eviction_loop(10, 8, 60) is True
    assert tree.start_eviction_loop(10, 0, 60) is False
    tree.stop_eviction_loop()
    assert tree.start_eviction_loop(10, 8, 60) is True
    tree.stop_eviction_loop()
    tree.stop_eviction_loop()


# --- tenants ---


def test_added_tenants_start_empty_and_adding_again_changes_nothing(tree: PrefixTree) -> None:
    tree.add_tenants(["t1"], 0)
    tree.insert("hello", "t1", 1)
    tree.add_tenants(["t1", "t2", "t3"], 5)
    assert tree.tenant_to_char_count == {"t1": 5, "t2": 0, "t3": 0}


def test_removing_some_tenants_leaves_the_others(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2", "t3"], 0)
    tree.insert("hello", "t1", 1)
    tree.insert("foobar", "t1", 2)
    tree.insert("helloworld", "t2", 3)
    tree.insert("test", "t3", 4)
    assert tree.remove_tenants(["t1", "nobody", "t3"]) == {"t1": 11, "nobody": 0, "t3": 4}
    assert tree.tenant_to_char_count == {"t2": 10}
    assert tree.prefix_match("foobar") == ("", ["t2"])
    assert tree.prefix_match("helloworld") == ("helloworld", ["t2"])


def test_removed_tenant_comes_back_empty(tree: PrefixTree) -> None:
    three(tree).remove_tenants(["t1"])
    tree.add_tenants(["t1"], 9)
    assert tree.tenant_to_char_count == {"t2": 14, "t1": 0}
    assert tree.prefix_match("helloworld") == ("hello", ["t2"])


# --- inserting and matching ---


@pytest.mark.parametrize("times", [(1, 1), (1, 2)])
def test_same_text_again_counts_once(tree: PrefixTree, times: tuple[float, float]) -> None:
    tree.add_tenants(["t1"], 0)
    for time_s in times:
        tree.insert("hello", "t1", time_s)
    assert tree.tenant_to_char_count == {"t1": 5}
    assert evictions(tree, "t1") == [5]


def test_same_text_counts_for_every_tenant(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    tree.insert("hello", "t1", 1)
    tree.insert("hello", "t2", 2)
    assert tree.tenant_to_char_count == {"t1": 5, "t2": 5}
    assert tree.prefix_match("hello") == ("hello", ["t1", "t2"])


@pytest.mark.parametrize(
    ("texts", "query", "expected"),
    [
        (("helloworld", "hellothere"), "hello", ("hello", ["t1", "t2"])),
        (("hello", "helloworld"), "helloworld", ("helloworld", ["t2"])),
        (("helloworld", "hello"), "helloworld", ("helloworld", ["t1"])),
        (("hello", "world"), "foobar", ("", ["t1", "t2"])),
        (("helloworld", "hellothere"), "hellothereextra", ("hellothere", ["t2"])),
        (("apple", "apricot"), "application", ("appl", ["t1"])),
        (("你好世界", "你好"), "你好世人", ("你好世", ["t1"])),
        (("é", "è"), "ê", ("", ["t1", "t2"])),
        (("a\ud800b", "a\ud800"), "a\ud800bc", ("a\ud800b", ["t1"])),
    ],
    ids=["branch", "longer", "shorter", "apart", "past the end", "inside an edge", "wide", "lead byte", "surrogate"],
)
def test_two_texts(tree: PrefixTree, texts: tuple[str, str], query: str, expected: tuple[str, list[str]]) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    for time_s, (tenant, text) in enumerate(zip(["t1", "t2"], texts, strict=True), 1):
        tree.insert(text, tenant, time_s)
    assert tuple(tree.tenant_to_char_count.values()) == tuple(map(len, texts))
    assert tree.prefix_match(query) == expected


def test_match_stops_where_the_asked_tenant_ends(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    tree.insert("apple", "t1", 1)
    tree.insert("applepie", "t2", 2)
    assert tree.prefix_match("applepie", ["t1"]) == ("apple", ["t1"])
    assert tree.prefix_match("applepie", ["t1", "t2"]) == ("applepie", ["t2"])
    assert tree.prefix_match("apple", ["t2", "t1"]) == ("apple", ["t2", "t1"])


def test_empty_text_matches_nothing_and_adds_nothing(tree: PrefixTree) -> None:
    three(tree).insert("", "t1", 9)
    assert tree.prefix_match("") == ("", ["t1", "t2"])
    assert tree.tenant_to_char_count == {"t1": 10, "t2": 14}
    assert evictions(tree, "t1") == [10]


# --- eviction ---


@pytest.mark.parametrize(
    ("texts", "at_least", "removed"),
    [
        (["a", "bb", "ccc"], 1, 1),
        (["aaa", "bb", "c"], 1, 3),
        (["a", "bb", "ccc"], 2, 3),
        (["xyz"], 10, 3),
        (["a", "bb"], 0, 0),
        (["a", "bb"], -5, 0),
    ],
    ids=["exactly", "more than asked", "two", "all there is", "nothing", "less than nothing"],
)
def test_eviction_goes_by_time(tree: PrefixTree, texts: list[str], at_least: int, removed: int) -> None:
    tree.add_tenants(["t1"], 0)
    for time_s, text in enumerate(texts, 1):
        tree.insert(text, "t1", time_s)
    assert tree.evict_tenant_by_lru("t1", at_least) == removed
    assert tree.tenant_to_char_count == {"t1": sum(map(len, texts)) - removed}


def test_eviction_leaves_other_tenants_alone(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    tree.insert("helloworld", "t1", 1)
    tree.insert("hellothere", "t2", 2)
    assert tree.evict_tenant_by_lru("t1", 1) == 10
    assert tree.tenant_to_char_count == {"t1": 0, "t2": 10}
    assert tree.prefix_match("helloworld") == ("hello", ["t2"])


def test_using_a_text_again_makes_it_new(tree: PrefixTree) -> None:
    tree.add_tenants(["t1"], 0)
    for time_s, text in enumerate(["aaa", "bb", "aaa"], 1):
        tree.insert(text, "t1", time_s)
    assert evictions(tree, "t1") == [2, 3]


@pytest.mark.parametrize(
    ("counts", "smallest"), [((4, 2, 1), ["t3"]), ((2, 2, 4), ["t1", "t2"]), ((0, 0, 0), ["t1", "t2", "t3"])]
)
def test_smallest_tenants(tree: PrefixTree, counts: tuple[int, ...], smallest: list[str]) -> None:
    tree.add_tenants(["t1", "t2", "t3"], 0)
    for at, count in enumerate(counts, 1):
        tree.insert(str(at) * count, f"t{at}", at)
    assert tree.get_smallest_tenants() == smallest


def test_smallest_is_the_next_one_after_the_smallest_left(tree: PrefixTree) -> None:
    tree.add_tenants(["t1", "t2"], 0)
    tree.insert("aaaa", "t1", 1)
    tree.insert("bb", "t2", 2)
    tree.remove_tenants(["t2"])
    assert tree.get_smallest_tenants() == ["t1"]


@pytest.fixture
def evicting(tree: PrefixTree) -> Iterator[PrefixTree]:
    tree.start_eviction_loop(10, 8, 0.01)
    tree.start_eviction_loop(10, 0, 0.01)
    yield tree
    tree.stop_eviction_loop()
    assert not any(thread.name == "cachelb-prefix-tree" for thread in threading.enumerate())


def test_loop_evicts_from_those_above_the_threshold(evicting: PrefixTree) -> None:
    evicting.add_tenants(["over", "under", "far over"], 0)
    evicting.insert("small", "under", 1)
    evicting.insert("hello", "over", 2)
    evicting.insert("bigstring", "far over", 3)
    evicting.insert("excess", "over", 4)
    evicting.insert("more", "far over", 5)
    wait_until(lambda: evicting.getattr("tenant_to_char_count") == {"over": 6, "under": 5, "far over": 4})
    assert evicting.prefix_match("excess") == ("excess", ["over"])


def test_attributes_are_set_and_read_as_an_actor_needs_it(tree: PrefixTree) -> None:
    tree.setattr("note", 7)
    assert tree.getattr("note") == 7
    assert tree.getattr("tenant_to_char_count") == {}


# --- any calls ---

TENANTS = st.sampled_from(["t1", "t2", "t3"])
TEXTS = st.text("ab", max_size=6) | st.sampled_from(["aaaa", "abab", "ababab", "aé", "aè"])
CALLS = st.one_of(
    st.tuples(st.just("add_tenants"), st.tuples(st.lists(TENANTS, max_size=2), st.just(0.0))),
    st.tuples(st.just("insert"), st.tuples(TEXTS, TENANTS)),
    st.tuples(st.just("insert"), st.tuples(TEXTS, TENANTS)),
    st.tuples(st.just("prefix_match"), st.tuples(TEXTS, st.none() | st.lists(TENANTS, max_size=3, unique=True))),
    st.tuples(st.just("remove_tenants"), st.tuples(st.lists(TENANTS, max_size=2))),
    st.tuples(st.just("evict_tenant_by_lru"), st.tuples(TENANTS, st.integers(0, 8))),
    st.tuples(st.just("get_smallest_tenants"), st.just(())),
    st.tuples(st.just("tick"), st.just(())),
)


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=3 * settings().max_examples)
@given(calls=st.lists(CALLS, max_size=40))
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
