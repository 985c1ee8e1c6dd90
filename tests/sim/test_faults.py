"""Clients that go away, events that get lost, workers that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.own_policy import Own

from cachelb.sim import FleetSpec, Signals, Status, Workload, build, simulate

FLEET = FleetSpec.parse("4xa30", kv_tokens=25_000)


# === clients ===


@pytest.mark.parametrize(
    "policy",
    ["adaptive", "cache-aware", "kv-aware", Own(lambda _: 0)],
    ids=["speeds", "placements", "events", "python"],
)
def test_clients_that_go_away_are_counted_apart(policy: Any, chats: Workload) -> None:
    hasty = chats.impatient(0.3, 2.0, seed=4)
    assert hasty.abort_s is not None
    result = simulate(hasty, FLEET, policy, seed=1)
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


# === events ===


def test_lost_events_are_replayed(chats: Workload) -> None:
    result = simulate(chats, FLEET, "kv-aware", seed=1, signals=Signals(event_loss=0.2))
    assert result.finished.all()
    share = result.lost_messages.sum() / result.event_messages.sum()
    assert 0.15 < share < 0.25
    assert (result.replays > 0).all()
    assert not result.resyncs.any()
    lossless = simulate(chats, FLEET, "kv-aware", seed=1)
    assert not lossless.lost_messages.any()
    assert not lossless.replays.any()
    dropped = simulate(chats, FLEET, "kv-aware", seed=1, signals=Signals(event_loss=0.2, replay_delay_s=None))
    assert (dropped.resyncs > 0).all()
    assert not dropped.replays.any()
    off = [np.abs(each.predicted_tokens.astype(int) - each.cached_tokens).mean() for each in (result, dropped)]
    assert off[0] < off[1]
    assert not simulate(chats, FLEET, "kv-aware+oracle", seed=1, signals=Signals(event_loss=0.5)).lost_messages.any()


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
