"""Pinned runs, windows, and what policies are measured by there: rollouts and the clairvoyant search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cachelb.cli.app import app
from cachelb.sim import FleetSpec, Incident, Signals, Workload, build, simulate
from cachelb.sim.league import COMPARED, REALISM, League, Row, Standings, Store, Trace, as_dict, play
from cachelb.sim.league.window import Excerpt, Window
from cachelb.sim.league.yardsticks import STARTS, clairvoyant, rollout
from cachelb.sim.workloads.workload import make

TWO = FleetSpec.parse("2xl40s")
COLUMNS = ("status", "arrival_s", "first_token_s", "finish_s", "worker", "cached_tokens", "preemptions")
NONE = REALISM["none"]
LEAGUE = League(("rag(count=80)",), ("2xl40s",), loads=(0.95,), window="50:15")


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
        ({"policy": "adaptive+rollout"}, "places the requests of a window"),
    ],
)
def test_wrong_pins_are_named(settings: dict[str, Any], message: str) -> None:
    fleet = FleetSpec.parse(settings.pop("fleet", "2xl40s"))
    with pytest.raises(ValueError, match=message):
        simulate(build("rag", seed=1, count=20), fleet, **settings)


# === windows ===


def test_policies_share_the_warm_up_and_differ_in_the_window() -> None:
    excerpt = Excerpt(build("rag", seed=3, count=150).speed_up(3), TWO, Window(80, 40), NONE)
    runs = [excerpt.run(name) for name in ("adaptive", "round-robin", "least-loaded")]
    assert all(np.array_equal(run.worker[:80], excerpt.warm_up[:80]) for run in runs)
    assert len({tuple(run.worker[80:]) for run in runs}) == 3
    counted = excerpt.counted(runs[0])
    assert np.array_equal(counted.ttft_s, (runs[0].first_token_s - runs[0].arrival_s)[80:])
    assert np.array_equal(counted.workload.prompt_tokens, excerpt.workload.prompt_tokens[80:])


def test_preemptions_of_a_window_are_those_of_its_requests() -> None:
    fleet = FleetSpec.parse("2xl40s", kv_tokens=9_600)
    excerpt = Excerpt(build("chat", seed=3, count=200).speed_up(20), fleet, Window(100, 60), NONE)
    run = excerpt.run("round-robin")
    assert 0 < run.preemptions[100:].sum() < run.preemptions.sum()
    assert excerpt.counted(run).worker_preemptions.sum() == run.preemptions[100:].sum()


def test_window_of_a_closed_loop_keeps_turns_whose_first_is_before_it() -> None:
    chats = build("chat", seed=3, count=200)
    excerpt = Excerpt(chats, TWO, Window(100, 50), NONE)
    assert (chats.parent[100:150] >= 0).any()
    assert len(excerpt.counted(excerpt.run("adaptive")).ttft_s) == 50


def test_league_runs_are_those_of_simulate() -> None:
    store = Store()
    play(LEAGUE, ["round-robin"], store=store)
    (speed,) = (row["speed"] for row in store.rows("capacity"))
    (row,) = store.rows("run")
    requests = Trace.parse("rag(count=80)").requests(1).speed_up(0.95 * speed).slice(0, 65)
    warm_up = simulate(requests, TWO, "adaptive", seed=1, sample_interval_s=float("inf")).worker
    pinned = np.where(np.arange(65) < 50, warm_up, -1)
    alone = simulate(requests, TWO, "round-robin", seed=1, pinned=pinned)
    assert row["window"] == "50:15"
    assert row["figures"]["requests"] == 15
    assert row["figures"]["ttft_mean_s"] == float(alone.ttft_s[50:].mean())


@pytest.mark.parametrize(
    ("settings", "policy", "message"),
    [
        ({"window": None}, "adaptive+rollout", "adaptive\\+rollout places the requests of a window"),
        ({"window": "70:15"}, "random", "window 70:15 ends behind the 80 requests"),
        ({"window": "70"}, "random", "a window is AFTER:COUNT, .* got '70'"),
        ({"window": "70:0"}, "random", "count must be .*1"),
        ({"realism": ("crash",)}, "random", "realism 'crash' has incidents"),
        ({}, "adaptiv+clairvoyant", "did you mean 'adaptive'"),
    ],
)
def test_wrong_window_is_named(settings: dict[str, Any], policy: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play(replace(LEAGUE, **settings), [policy])


# === yardsticks ===


@pytest.fixture
def _small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.sim.league.running.BUDGET", 40)


def test_rollout_on_an_idle_fleet_picks_the_holder() -> None:
    excerpt = Excerpt(prompts([(0.0, 400, 1), (60.0, 400, 1)]), TWO, Window(1, 1), NONE)
    for base in ("round-robin", "adaptive"):
        assert set(rollout(excerpt, base).tolist()) == {int(excerpt.warm_up[0])}
    assert len(set(excerpt.run("round-robin").worker.tolist())) == 2


def test_rollout_leaves_the_holder_where_its_queue_is_longer_than_the_prompt() -> None:
    requests = prompts([(0.0, 50, 1), (60.0, 4000, 2), (60.01, 50, 1)])
    excerpt = Excerpt(requests, TWO, Window(2, 1), NONE)
    excerpt.warm_up[:2] = 1
    assert rollout(excerpt, "session(base=round-robin)")[2] == 0


def test_horizon_lets_a_rollout_see_who_comes_next() -> None:
    # Round robin sends the long prompt to its holder if the short one, cold anywhere, goes to the other worker.
    requests = prompts([(0.0, 1500, 1), (30.0, 20, 2), (60.0, 20, 3), (60.001, 1600, 1)])
    excerpt = Excerpt(requests, TWO, Window(2, 2), NONE)
    holder, other, *_ = excerpt.warm_up.tolist()
    assert holder != other
    assert rollout(excerpt, "round-robin", 0).tolist() == [holder, other, holder, holder]
    assert rollout(excerpt, "round-robin", 1).tolist() == [holder, other, other, holder]


@pytest.mark.parametrize("seed", range(4))
def test_search_with_budget_enough_finds_the_best_of_all_placements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [(0.2 * nth, int(rng.integers(50, 900)), int(rng.integers(3))) for nth in range(6)]
    excerpt = Excerpt(prompts(rows), TWO, Window(0, 6), NONE)
    every = [np.array(placed, dtype=np.int32) for placed in product((0, 1), repeat=6)]
    costs = [excerpt.cost(excerpt.run("random", placed), 0) for placed in every]
    worst = every[costs.index(max(costs))]
    found = clairvoyant(excerpt, "random", [worst], budget=500)
    assert excerpt.cost(excerpt.run("random", found), 0) == min(costs) < max(costs)


@pytest.mark.usefixtures("_small_budget")
def test_yardsticks_are_columns_with_the_same_bytes_for_any_threads(tmp_path: Path) -> None:
    names = ["adaptive", "round-robin", "adaptive+rollout", "adaptive+clairvoyant"]
    files = [tmp_path / f"{threads}.jsonl" for threads in (1, 3)]
    once, thrice = (play(LEAGUE, names, store=Store(file), threads=int(file.stem)) for file in files)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert as_dict(once) == as_dict(thrice) == as_dict(play(LEAGUE, names, store=Store(files[0])))
    mean = {row.policy: row.figures["ttft_mean_s"] or 0.0 for row in once.rows}
    assert mean["adaptive+clairvoyant"] <= min(mean.values())
    best = min(mean["adaptive"], mean["round-robin"])
    over = once.over("adaptive+clairvoyant")
    for name in names:
        assert list(once.ratios(name, COMPARED[0]).values()) == [mean[name] / best]
        assert list(over.ratios(name, COMPARED[0]).values()) == [mean[name] / mean["adaptive+clairvoyant"]]


def test_bound_alone_is_not_above_what_it_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.sim.league.running.BUDGET", 0)
    (bound,) = play(LEAGUE, ["round-robin+clairvoyant"]).rows
    starts = play(LEAGUE, ["round-robin", "round-robin+oracle", "round-robin+rollout", *STARTS]).rows
    assert bound.figures["ttft_mean_s"] == min(row.figures["ttft_mean_s"] or 0.0 for row in starts)


def test_ratios_over_a_bound_are_of_its_cells_alone() -> None:
    rows = [Row("w", {}, "a", {"ttft_mean_s": 0.3}), Row("x", {}, "a", {"ttft_mean_s": 0.3})]
    found = Standings([*rows, Row("w", {}, "a+clairvoyant", {"ttft_mean_s": 0.2})])
    assert found.bounds == ["a+clairvoyant"]
    assert found.over("a+clairvoyant").ratios("a", COMPARED[0]) == {"w": pytest.approx(1.5)}
    assert found.ratios("a", COMPARED[0]) == {"w": 1.0, "x": 1.0}


def test_window_without_setting_leaves_keys_of_cells_as_they_were() -> None:
    cell, bounded = (replace(LEAGUE, window=window).cells()[0] for window in (None, "50:15"))
    assert "window" not in cell.facts()
    assert cell.key("requests", TWO, 1.0) != bounded.key("requests", TWO, 1.0)
    late = replace(NONE, signals=Signals(report_lag_s=5.0))
    assert replace(bounded, realism=late).key("requests", TWO, 1.0) != bounded.key("requests", TWO, 1.0)


@pytest.mark.usefixtures("_small_budget")
def test_command_prints_the_table_over_the_bound() -> None:
    policies = "adaptive,adaptive+rollout,adaptive+clairvoyant"
    words = f"league rag(count=60) --fleet 2xl40s --loads 0.95 --window 40:6 --markdown --policy {policies}"
    printed = CliRunner().invoke(app, words.split(), prog_name="cachelb")
    assert printed.exit_code == 0, printed.output
    table = printed.stdout.split("TTFT mean over adaptive+clairvoyant")[1]
    assert "| adaptive+clairvoyant | 1.00 (1.00) |" in table
