"""Runs from Python: routers before one fleet, reports that are late or lost, clients that leave, workers that fail."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.own_policy import Own
from tests.models.quiet_gateway import QuietGateway

from cachelb import Router
from cachelb.admission import AdmissionOptions
from cachelb.policies import POLICIES
from cachelb.state import ZmqMesh
from cachelb.state.options import megabytes
from cachelb_lab.sim import FleetSpec, Incident, Signals, SimResult, Status, Workload, build, compare, simulate
from cachelb_lab.sim.gateway import RouterGateway
from cachelb_lab.sim.simulation import _SHARED_BYTES, _SHARED_TTL_S

FLEET = FleetSpec.parse("4xa30")


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_serves_every_request(policy: str, chats: Workload) -> None:
    options: dict[str, Any] = {"base": "cache-aware"} if policy == "session" else {}
    result = simulate(chats, FLEET, policy, seed=1, **options)
    assert (result.status == Status.FINISHED).all()
    assert (result.first_token_s > result.arrival_s).all()
    assert (result.finish_s >= result.first_token_s).all()
    assert (result.cached_tokens < chats.prompt_tokens).all()


def test_the_default_is_the_routers_which_is_adaptive(chats: Workload) -> None:
    assert Router(["gpu0"]).policy.name == "adaptive"
    result = simulate(chats, FLEET, seed=1)
    assert result.policy == "adaptive"
    assert columns(result) == columns(simulate(chats, FLEET, "adaptive", seed=1))


def test_few_very_long_prompts_do_not_delay_the_typical_one() -> None:
    """Prompts that wait hold no memory: counted as if they did, they left one worker for all others."""
    requests, fleet = build("giants", seed=5, count=1000).speed_up(2), FleetSpec.parse("8xl40s")
    waits = []
    for policy in ("adaptive", "prefill-times-batch(crowding=1)"):
        run = simulate(requests, fleet, policy, seed=1)
        waits.append(run.first_token_s - run.arrival_s)
    assert np.median(waits[0]) < 1.5 * np.median(waits[1])
    assert np.mean(waits[0]) < np.mean(waits[1])


def test_policy_written_in_python_runs_the_same_router(chats: Workload) -> None:
    own = simulate(chats, FLEET, Own(lambda fleet: int(np.argmin(fleet.column("inflight")))), seed=1)
    assert own.policy == "own"
    assert own.finished.all()
    assert set(own.reasons) <= {"custom", "only-one"}
    assert set(own.worker) == {0, 1, 2, 3}
    assert own.worker[0] == 0
    assert own.predicted_tokens.sum() > 0


def test_an_oracle_predicts_what_is_cached(chats: Workload) -> None:
    small = FleetSpec.parse("4xa30", kv_tokens=25_000)
    chats = replace(chats, arrival_s=chats.arrival_s * 20)
    exact = simulate(chats, small, "kv-aware+oracle", seed=1, signals=Signals(net_delay_s=0))
    late = simulate(chats, small, "kv-aware", seed=1, signals=Signals(event_lag_s=60))
    wrong = [np.abs(one.predicted_tokens.astype(int) - one.cached_tokens).sum() for one in (exact, late)]
    assert wrong[0] < wrong[1] / 4, wrong


def test_progress_may_end_a_run(chats: Workload) -> None:
    def stop(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(chats, FLEET, progress=stop)


@pytest.mark.parametrize("policy", ["least-loaded", Own(lambda fleet: int(np.argmin(fleet.column("inflight"))))])
def test_an_admission_refuses_what_would_wait(policy: Any, chats: Workload) -> None:
    burst = chats.speed_up(1000)
    bounds: dict[str, Any] = {"max_pending_requests": 2, "max_pending_tokens": None}
    result = simulate(burst, FLEET, policy, seed=1, **bounds, max_wait_s=0.0)
    refused = result.status == Status.REJECTED
    assert 0 < refused.sum() < len(burst)
    assert (refused | (result.status == Status.FINISHED)).all()
    every = simulate(burst, FLEET, policy, seed=1)
    assert np.median(result.ttft_s) < np.median(every.ttft_s)
    idle = simulate(chats.speed_up(0.01), FLEET, policy, seed=1, max_pending_requests=2)
    assert idle.finished.all()
    some = simulate(burst, FLEET, policy, seed=1, **bounds, max_wait_s=0.5)
    assert refused.sum() > (some.status == Status.REJECTED).sum() > 0
    assert ((some.status == Status.FINISHED) | (some.status == Status.REJECTED)).all()
    waited = some.finish_s[some.status == Status.REJECTED] - some.arrival_s[some.status == Status.REJECTED]
    assert waited == pytest.approx(np.full(len(waited), 0.5), abs=1e-6)
    patient = simulate(burst, FLEET, policy, seed=1, **bounds, max_wait_s=None, order="fcfs")
    assert patient.finished.all()


def test_a_client_that_goes_away_while_its_request_is_held_leaves_nothing(chats: Workload) -> None:
    burst = replace(chats.speed_up(1000), abort_s=np.full(len(chats), 0.2))
    result = simulate(burst, FLEET, seed=1, max_pending_requests=1, max_wait_s=None)
    assert (result.status == Status.ABORTED).any()
    assert ((result.status == Status.FINISHED) | (result.status == Status.ABORTED)).all()


def test_a_request_that_was_tried_is_not_refused_again(chats: Workload) -> None:
    def make(clock: Any) -> Router[str]:
        return Router(["a", "b"], policy=Own(lambda _fleet: 0), block_size=chats.block_size, clock=clock)

    gateway = RouterGateway(make, chats, ["a", "b"])
    gateway.admit(AdmissionOptions(max_pending_requests=1, max_pending_tokens=None, max_wait_s=0.0).native())
    first, second = gateway.select(0, [], 0.0), gateway.select(1, [0], 0.0)
    assert first is not None
    assert second is not None
    assert gateway.select(2, [], 0.0) is None
    assert gateway.select(2, [0], 0.0) is not None


def test_an_admission_can_be_an_option_of_a_name(chats: Workload) -> None:
    burst = chats.speed_up(1000)
    named = simulate(burst, FLEET, "adaptive(max_pending_tokens=100)", seed=1)
    given = simulate(burst, FLEET, "adaptive", seed=1, max_pending_tokens=100)
    assert columns(named) == columns(given)
    assert (named.status == Status.REJECTED).any()


@pytest.mark.parametrize(
    ("fleet", "options", "message"),
    [
        (FLEET, {"max_pending_tokens": 0}, "max_pending_tokens must be"),
        (FleetSpec.parse("1xa30@prefill+1xa30@decode"), {"max_pending_tokens": 9}, "prefill alone"),
        (FLEET, {"max_pending_tokens": 9, "gateway": QuietGateway()}, "gateway of your own"),
    ],
)
def test_admission_where_there_is_none_is_refused(
    fleet: FleetSpec, options: dict[str, Any], message: str, chats: Workload
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(chats, fleet, **options)


def test_router_is_as_it_was_left_by_the_run(chats: Workload) -> None:
    with pytest.raises(ValueError, match=r"incidents must be .* workers of the fleet"):
        simulate(chats, FLEET, incidents=(Incident(1.0, 9, "crash"),))
    with pytest.raises(ValueError, match='"crash", "join" or "drain", got "burn"'):
        simulate(chats, FLEET, incidents=(Incident(1.0, 0, "burn"),))
    with pytest.raises(ValueError, match="block_size"):
        simulate(chats, FleetSpec.parse("1xa30", block_size=64))


def test_a_tree_of_tokens_has_none_to_compare(chats: Workload) -> None:
    with pytest.raises(ValueError, match='index="radix" compares tokens'):
        simulate(chats, FLEET, "cache-aware", seed=1, index="radix")


class Listener(QuietGateway):
    """Picks in turn and records its calls."""

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


def listened(workload: Workload, **signals: Any) -> tuple[Listener, SimResult]:
    listener = Listener()
    result = simulate(workload, FLEET, "listener", signals=Signals(**signals), gateway=listener)
    assert result.finished.all()
    return listener, result


def columns(result: SimResult) -> bytes:
    kept = (result.worker, result.first_token_s, result.finish_s, result.predicted_tokens, result.cached_tokens)
    return b"".join(each.tobytes() for each in kept)


# === notices ===


def test_oracle_is_told_all_of_it_at_once(chats: Workload) -> None:
    dim = {"report_queued_tokens": False, "report_cached_tokens": False, "first_token_delay_s": 1.0}
    exact, _ = listened(chats, oracle=True)
    listener, _ = listened(chats, oracle=True, **dim)
    assert listener.heard == exact.heard
    assert (listener.queued, listener.cached) == (exact.queued, exact.cached)


# === sharing ===


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


SMALL = FleetSpec.parse("4xa30", kv_tokens=25_000)


# === clients ===


@pytest.mark.parametrize(
    "policy",
    ["adaptive", "cache-aware", "kv-aware", Own(lambda _: 0)],
    ids=["speeds", "placements", "events", "python"],
)
def test_clients_that_go_away_are_counted_apart(policy: Any, chats: Workload) -> None:
    hasty = chats.impatient(0.3, 2.0, seed=4)
    assert hasty.abort_s is not None
    result = simulate(hasty, SMALL, policy, seed=1)
    ended = np.isin(result.status, [Status.FINISHED, Status.ABORTED])
    assert ended.all()
    assert 20 < result.aborted.sum() < 120
    waited = result.finish_s - result.arrival_s
    assert np.allclose(waited[result.aborted], hasty.abort_s[result.aborted])
    limited = result.finished & np.isfinite(hasty.abort_s)
    assert (waited[limited] <= hasty.abort_s[limited]).all()


def test_patience_is_drawn_by_seed_and_stays_with_its_request(chats: Workload) -> None:
    hasty = chats.impatient(0.3, 2.0, seed=4)
    assert hasty == chats.impatient(0.3, 2.0, seed=4)
    assert hasty != chats.impatient(0.3, 2.0, seed=5)
    assert hasty != chats
    rows = np.flatnonzero(chats.parent < 0)[::-1].copy()
    assert hasty.abort_s is not None
    taken = hasty.take(rows).abort_s
    assert taken is not None
    assert np.array_equal(taken, hasty.abort_s[rows], equal_nan=True)
    both = Workload.concat([replace(hasty, session=None), replace(chats, session=None)])
    assert both.abort_s is not None
    assert np.isfinite(both.abort_s).sum() == np.isfinite(hasty.abort_s).sum()


@pytest.mark.parametrize("value", [-1.0, float("inf")])
def test_patience_without_sense_is_named(value: float, chats: Workload) -> None:
    with pytest.raises(ValueError, match=r"row 0: abort_s must be 0 or more, or NaN"):
        replace(chats, abort_s=np.full(len(chats), value)).validate()
    with pytest.raises(ValueError, match=r"share must be (0 or more|a finite number), got (-1|inf)"):
        chats.impatient(value, 1.0)


def test_a_slowdown_holds_from_its_second_until_the_next() -> None:
    alone = replace(build("prefix-10", seed=1, count=5), arrival_s=np.arange(0, 500, 100, dtype=np.float64))
    signals = Signals(net_delay_s=0.0)

    def times(slowdown: tuple[tuple[float, float], ...]) -> tuple[Any, Any]:
        fleet = FleetSpec.parse("1xa30", prefix_caching=False, slowdown=slowdown)
        result = simulate(alone, fleet, "round-robin", seed=1, signals=signals)
        return result.ttft_s, result.finish_s - result.arrival_s

    usual, slowed = times(()), times(((150.0, 3.0), (350.0, 0.5)))
    for before, after in zip(usual, slowed, strict=True):
        assert after / before == pytest.approx([1.0, 1.0, 3.0, 3.0, 0.5])
