"""Pinned runs, windows of requests, and the search for their best placement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from benches import optimum
from benches.optimum import STARTS, Excerpt, clairvoyant, rollout

from cachelb_lab.sim import FleetSpec, Incident, Workload, build, simulate
from cachelb_lab.sim.workloads.workload import make

TWO = FleetSpec.parse("2xl40s")
COLUMNS = ("status", "arrival_s", "first_token_s", "finish_s", "worker", "cached_tokens", "preemptions")


def prompts(rows: Sequence[tuple[float, int, int]]) -> Workload:
    """Return requests of two tokens: when they arrive, blocks of the prompt, and which prompt."""
    hashes = [1_000_000 * family + 1 + np.arange(blocks) for _, blocks, family in rows]
    counts = [len(each) for each in hashes]
    return make(
        "prompts",
        block_size=16,
        arrival_s=[at for at, _, _ in rows],
        prompt_tokens=[16 * count for count in counts],
        output_tokens=[2] * len(rows),
        hashes=np.concatenate(hashes).astype(np.uint64),
        offsets=np.cumsum([0, *counts]),
    )


# === pinned runs ===


@pytest.mark.parametrize("name", ["adaptive", "adaptive+events", "round-robin", "cache-aware+oracle"])
def test_pinned_run_has_the_very_figures_of_the_run_it_repeats(name: str) -> None:
    chats, fleet = build("chat", seed=2, count=300).speed_up(2), FleetSpec.parse("3xl40s")
    told = simulate(chats, fleet, name, seed=5)
    for other in (name, "random", "least-loaded"):
        again = simulate(chats, fleet, other, seed=6, pinned=told.worker)
        for column in COLUMNS:
            assert np.array_equal(getattr(told, column), getattr(again, column), equal_nan=True), (other, column)


def test_requests_that_are_not_pinned_go_where_the_policy_says() -> None:
    chats = build("chat", seed=2, count=200)
    free = simulate(chats, TWO, "adaptive", seed=5)
    unpinned = simulate(chats, TWO, "adaptive", seed=5, pinned=[-1] * 200)
    assert np.array_equal(free.worker, unpinned.worker)
    half = np.where(np.arange(200) < 100, 1 - free.worker, -1)
    mixed = simulate(chats, TWO, "adaptive", seed=5, pinned=half)
    assert np.array_equal(mixed.worker[:100], half[:100])
    assert set(mixed.worker[100:]) == {0, 1}
    holder = mixed.worker[:100]
    follows = [row for row in range(100, 200) if 0 <= chats.parent[row] < 100]
    # The router went along: it knows the caches as they are, not as it would have filled them.
    assert np.mean([mixed.worker[row] == holder[chats.parent[row]] for row in follows]) > 0.8


def test_request_whose_worker_failed_is_pinned_no_longer() -> None:
    crash = Incident(0.05, 1, "crash")
    one = simulate(prompts([(0.0, 800, 1)]), TWO, "random", pinned=[1], incidents=(crash,))
    assert (one.worker.tolist(), one.retries.tolist(), one.status.tolist()) == ([0], [1], [1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pinned": [0]}, "for each of the 20 requests, got 1 from 0 to 0"),
        ({"pinned": [2] * 20}, "one of the 2 workers or -1 for each of the 20 requests, got 20 from 2 to 2"),
        ({"pinned": [-2] * 20}, "got 20 from -2 to -2"),
        ({"pinned": [0] * 20, "fleet": "1xh100@prefill+1xh100@decode"}, "without workers for prefill alone"),
    ],
)
def test_wrong_pins_are_named(settings: dict[str, Any], message: str) -> None:
    fleet = FleetSpec.parse(settings.pop("fleet", "2xl40s"))
    with pytest.raises(ValueError, match=message):
        simulate(build("rag", seed=1, count=20), fleet, **settings)


# === windows ===


def test_policies_share_the_warm_up_and_differ_in_the_window() -> None:
    excerpt = Excerpt(build("rag", seed=3, count=150).speed_up(3), TWO, 80, 40)
    runs = [excerpt.run(name) for name in ("adaptive", "round-robin", "least-loaded")]
    assert all(np.array_equal(run.worker[:80], excerpt.warm_up[:80]) for run in runs)
    assert len({tuple(run.worker[80:]) for run in runs}) == 3
    waits_s = (runs[0].first_token_s - runs[0].arrival_s)[80:]
    assert len(waits_s) == 40
    assert excerpt.cost(runs[0], 80) == (0, float(waits_s.sum()))


# === rollout and search ===


def test_rollout_on_an_idle_fleet_picks_the_holder() -> None:
    excerpt = Excerpt(prompts([(0.0, 400, 1), (60.0, 400, 1)]), TWO, 1, 1)
    for base in ("round-robin", "adaptive"):
        assert set(rollout(excerpt, base).tolist()) == {int(excerpt.warm_up[0])}
    assert len(set(excerpt.run("round-robin").worker.tolist())) == 2


def test_rollout_leaves_the_holder_where_its_queue_is_longer_than_the_prompt() -> None:
    requests = prompts([(0.0, 50, 1), (60.0, 4000, 2), (60.01, 50, 1)])
    excerpt = Excerpt(requests, TWO, 2, 1)
    excerpt.warm_up[:2] = 1
    assert rollout(excerpt, "session(base=round-robin)")[2] == 0


def test_horizon_lets_a_rollout_see_who_comes_next() -> None:
    # Round robin sends the long prompt to its holder if the short one, cold anywhere, goes to the other worker.
    requests = prompts([(0.0, 1500, 1), (30.0, 20, 2), (60.0, 20, 3), (60.001, 1600, 1)])
    excerpt = Excerpt(requests, TWO, 2, 2)
    holder, other, *_ = excerpt.warm_up.tolist()
    assert holder != other
    assert rollout(excerpt, "round-robin", 0).tolist() == [holder, other, holder, holder]
    assert rollout(excerpt, "round-robin", 1).tolist() == [holder, other, other, holder]


@pytest.mark.parametrize("seed", range(4))
def test_search_with_budget_enough_finds_the_best_of_all_placements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [(0.2 * nth, int(rng.integers(50, 900)), int(rng.integers(3))) for nth in range(6)]
    excerpt = Excerpt(prompts(rows), TWO, 0, 6)
    every = [np.array(placed, dtype=np.int32) for placed in product((0, 1), repeat=6)]
    costs = [excerpt.cost(excerpt.run("random", placed), 0) for placed in every]
    worst = every[costs.index(max(costs))]
    found = clairvoyant(excerpt, "random", [worst], budget=500)
    assert excerpt.cost(excerpt.run("random", found), 0) == min(costs) < max(costs)


def test_window_behind_the_last_request_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 15 behind 70 ends behind the 80 of rag"):
        Excerpt(build("rag", seed=1, count=80), TWO, 70, 15)


def test_search_is_not_above_what_it_starts_from() -> None:
    excerpt = Excerpt(build("rag", seed=1, count=80).speed_up(2), TWO, 50, 15)
    starts = [excerpt.run(name).worker for name in ("adaptive", *STARTS)]
    found = clairvoyant(excerpt, "random", starts, budget=0)
    costs = [excerpt.cost(excerpt.run("random", placed), 50) for placed in starts]
    assert excerpt.cost(excerpt.run("random", found), 50) == min(costs)


def test_program_prints_policies_over_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optimum, "BUDGET", 40)
    optimum.main(["rag(count=60)", "--fleet", "2xl40s", "--window", "40:6", "--policy", "adaptive,round-robin"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.split(": ")[1].split(" ")[0] for line in lines]
    assert names == ["adaptive", "round-robin", "rollout", "clairvoyant"]
    ratios = [float(line.split(": ")[1].split(" ")[1].rstrip(",")) for line in lines]
    assert ratios[-1] == min(ratios) == 1.0
