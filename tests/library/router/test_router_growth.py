"""Large fleets: what it costs to build and change one grows with the number of workers and no faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest

from cachelb import Router

FEW = 2_000
TIMES = 4
BOUND = 9.0  # between TIMES, the linear cost, and TIMES**2, the quadratic one


def names(count: int, host: str = "gpu") -> list[str]:
    return [f"http://{host}{number}:8000" for number in range(count)]


def made_at_once(count: int) -> Router[str]:
    return Router(names(count), seed=1)


def made_one_by_one(count: int) -> Router[str]:
    router: Router[str] = Router(seed=1)
    for name in names(count):
        router.add_worker(name)
    return router


def made_of_ranks(count: int) -> Router[str]:
    router: Router[str] = Router(seed=1)
    for name in names(count // 4):
        router.add_worker(name, dp_size=4)
    return router


def half_replaced(count: int) -> Router[str]:
    router = made_at_once(count)
    router.sync_workers(names(count)[count // 2 :] + names(count // 2, "new"))
    return router


def given_new_objects(count: int) -> Router[dict[str, str]]:
    def fresh() -> Iterable[dict[str, str]]:
        return ({"url": name} for name in names(count))

    router = Router(list(fresh()), key=lambda worker: worker["url"], seed=1)
    router.sync_workers(list(fresh()))
    return router


def told_apart_by_credentials(count: int) -> Router[str]:
    return Router([f"http://user{number}:password@gpu:8000" for number in range(count)], seed=1)


def emptied_one_by_one(count: int) -> Router[str]:
    router = made_at_once(count)
    for name in names(count):
        router.remove_worker(name)
    return router


def cpu_seconds(build: Callable[[int], object], count: int) -> float:
    """The least of three runs, in time of the processor, which other processes do not lengthen."""
    least = float("inf")
    for _ in range(3):
        begin = time.thread_time()
        build(count)
        least = min(least, time.thread_time() - begin)
    return least


@pytest.mark.parametrize(
    "build",
    [
        made_at_once,
        made_one_by_one,
        made_of_ranks,
        half_replaced,
        given_new_objects,
        told_apart_by_credentials,
        emptied_one_by_one,
    ],
)
def test_a_fleet_takes_time_in_proportion_to_its_size(build: Callable[[int], object]) -> None:
    assert cpu_seconds(build, TIMES * FEW) < BOUND * cpu_seconds(build, FEW)


def test_a_fleet_keeps_the_order_of_registration_while_workers_come_and_go() -> None:
    router = Router(names(10), seed=1)
    expected = names(10)
    for round_ in range(40):
        gone = expected.pop((7 * round_) % len(expected))
        assert router.remove_worker(gone)
        if round_ % 2:
            expected.append(f"new{round_ % 6}-{round_}")
            router.add_worker(expected[-1])
        if len(expected) < 3:
            expected += [f"more{round_}-{number}" for number in range(6)]
            router.sync_workers(expected)
        assert router.keys() == router.workers() == expected
        assert {router.select_worker(among=[key], by_load=True).key for key in expected} == set(expected)
    router.validate()


def test_a_decision_made_before_a_change_keeps_its_worker() -> None:
    router = Router(["a"], seed=1)
    decision = router.select_worker(by_load=True)
    router.add_worker("b")
    router.remove_worker("a")
    assert (decision.worker, decision.retry().worker, router.keys()) == ("a", "b", ["b"])
