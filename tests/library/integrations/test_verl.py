"""The load balancer of verl's rollout servers, called as verl's client calls it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.integrations.verl import CachelbLoadBalancer

NAMES = [f"10.0.0.{number}:8000" for number in range(4)]


def balancer(count: int = 3, **options: Any) -> CachelbLoadBalancer:
    return CachelbLoadBalancer({name: f"handle of {name}" for name in NAMES[:count]}, {"seed": 1, **options})


def prompt(sample: int, turn: int, *, common: int = 0) -> list[int]:
    own = range(10_000 * (sample + 1), 10_000 * (sample + 1) + 320 * (turn + 1))
    return [*range(common), *own]


def test_turns_stay_together_and_new_trajectories_spread() -> None:
    lb = balancer()
    homes: dict[int, set[str]] = {sample: set() for sample in range(6)}
    for turn in range(4):
        for sample, servers in homes.items():
            server, handle = lb.acquire_server(request_id=f"t{sample}", prompt_ids=prompt(sample, turn))
            servers.add(server)
            assert handle == f"handle of {server}"
        for sample, servers in homes.items():
            lb.release_server(server_id=next(iter(servers)), request_id=f"t{sample}")
    assert all(len(servers) == 1 for servers in homes.values())
    assert sorted(Counter(next(iter(servers)) for servers in homes.values()).values()) == [2, 2, 2]


def test_a_trajectory_leaves_a_server_where_long_prompts_wait() -> None:
    lb = balancer(2)
    home, _ = lb.acquire_server("t", prompt_ids=prompt(0, 0))
    lb.release_server(home, request_id="t")
    for number in range(30):  # of one sample each, where the first is
        lb.acquire_server(f"long {number}", prompt_ids=[*prompt(0, 0), *prompt(number + 1, 20)])
    assert lb.get_inflight_count(home) < 30
    other = next(name for name in NAMES[:2] if name != home)
    lb.router.set_ready(home, ready=False)
    assert lb.acquire_server("t", prompt_ids=prompt(0, 1))[0] == other


def test_samples_of_one_prompt_spread_over_all_servers() -> None:
    lb = balancer(4)
    picked = Counter(lb.acquire_server(f"s{n}", prompt_ids=prompt(n, 0, common=2_048))[0] for n in range(200))
    assert set(picked) == set(NAMES)
    assert max(picked.values()) < 100


def test_after_an_update_of_weights_no_prompt_is_cached() -> None:
    lb = balancer()
    server, _ = lb.acquire_server("t", prompt_ids=prompt(0, 0))
    assert lb.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": {**dict.fromkeys(NAMES[:3], 0), server: 1}}
    before = lb.router.select_worker(tokens=prompt(0, 0), cache_salt="1", dry_run=True)
    assert before.matched_tokens == 0
    again, _ = lb.acquire_server("t", prompt_ids=prompt(0, 0))
    assert lb.router.select_worker(tokens=prompt(0, 0), cache_salt="1", dry_run=True).matched_tokens == 304
    lb.release_server(again, request_id="t")
    lb.release_server(server, request_id="t")
    assert lb.get_total_inflight() == 0
    # An engine with events announces that its cache is empty, and names blocks without a salt.
    lb.router.event_sink.apply_events(server, b"\x92\x01\x91\x91\xb0AllBlocksCleared", seq=0)
    lb.clear_sticky_cache()
    lb.acquire_server("t", prompt_ids=prompt(1, 0))
    assert lb.router.select_worker(tokens=prompt(1, 0), cache_salt="1", dry_run=True).matched_tokens > 0


def test_without_prompts_a_trajectory_has_the_server_that_it_had() -> None:
    lb = CachelbLoadBalancer(dict.fromkeys(NAMES), max_cache_size=2)
    first = [lb.acquire_server(f"t{n}")[0] for n in range(4)]
    assert sorted(first) == NAMES
    assert [lb.acquire_server(f"t{n}")[0] for n in (3, 2)] == [first[3], first[2]]
    assert lb.clear_sticky_cache()["cleared_entries"] == 2


def test_versions_of_verl_name_the_options_differently() -> None:
    for options in (
        {"router_kwargs": {"router_class": "x.Y", "policy": "least-loaded", "full_determinism": True}},
        {"config": {"max_cache_size": 7, "policy": "least-loaded", "full_determinism": False}},
    ):
        lb = CachelbLoadBalancer(servers={}, **options)  # type: ignore[arg-type]
        assert lb.router.stats().policy == "least-loaded"
        assert lb.require_acquire_fields() == ["prompt_ids"]
        assert lb.require_release_fields() == ["request_id"]
    picked = [
        [CachelbLoadBalancer(dict.fromkeys(NAMES), {"full_determinism": True}).acquire_server(f"t{n}")[0] for n in "ab"]
        for _ in range(5)
    ]
    assert all(one == picked[0] for one in picked)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda lb: lb.acquire_server("t", prompt_ids="abc"), TypeError, "tokens must be a buffer"),
        (lambda lb: lb.acquire_server("t", prompt_ids=[1.5]), TypeError, r"tokens\[0\] must be int"),
        (lambda lb: lb.acquire_server("t", prompt_ids=[-1]), ValueError, r"tokens\[0\] must be from 0"),
        (lambda lb: lb.acquire_server(7, prompt_ids=[1]), TypeError, "session must be"),
        (
            lambda lb: (lb.remove_servers(NAMES), lb.acquire_server("t", prompt_ids=[1])),
            RuntimeError,
            "No available servers",
        ),
        (lambda _: CachelbLoadBalancer({}, {"polcy": "adaptive"}), TypeError, "polcy"),
        (lambda _: CachelbLoadBalancer({}, {"seed": "1"}), TypeError, "seed"),
        (lambda _: CachelbLoadBalancer({}, max_cache_size=0), ValueError, "max_cache_size"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(call: Any, error: type[Exception], text: str) -> None:
    lb = balancer()
    with pytest.raises(error, match=text):
        call(lb)
    assert lb.get_total_inflight() == 0
    assert sum(lb.router.loads().values()) == 0


def test_arrays_of_token_ids_are_read() -> None:
    lb = balancer()
    ids: Any = np.arange(640, dtype=np.int64)
    server, _ = lb.acquire_server("t", prompt_ids=ids)
    lb.release_server(server, request_id="t")
    assert lb.acquire_server("t", prompt_ids=list(range(640)))[0] == server


Calls = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from("abc"), st.sampled_from([None, 0, 40, 400])),
        st.tuples(st.just("release"), st.sampled_from(NAMES), st.sampled_from([None, "a", "b", "c"])),
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("clear")),
    ),
    max_size=40,
)


@pytest.mark.hypothesis
@given(Calls)
def test_turns_are_those_of_the_model(calls: list[tuple[Any, ...]]) -> None:
    """Against a list of turns by server; whatever leaves, nothing stays booked."""
    lb = balancer(2)
    turns: dict[str, list[str]] = {name: [] for name in NAMES[:2]}
    for kind, *rest in calls:
        if kind == "acquire":
            trajectory, length = rest
            ids = None if length is None else list(range(length))
            if not turns:
                with pytest.raises(RuntimeError):
                    lb.acquire_server(trajectory, prompt_ids=ids)
                continue
            server, _ = lb.acquire_server(trajectory, prompt_ids=ids)
            turns[server].append(trajectory)
        elif kind == "release":
            server, trajectory = rest
            there = turns.get(server, [])
            name = trajectory or (there[0] if there else None)
            lb.release_server(server, request_id=trajectory)
            if name in there:
                there.remove(name)
        elif kind == "add":
            lb.add_servers({rest[0]: "another handle"})
            turns.setdefault(rest[0], [])
        elif kind == "remove":
            lb.remove_servers(rest)
            turns.pop(rest[0], None)
        else:
            lb.clear_sticky_cache()
        loads = {name: len(there) for name, there in turns.items()}
        assert lb.get_status()["servers"] == loads == dict(lb.router.loads())
        assert lb.get_total_inflight() == sum(loads.values())
        assert lb.get_all_servers() == list(turns) == lb.get_status()["registered_handles"]
