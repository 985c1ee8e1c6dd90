"""Random fleets and traffic: what hashing policies promise whatever the names, weights and order."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb import Decision, policies

HASHING = ["rendezvous", "consistent-hash", "prefix-hash"]
names = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=12, unique=True)
weights = st.floats(0.1, 10)


def owners(policy: policies.BuiltinPolicy, workers: list[str]) -> dict[str, str]:
    return {key: policy.select_worker(workers, session=key, dry_run=True).key for key in map(str, range(40))}


@pytest.mark.parametrize("name", HASHING)
@given(workers=names, data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_a_worker_that_leaves_or_joins_moves_only_its_own_keys(
    name: str, workers: list[str], data: st.DataObject, seed: int
) -> None:
    policy = policies.make(name, seed=seed)
    for worker in workers:
        policy.set_weight(worker, data.draw(weights))
    if data.draw(st.booleans()):
        policy.select_worker(workers, session="first").on_complete()
    gone = data.draw(st.sampled_from(workers))
    rest = [worker for worker in data.draw(st.permutations(workers)) if worker != gone]
    all_of_them, without = owners(policy, workers), owners(policy, rest)
    for key, owner in all_of_them.items():
        assert without[key] == owner or owner == gone


@pytest.mark.parametrize("name", HASHING)
@given(workers=names, data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_routers_with_equal_seeds_agree_whatever_they_have_seen(
    name: str, workers: list[str], data: st.DataObject, seed: int
) -> None:
    here, there = policies.make(name, seed=seed), policies.make(name, seed=seed)
    for count in data.draw(st.lists(st.integers(1, len(workers)), max_size=4)):
        here.select_worker(workers[:count], session="earlier").on_complete()
    assert owners(here, workers) == owners(there, data.draw(st.permutations(workers)))


@pytest.mark.parametrize("name", ["rendezvous", "consistent-hash"])
@given(
    workers=names,
    epsilon=st.floats(0, 2),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 1000)), max_size=80),
    data=st.data(),
)
def test_bounded_load_never_exceeds_its_bound(
    name: str,
    workers: list[str],
    epsilon: float,
    steps: list[tuple[bool, int, int]],
    data: st.DataObject,
) -> None:
    options = {"bounded": True} if name == "rendezvous" else {}
    policy = policies.make(name, epsilon=epsilon, **options)
    weight = {worker: data.draw(weights) for worker in workers}
    for worker in workers:
        policy.set_weight(worker, weight[worker])
    running: list[Decision[str]] = []
    for arrives, key, which in steps:
        if arrives or not running:
            running.append(policy.select_worker(workers, session=str(key)))
            worker = running[-1].key
            share = (1 + epsilon) * len(running) * weight[worker] / sum(weight.values())
            assert policy.loads()[worker] <= ceil(share * (1 + 1e-9))
        else:
            running.pop(which % len(running)).on_complete()
