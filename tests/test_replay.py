"""Replays: conservation, time, determinism, and what policies must reach."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

from cachelb import policies
from cachelb.policies import POLICIES
from cachelb.sim.engine_cache import EngineCaches
from cachelb.sim.expand import TokenExpander
from cachelb.sim.replay import Fleet, compare, session_key
from cachelb.sim.traces import Request, read_trace
from cachelb.sim.workloads import MIXED_ID_TOKENS, mixed_workload

if TYPE_CHECKING:
    from pathlib import Path

    from cachelb.sim.report import PolicyResult, Report

FLEET = Fleet(workers=8, kv_tokens=50_000, block_size=16, id_tokens=MIXED_ID_TOKENS)
ROWS = mixed_workload(1500, seed=0)


def comparable(report: Report) -> str:
    document = report.as_dict()
    del document["wall_clock"]
    return json.dumps(document)


@pytest.fixture(scope="module")
def report() -> Report:
    return compare("mixed", ROWS, POLICIES, FLEET)


@pytest.fixture(scope="module")
def results(report: Report) -> dict[str, PolicyResult]:
    return {result.policy: result for result in report.policies}


def test_every_policy_is_replayed_in_the_order_asked_for() -> None:
    names = ["random", "cache-aware"]
    assert [result.policy for result in compare("few", ROWS[:10], names, FLEET).policies] == names


def test_every_request_and_block_is_counted_once(report: Report) -> None:
    blocks = sum(row.prompt_tokens // FLEET.block_size for row in ROWS)
    for result in report.policies:
        assert result.requests == sum(result.worker_requests) == sum(result.reasons.values()) == len(ROWS)
        assert result.hits.blocks == blocks
        assert 0 <= result.hits.hit_blocks <= blocks
        assert result.saved_tokens == result.hits.hit_blocks * FLEET.block_size
        assert result.hit_vs_bound == result.saved_tokens / report.bound.pool.hit_tokens
        assert result.hits.prompt_tokens == sum(row.prompt_tokens for row in ROWS)


def test_no_policy_passes_the_single_pool_by_a_tenth(report: Report) -> None:
    assert max(result.hit_vs_bound for result in report.policies) <= 1.1


def test_cache_aware_beats_policies_that_do_not_look_at_prefixes(results: dict[str, PolicyResult]) -> None:
    best = results["cache-aware"].hits.token_rate
    assert best > 1.3 * results["round-robin"].hits.token_rate
    assert best > 1.3 * results["random"].hits.token_rate
    assert best > results["least-loaded"].hits.token_rate


def test_cache_aware_expects_what_its_worker_holds(results: dict[str, PolicyResult]) -> None:
    # Its index has the engines' size and sees the same prompts; only the last token of a prompt that is cached to
    # its end is always computed again.
    result = results["cache-aware"]
    assert result.predicted_tokens <= result.saved_tokens
    assert result.predicted_tokens == pytest.approx(result.saved_tokens, rel=0.005)


def test_round_robin_serves_evenly(results: dict[str, PolicyResult]) -> None:
    counts = results["round-robin"].worker_requests
    assert max(counts) - min(counts) <= 1


def test_rendezvous_keeps_a_session_on_one_worker() -> None:
    turns = [Request(float(turn), 64, 1, (turn,), session="s") for turn in range(20)]
    (result,) = compare("one session", turns, ["rendezvous"], FLEET).policies
    assert max(result.worker_requests) == 20


def test_load_policies_see_the_load_that_the_replay_makes() -> None:
    # Ten requests at one instant on ten workers: a policy that sees no booking would pick some worker twice.
    fleet = Fleet(workers=10, kv_tokens=1024, block_size=16, id_tokens=64)
    rows = [Request(0.0, 64, 100, (number,)) for number in range(10)]
    rows += [Request(100.0 * number, 64, 100, (number,)) for number in range(1, 11)]
    (result,) = compare("burst", rows, ["least-loaded"], fleet).policies
    assert result.worker_requests == (2,) * 10
    assert (result.peak_inflight, result.peak_inflight_worker) == (10, 1)


def test_request_occupies_its_worker_for_prefill_and_output() -> None:
    # 8,000 uncached tokens and 50 output tokens: 1 s + 1 s. At 2 s the first is over, just before it is not.
    fleet = Fleet(workers=1, kv_tokens=16_000, block_size=16, id_tokens=8000)
    first = Request(0.0, 8000, 50, (1,))

    def peak(second_s: float) -> int:
        return compare("pair", [first, Request(second_s, 16, 1, (2,))], ["random"], fleet).policies[0].peak_inflight

    assert (peak(1.99), peak(2.0)) == (2, 1)


def test_cached_tokens_shorten_the_prefill() -> None:
    fleet = Fleet(workers=1, kv_tokens=16_000, block_size=16, id_tokens=8000)
    rows = [Request(0.0, 8000, 0, (1,)), Request(10.0, 8000, 1, (1,)), Request(10.03, 16, 0, (2,))]
    (result,) = compare("repeat", rows, ["random"], fleet).policies
    assert (result.saved_tokens, result.peak_inflight) == (8000, 1)


class Recorder:
    """A policy of ours: always the first worker; notes when the replay tells it what."""

    def __new__(cls, *, max_blocks_per_worker: int = 1, **_options: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.calls: list[tuple[float, str, int]] = []

    def select_worker(self, workers: list[str], *, tokens: Any, session: str) -> Any:
        number = len([call for call in self.calls if call[1] == "select"])
        self.note("select", number)
        return SimpleNamespace(
            worker=workers[0],
            reason=session,
            matched_tokens=len(tokens),
            on_first_token=lambda: self.note("first token", number),
            on_complete=lambda: self.note("complete", number),
        )

    def note(self, what: str, number: int) -> None:
        self.calls.append((self.options["clock"](), what, number))


def test_policy_lives_in_simulated_time_and_is_told_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders: list[Recorder] = []

    def make(_name: str, **options: Any) -> Recorder:
        recorders.append(Recorder(**options))
        return recorders[-1]

    monkeypatch.setattr(policies, "make", make)
    fleet = Fleet(workers=2, kv_tokens=16_000, block_size=16, id_tokens=8000, seed=5)
    # The second request arrives as the first one ends and finds its whole prompt cached.
    rows = [Request(1.0, 8000, 50, (1,), session="s"), Request(3.0, 8000, 25, (1,), session="s")]
    (result,) = compare("stages", rows, ["ours"], fleet).policies
    assert recorders[-1].calls == [
        (1.0, "select", 0),
        (2.0, "first token", 0),
        (3.0, "complete", 0),
        (3.0, "select", 1),
        (3.0, "first token", 1),
        (3.5, "complete", 1),
    ]
    options = {key: value for key, value in recorders[-1].options.items() if key != "clock"}
    assert options == {"seed": 5, "block_size": 16, "max_blocks_per_worker": 1000}
    assert (result.predicted_tokens, result.saved_tokens, result.reasons) == (16_000, 8000, {"s": 2})
    assert (result.worker_requests, result.requests_max_over_mean, result.busy_max_over_mean) == ((2, 0), 2.0, 2.0)


def test_same_seed_gives_the_same_report(report: Report) -> None:
    assert comparable(compare("mixed", ROWS, POLICIES, FLEET)) == comparable(report)


def test_another_seed_gives_other_random_picks(results: dict[str, PolicyResult]) -> None:
    fleet = Fleet(workers=8, kv_tokens=50_000, block_size=16, id_tokens=MIXED_ID_TOKENS, seed=1)
    (other,) = compare("mixed", ROWS, ["random"], fleet).policies
    assert other.worker_requests != results["random"].worker_requests


def test_hits_are_those_of_caches_fed_by_hand(results: dict[str, PolicyResult]) -> None:
    # Round robin from any start puts request i and i + 8 on one worker.
    expander, hit_blocks = TokenExpander(MIXED_ID_TOKENS), 0
    caches = EngineCaches(FLEET.names, kv_tokens=FLEET.kv_tokens, block_size=FLEET.block_size)
    for number, row in enumerate(ROWS):
        hit_blocks += caches.serve(FLEET.names[number % FLEET.workers], expander.tokens(row))
    assert results["round-robin"].hits.hit_blocks == hit_blocks


def test_progress_counts_up_to_every_request_of_every_policy() -> None:
    seen: list[tuple[str, int]] = []
    compare("mixed", ROWS[:130], ["random", "round-robin"], FLEET, on_progress=lambda *step: seen.append(step))
    assert seen == [(name, done) for name in ("random", "round-robin") for done in (64, 128, 130)]


def test_empty_trace_gives_an_empty_report() -> None:
    (result,) = compare("none", [], ["cache-aware"], FLEET).policies
    assert (result.requests, result.hit_vs_bound, result.requests_max_over_mean) == (0, 0.0, 1.0)


def test_prompt_shorter_than_a_block_is_served() -> None:
    rows = [Request(0.0, tokens, 1, (tokens,) if tokens else ()) for tokens in (0, 1, 15)]
    for result in compare("short", rows, POLICIES, FLEET).policies:
        assert (result.requests, result.hits.blocks) == (3, 0)


def test_session_key_takes_the_trace_s_id_or_the_first_two_blocks() -> None:
    assert session_key(Request(0.0, 9, 1, (1, 2, 3), session="mine")) == "mine"
    assert session_key(Request(0.0, 9, 1, (1, 2, 3))) == session_key(Request(0.0, 9, 1, (1, 2, 4)))
    assert session_key(Request(0.0, 9, 1, (1, 2, 3))) != session_key(Request(0.0, 9, 1, (1, 3, 3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"kv_tokens": 15}, "kv_tokens 15 holds no block of 16 tokens"),
    ],
)
def test_fleet_of_no_sense_is_refused(changes: dict[str, int], message: str) -> None:
    options: dict[str, Any] = {"workers": 1, "kv_tokens": 64, "block_size": 16, "id_tokens": 64, **changes}
    with pytest.raises(ValueError, match=message):
        Fleet(**options)


def test_real_trace_rewards_cache_aware_routing_close_to_the_bound(conversation_trace: Path) -> None:
    rows = list(read_trace(conversation_trace))
    fleet = Fleet(workers=8, kv_tokens=400_000, block_size=512, id_tokens=512)
    report = compare("conversation", rows, ["cache-aware", "round-robin"], fleet)
    aware, even = report.policies
    assert report.bound.pool.token_rate == pytest.approx(0.1527, abs=1e-4)
    assert 0.7 < aware.hit_vs_bound <= 1.1
    assert aware.hits.hit_blocks > 2 * even.hits.hit_blocks
