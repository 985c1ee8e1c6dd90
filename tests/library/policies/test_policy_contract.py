"""The contract every policy keeps, and that a policy which breaks one promise is found out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cachelb import policies
from cachelb.policies import FleetView, RequestView, lowest
from cachelb.testing import assert_policy_contract


class Base:
    """A policy that keeps every promise."""

    name = "own"
    needs = frozenset({"tokens"})

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        cost = fleet.column("pending_prefill_tokens") + fleet.column("uncached_tokens")
        return lowest(cost / fleet.column("weight"), request)


class Sessions(Base):
    """Keeps sessions on their workers, bounded, and leaves them as they are in a dry run."""

    needs = frozenset({"session"})

    def __init__(self) -> None:
        self._bound: dict[int, str] = {}

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        key = None if request.key is None else self._bound.get(request.key)
        if key in fleet.keys:
            return fleet.keys.index(key), "session"
        row = lowest(fleet.column("inflight"), request)
        if request.key is not None and not request.dry_run:
            self._bound[request.key] = fleet.keys[row]
            while len(self._bound) > 500:
                self._bound.pop(next(iter(self._bound)), None)
        return row


class Without(Base):
    """One that keeps nothing."""

    def __init__(self, choose: Callable[[RequestView, FleetView], Any]) -> None:
        self.choose = choose  # type: ignore[assignment,method-assign]  # the point


STATELESS: list[tuple[Callable[[RequestView, FleetView], Any], str]] = [
    (lambda request, fleet: random.randrange(len(fleet)), "equal seeds and calls picked"),
    (lambda request, fleet: fleet.column("inflight").argmin(), "the order of the workers decides among idle workers"),
    (lambda request, fleet: request.randrange(len(fleet) + 1), r"choose\(\) returned 4 with 4 candidates"),
    (
        lambda request, fleet: fleet.keys[request.randrange(len(fleet))],
        r"choose\(\) raised TypeError: 'str' object cannot be interpreted as an integer",
    ),
    (
        lambda request, fleet: lowest(fleet.column("inflight"), request) if len(fleet) < 64 else 64,
        r"choose\(\) returned 64 with 64 candidates",
    ),
    (
        lambda request, fleet: lowest(fleet.column("inflight") + 1 // request.prompt_tokens, request),
        r"choose\(\) raised ZeroDivisionError",
    ),
    (
        lambda request, fleet: lowest(fleet.column("inflight") + int(fleet.column("waiting").max()), request),
        r"choose\(\) raised ValueError: cannot convert float NaN",
    ),
    (
        lambda request, fleet: lowest(
            fleet.column("inflight") * {True: 1}[request.has_tokens or request.session is not None], request
        ),
        r"choose\(\) raised KeyError: False",
    ),
]


class Counting(Base):
    """Round robin whose counter a dry run moves too."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        return (next(self._turns) + request.randrange(len(fleet))) % len(fleet)


class RemembersPositions(Base):
    """Keeps a position rather than a key, so that a worker's leaving makes it wrong."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        if len(fleet) < 3 or request.dry_run:
            return lowest(fleet.column("inflight"), request)
        return self._last.setdefault("row", len(fleet) - 1)


class Grows(Base):
    def __init__(self) -> None:
        self._seen: list[object] = []

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        self._seen.append(request)
        return lowest(fleet.column("inflight"), request)


@pytest.mark.parametrize("name", policies.POLICIES)
def test_built_in_policies_keep_the_contract(name: str) -> None:
    assert_policy_contract(name)


@pytest.mark.parametrize("factory", [Base, Sessions])
def test_own_policies_that_behave_keep_the_contract(factory: Callable[[], object]) -> None:
    assert_policy_contract(factory)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        *((partial(Without, choose), message) for choose, message in STATELESS),
        (Counting, "two dry runs and the pick they announce differ"),
        (RemembersPositions, "the order of the workers decides"),
        (Grows, "Python memory grows with every request"),
    ],
)
def test_broken_promise_is_found_and_named(factory: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError, match=rf"^policy 'own': .*{message}"):
        assert_policy_contract(factory)


def test_lowest_draws_ties_and_passes_over_unknown_costs() -> None:
    import numpy as np

    from cachelb import Router

    drawn: list[int] = []

    class Look(Base):
        def choose(self, request: RequestView, fleet: FleetView) -> Any:
            nan = float("nan")
            drawn.append(lowest(np.array([nan, 2, 1, 1]), request))
            assert lowest(np.array([3, 2, 4]), request) == 1
            assert lowest(np.array([nan, nan]), request) in {0, 1}
            return 0

    router = Router(["a", "b"], policy=Look(), seed=1)
    for _ in range(40):
        assert router.select_worker(by_load=True).reason == "custom"
    assert set(drawn) == {2, 3}
