"""What gateways hear late or never, decisions that take time, and gateways that tell each other."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.quiet_gateway import QuietGateway

from cachelb.policies import FleetView, RequestView
from cachelb.sim import FleetSpec, Incident, Signals, SimResult, Workload, build, compare, prepare, simulate
from cachelb.sim.simulation import _SHARED_BYTES, _SHARED_TTL_S
from cachelb.state import ZmqMesh
from cachelb.state.options import megabytes

FLEET = FleetSpec.parse("4xa30")


class Listener(QuietGateway):
    """Goes round and notes what it hears."""

    def __init__(self) -> None:
        self.placed: list[float] = []
        self.heard: list[tuple[str, int, float]] = []
        self.queued: list[int | None] = []
        self.cached: list[int | None] = []

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int]:
        self.placed.append(now)
        return request % len(FLEET), request, 0, 0

    def first_token(self, ticket: int, now: float) -> None:
        self.heard.append(("first token", ticket, now))

    def tokens(self, ticket: int, count: int, now: float) -> None:
        self.heard.append((f"{count} tokens", ticket, now))

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        self.heard.append(("end", ticket, now))
        self.cached.append(cached_tokens)

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        self.queued.append(load[2])


@pytest.fixture(scope="module")
def chats() -> Workload:
    return build("chat", seed=1, count=400)


def listened(workload: Workload, **signals: Any) -> tuple[Listener, SimResult]:
    listener = Listener()
    result = simulate(workload, FLEET, "listener", signals=Signals(**signals), gateway=listener)
    assert result.finished.all()
    return listener, result


def columns(result: SimResult) -> bytes:
    kept = (result.worker, result.first_token_s, result.finish_s, result.predicted_tokens, result.cached_tokens)
    return b"".join(each.tobytes() for each in kept)


# === notices ===


def test_first_tokens_are_noticed_late_and_nothing_of_a_request_before(chats: Workload) -> None:
    on_time, one = listened(chats)
    late, other = listened(chats, first_token_delay_s=2.0)
    # Clients notice nothing.
    assert columns(one) == columns(other)
    assert [what[:2] for what in sorted(late.heard, key=lambda what: what[1])] == [
        what[:2] for what in sorted(on_time.heard, key=lambda what: what[1])
    ]
    noticed = {ticket: now for what, ticket, now in late.heard if what == "first token"}
    for (what, ticket, before), (_, _, after) in zip(
        sorted(on_time.heard, key=lambda each: each[1]), sorted(late.heard, key=lambda each: each[1]), strict=True
    ):
        assert after == max(before, noticed[ticket]), what
    for ticket, now in noticed.items():
        assert now == one.first_token_s[ticket] + 2.0


def test_oracle_is_told_all_of_it_at_once(chats: Workload) -> None:
    dim = {"report_queued_tokens": False, "report_cached_tokens": False, "first_token_delay_s": 1.0}
    exact, _ = listened(chats, oracle=True)
    listener, _ = listened(chats, oracle=True, **dim)
    assert listener.heard == exact.heard
    assert (listener.queued, listener.cached) == (exact.queued, exact.cached)


# === decisions ===


def test_each_gateway_decides_by_itself(chats: Workload) -> None:
    at_once = replace(chats, arrival_s=np.where(chats.parent < 0, 0.0, np.nan))
    busy = Signals(decision_s=5.0)
    ends = [simulate(at_once, FLEET, "round-robin", seed=1, gateways=count, signals=busy).end_s for count in (1, 4)]
    assert ends[1] < ends[0] / 2


# === sharing ===


def known(result: SimResult) -> float:
    """Return the share of the cached tokens that gateways knew of."""
    assert result.finished.all()
    both = np.minimum(result.predicted_tokens, result.cached_tokens)
    return float(both.sum() / result.cached_tokens.sum())


class Fullest:
    """The worker that must compute the least of the prompt; of equals the one with the fewest requests."""

    name = "fullest"
    needs = frozenset({"tokens"})

    def choose(self, _request: RequestView, fleet: FleetView) -> int:
        return int(np.lexsort((fleet.column("inflight"), fleet.column("uncached_tokens")))[0])


@pytest.mark.parametrize("policy", ["adaptive", "cache-aware", "prefill-times-batch", Fullest])
def test_gateways_that_share_know_what_others_placed(policy: Any) -> None:
    workload = build("prefix-10", seed=1, count=400)
    one, alone, shared = (
        simulate(
            workload, FLEET, policy if isinstance(policy, str) else policy(), seed=1, gateways=count, sharing=sharing
        )
        for count, sharing in ((1, False), (4, False), (4, True))
    )
    assert known(shared) > known(alone) + 0.5 * (known(one) - known(alone))
    assert known(one) > known(alone) + 0.1


def test_gateways_that_share_know_the_load(chats: Workload) -> None:
    def imbalance(gateways: int, *, sharing: bool = False) -> float:
        """Return by how many requests the busiest worker is ahead of the idlest, in the mean."""
        never = Signals(scrape_interval_s=1e6)
        options: dict[str, Any] = {"signals": never, "gateways": gateways, "sharing": sharing, "sample_interval_s": 0.1}
        samples = simulate(chats, FLEET, "least-loaded", seed=1, **options).samples
        requests = samples[..., 0] + samples[..., 1]
        return float((requests.max(axis=1) - requests.min(axis=1)).mean())

    one, alone, shared = imbalance(1), imbalance(4), imbalance(4, sharing=True)
    assert alone > 1.5 * one
    assert shared < one + 0.3 * (alone - one)


def test_runs_that_share_repeat_from_any_number_of_threads(chats: Workload) -> None:
    prepared = prepare(chats)
    signals = Signals(first_token_delay_s=0.25, decision_s=0.001, report_queued_tokens=False)

    def one(policy: str) -> bytes:
        crash = (Incident(5.0, 0, "crash"), Incident(20.0, 0, "join"))
        result = simulate(
            chats.impatient(0.1, 3.0),
            FLEET,
            policy,
            seed=1,
            gateways=4,
            sharing=True,
            signals=signals,
            incidents=crash,
            prepared=None if policy == "learned" else prepared,
        )
        return columns(result)

    policies = ["adaptive", "cache-aware", "kv-aware", "sticky-until-saturated", "learned"]
    alone = [one(policy) for policy in policies]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, policies)) == alone
    assert len(set(alone)) == len(policies)


def test_sharing_has_the_defaults_of_a_mesh() -> None:
    usual = {name: each.default for name, each in inspect.signature(ZmqMesh).parameters.items()}
    assert usual["interval_s"] == Signals().sharing_lag_s
    assert (usual["ttl_s"], megabytes("max_mb", usual["max_mb"])) == (_SHARED_TTL_S, _SHARED_BYTES)


def test_compared_runs_share(chats: Workload) -> None:
    found = compare(chats, FLEET, ["cache-aware"], seeds=[1], gateways=4, sharing=True)
    (cell,) = found.cells
    alike = simulate(chats, FLEET, "cache-aware", seed=1, gateways=4, sharing=True)
    assert cell.result is not None
    assert columns(cell.result) == columns(alike)
    assert found.settings["sharing"] is True


def test_own_gateway_shares_with_none(chats: Workload) -> None:
    with pytest.raises(ValueError, match=r"a gateway of your own stands alone, got gateways=1, sharing=True"):
        simulate(chats, FLEET, "mine", gateway=Listener(), sharing=True)
