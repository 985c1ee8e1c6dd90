"""Events that cannot be true: a router notices from engines' reports, resets the worker, and logs why."""

from __future__ import annotations

from typing import Any

import pytest

import cachelb
from cachelb.metrics.families import families
from cachelb.stats.events import KvEventStats
from cachelb_fakes.events import encode_batch, stored

PROMPT = list(range(100))
"""Six full blocks of 16 tokens, all of which can be reused."""
REUSABLE = 96
TOO_MANY = 5
"""Mismatches of so many requests and one more."""


class Fleet:
    """One worker with a clock that the test moves, and an engine whose own is ahead of it."""

    def __init__(self, *, kv_blocks: int | None = None) -> None:
        self.now_s = 10.0
        self.router: cachelb.Router[str] = cachelb.Router(policy="kv-aware", seed=1, clock=self._clock)
        self.router.add_worker("a", kv_blocks=kv_blocks)
        self._seq = 0

    def _clock(self) -> float:
        return self.now_s

    @property
    def ts(self) -> float:
        return self.now_s + 1000

    def say(self, *events: dict[str, Any]) -> None:
        """Let the engine publish events a second later."""
        self.now_s += 1
        self.router.event_sink.apply_events("a", encode_batch(events, ts=self.ts, dp_rank=None), seq=self._seq)
        self._seq += 1

    def answer(self, cached_tokens: int | None, *, times: int = 1, prompt_tokens: int | None = None) -> None:
        """Let the engine answer requests."""
        for _ in range(times):
            self.router.select_worker(tokens=PROMPT).on_complete(
                cached_tokens=cached_tokens, prompt_tokens=prompt_tokens
            )

    def learn(self) -> None:
        """Let the engine publish that it holds the prompt, and find it."""
        self.say(blocks(0, 6))
        self.answer(REUSABLE)

    @property
    def believed(self) -> int:
        return self.router.select_worker(tokens=PROMPT, dry_run=True).matched_tokens

    @property
    def told(self) -> KvEventStats:
        told = self.router.stats().workers[0].kv_events
        assert told is not None
        return told


def blocks(start: int, end: int, **fields: Any) -> dict[str, Any]:
    """Store some blocks of the prompt, named by their positions from 1 on."""
    return stored(range(start + 1, end + 1), PROMPT[16 * start : 16 * end], parent=start or None, **fields)


def other(name: int = 99) -> dict[str, Any]:
    """Store a block of something else."""
    return stored([name], range(1000 + name, 1016 + name))


def test_an_engine_that_keeps_finding_less_is_believed_anew() -> None:
    fleet = Fleet()
    fleet.learn()
    fleet.answer(0, times=TOO_MANY)
    assert fleet.told.found_less == 0, "an event may still say why"
    fleet.say(other())
    assert fleet.believed == 0
    told, stats = fleet.told, fleet.router.stats()
    assert (told.checked, told.found_less, told.state) == (TOO_MANY + 1, TOO_MANY, "degraded")
    assert told.repairs == stats.kv_repairs == {"capacity": 0, "cached-tokens": 1}
    assert told.resyncs == told.gaps == 0
    fleet.say(blocks(0, 4))
    assert fleet.believed == 64
    (candidate,) = fleet.router.explain(tokens=PROMPT).candidates
    assert (candidate.events, candidate.confirmed_blocks) == ("degraded", {"gpu": 4})
    series = {family.name: dict(family.rows) for family in families(stats)}
    assert series["kv_repairs"] == {("capacity",): 0, ("cached-tokens",): 1}
    assert series["kv_checks"] == {("a", "", "kept"): 1, ("a", "", "found-less"): TOO_MANY}
    fleet.router.remove_worker("a")
    assert fleet.router.stats().kv_repairs["cached-tokens"] == 1, "what happened stays counted"
    fleet.router.validate()


@pytest.mark.parametrize(("kind", "repairs"), [("cross_attention", 0), ("sliding_window", 1)])
def test_only_groups_that_are_followed_say_what_is_found(kind: str, repairs: int) -> None:
    fleet = Fleet()
    fleet.learn()
    fleet.say(blocks(5, 6, group_idx=1, kv_cache_spec_kind=kind, kv_cache_spec_sliding_window=16))
    assert fleet.believed == REUSABLE
    for name in range(30, 40):
        fleet.answer(0)
        fleet.say(other(name))
    assert fleet.told.repairs["cached-tokens"] == repairs


def test_copies_count_as_often_as_there_are() -> None:
    fleet = Fleet(kv_blocks=6)
    fleet.say(blocks(0, 4))
    fleet.say(blocks(3, 4), blocks(3, 4))
    assert fleet.told.repairs["capacity"] == 0, "six copies of four blocks"
    fleet.say(blocks(3, 4))
    assert fleet.told.repairs["capacity"] == 1


def test_other_places_and_other_groups_have_room_of_their_own() -> None:
    fleet = Fleet(kv_blocks=6)
    fleet.say(blocks(0, 6), blocks(0, 6, medium="CPU"))
    fleet.say(blocks(0, 6, group_idx=1, kv_cache_spec_kind="full_attention"))
    assert fleet.told.repairs["capacity"] == 0
    silent = Fleet(kv_blocks=6)
    silent.say(blocks(0, 6, medium=None), stored([9], range(500, 516), medium=None))
    assert silent.told.repairs["capacity"] == 0, "this may be host memory too"


@pytest.mark.parametrize(("size", "stated"), [(16, None), (32, None), (8, None), (32, (12, 16)), (8, (3, 16))])
def test_room_is_counted_in_the_blocks_of_the_engine(size: int, stated: tuple[int, int] | None) -> None:
    fleet = Fleet(kv_blocks=6)
    if stated is not None:
        fleet.router.load_sink.learn_worker("a", kv_blocks=stated[0], block_size=stated[1])
    fits = range(6)
    fleet.say(stored(fits, range(size * 6), block_size=size))
    assert fleet.told.repairs["capacity"] == 0
    over = range(6, 6 + max(1, (stated or (0, 0))[1] // size))
    fleet.say(stored(over, range(900, 900 + size * len(over)), block_size=size))
    assert fleet.told.repairs["capacity"] == 1
