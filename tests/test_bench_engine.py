"""What `make bench-engine` does, with fake engines in place of vLLM."""

from __future__ import annotations

import copy
import json
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from benches.engine import __main__ as bench
from benches.engine import episode as episodes
from benches.engine import page as pages
from benches.engine import processor
from benches.engine.client import ask
from benches.engine.episode import POLICIES, Fleet, play
from benches.engine.processor import Processors
from benches.engine.workload import Known, Shape, plan
from tests.gateways import wait_until

from cachelb import Router
from cachelb.testing import FakeFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 32
SMALL = Shape(chats=5, turns=3, shared=1, sharing=3, system_tokens=96, turn_tokens=(40, 80), answer_tokens=8)


def fleet_of(fakes: FakeFleet) -> Fleet:
    def reset() -> None:
        for worker in fakes.workers:
            worker.reset_cache()

    endpoints = {url: endpoint for url in fakes.urls if (endpoint := fakes.kv_endpoint(url)) is not None}
    return Fleet(fakes.urls, endpoints, reset, BLOCK)


@contextmanager
def engines(count: int, kv_blocks: int = 128) -> Iterator[Fleet]:
    with FakeFleet(count, kv_events=True, block_size=BLOCK, kv_blocks=kv_blocks) as fakes:
        yield fleet_of(fakes)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with engines(2) as made:
        yield made


def test_chats_share_system_prompts_and_nothing_else() -> None:
    chats = plan(SMALL, seed=3)
    assert [len(turns) for turns in chats] == [3] * 5
    openings = [tuple(turns[0][:96]) for turns in chats]
    assert len(set(openings)) == 3
    assert openings[0] == openings[1] == openings[2]
    assert len({tuple(turn) for turns in chats for turn in turns}) == 15
    lengths = [len(turn) for turns in chats for turn in (turns[0][96:], *turns[1:])]
    assert min(lengths) >= 40
    assert max(lengths) <= 80
    assert all(5 <= token < SMALL.vocabulary for turns in chats for turn in turns for token in turn)
    assert plan(SMALL, seed=3) == chats != plan(SMALL, seed=4)
    with pytest.raises(ValueError, match="3 system prompts for 4 chats each are more than 5"):
        plan(Shape(chats=5, shared=3, sharing=4), seed=1)


def test_lengths_are_those_of_the_chats() -> None:
    plans = [plan(SMALL, seed) for seed in range(200)]
    answers = SMALL.answer_tokens
    ends = [sum(map(len, turns)) + 3 * answers for chats in plans for turns in chats]
    assert max(ends) <= SMALL.longest == 96 + 3 * 88
    assert sum(ends) / len(ends) - answers == pytest.approx(SMALL.last_prompt, rel=0.02)
    distinct = [sum(map(len, sum(chats, []))) - 2 * 96 + 15 * answers for chats in plans]  # noqa: RUF017 - short
    assert sum(distinct) / len(distinct) == pytest.approx(SMALL.distinct, rel=0.02)


def test_possible_is_what_was_sent_before_in_whole_blocks_but_for_the_last_token() -> None:
    known = Known(4)
    assert known.possible(list(range(9))) == 0
    known.add(list(range(11)))
    assert known.possible(list(range(9))) == 8
    assert known.possible(list(range(8))) == 4
    assert known.possible([*range(7), 99, *range(8, 12)]) == 4
    assert known.possible([99, *range(1, 12)]) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plays_all_chats_and_the_figures_agree(policy: str, fleet: Fleet) -> None:
    episode = play(fleet, policy, SMALL, seed=1)
    requests = episode["requests"]
    assert sorted((each["chat"], each["turn"]) for each in requests) == [(c, t) for c in range(5) for t in (1, 2, 3)]
    for each in requests:
        turns = plan(SMALL, 1)[each["chat"]]
        assert each["prompt"] == sum(map(len, turns[: each["turn"]])) + 8 * (each["turn"] - 1)
        assert 0 <= each["cached"] < each["prompt"]
        assert 0 < each["first_s"] <= each["whole_s"] <= episode["wall_s"]
    assert episode["hits"] == sum(each["cached"] for each in requests)
    assert episode["expected_tokens"] > 0
    assert 0 <= episode["others"] <= 1


@pytest.mark.parametrize("policy", ["round-robin", "kv-aware"])
def test_one_engine_finds_what_was_sent_before(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    routers: list[Router[str]] = []

    def kept(*arguments: Any, **options: Any) -> Router[str]:
        routers.append(Router(*arguments, **options))
        return routers[-1]

    with FakeFleet(1, kv_events=True, block_size=BLOCK, kv_blocks=128) as fakes:
        events = fakes.workers[0].events
        assert events is not None

        def is_heard() -> bool:
            heard = routers[-1].stats().workers[0].kv_events
            return heard is None or heard.messages == events._seq

        def ask_and_hear(*arguments: Any) -> Any:
            answer = ask(*arguments)
            wait_until(is_heard)  # or the next prompt may be routed before it is known what this one left
            return answer

        monkeypatch.setattr(episodes, "Router", kept)
        monkeypatch.setattr(episodes, "ask", ask_and_hear)
        episode = play(fleet_of(fakes), policy, replace(SMALL, in_flight=1), seed=2)
    for each in episode["requests"]:  # vLLM would also find what blocks the answer filled, of 8 tokens at most one
        assert 0 <= each["possible"] - each["cached"] <= BLOCK
    assert episode["hits"] > 0
    # It expects the whole of a last block, of which an engine always computes one token.
    assert episode["hits"] <= episode["expected_tokens"] <= episode["hits"] + 15 * BLOCK


def test_a_stopped_run_goes_on_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs.jsonl", tmp_path / "docs" / "page.md"
    command = ["bench", "--chats", "9", "--turns", "2", "--rounds", "2", "--runs", str(runs), "--out", str(out)]

    def run(*extra: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        bench.main()
        return [json.loads(line)["cell"] for line in runs.read_text("utf-8").splitlines()]

    monkeypatch.setattr(bench, "engines", lambda given, shape: engines(2, kv_blocks=1024))
    monkeypatch.setattr(Processors, "others", lambda self: 0.0)  # else the page is refused while the machine is busy
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="no round is complete"):
            run("--minutes", "0")
        first = run("--rounds", "1")
        assert first == ["settings", "alone", *(f"0/{policy}" for policy in POLICIES)]
        assert "1 rounds of 18 requests per policy" in out.read_text("utf-8")
        both = run()
        assert both == [*first, *(f"1/{policy}" for policy in (*POLICIES[1:], POLICIES[0]))]
        assert "2 rounds of 18 requests per policy" in out.read_text("utf-8")
        assert (out.parent / "images" / "engines-measured.svg").exists()
        monkeypatch.setattr(bench, "engines", None)
        assert run() == run("--write") == both
        with pytest.raises(SystemExit, match="is of other settings"):
            run("--turns", "3")
        with pytest.raises(SystemExit):
            run("--turns", "1")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "--turns must be 2 or more, got 1" in capsys.readouterr().err


def test_a_cache_that_is_not_empty_ends_the_episode(fleet: Fleet) -> None:
    full = Fleet(fleet.urls, fleet.endpoints, lambda: None, BLOCK)
    play(full, "round-robin", SMALL, seed=1)
    with pytest.raises(RuntimeError, match="in the cache that was emptied"):
        play(full, "round-robin", SMALL, seed=1)


def test_an_error_of_an_engine_ends_the_episode_and_its_threads(fleet: Fleet) -> None:
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="answered 400"):
        play(fleet, "round-robin", Shape(chats=3, turns=2, shared=0, system_tokens=3000), seed=1)
    assert set(threading.enumerate()) <= before


def test_the_client_reads_what_the_engine_says(fleet: Fleet) -> None:
    url, prompt = fleet.urls[0], list(range(5, 75))
    assert [ask(url, prompt, 5).cached_tokens for _ in range(2)] == [0, 64]
    answer = ask(url, prompt, 5)
    assert (answer.prompt_tokens, len(answer.output)) == (70, 5)


def test_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with_self = Processors([])
    without = copy.copy(with_self)
    without._own_s = lambda: 0.0  # type: ignore[method-assign]
    without._own = 0.0
    assert sum(number * number for number in range(3_000_000)) > 0
    # Both look at the same moment: what others do in between would be of one of them only.
    busy_s, now_s = processor._busy_s(), time.monotonic()
    monkeypatch.setattr(processor, "_busy_s", lambda: busy_s)
    monkeypatch.setattr(processor, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert with_self.others() < without.others()


SETTINGS = {name: getattr(SMALL, name) for name in Shape.__dataclass_fields__}
SETTINGS |= {"size": "mid", "dtype": "float32", "tokens_per_cache": 4096, "distinct": 8192, "last_prompt": 300}
RUN = {"settings": SETTINGS, "cpu": "a cpu", "cores": 2, "vllm": "0", "python": "3", "commit": "abc"}
ALONE = [{"tokens": 1024, "cold_s": 0.5, "warm_s": 0.125}]


def _episode(first_s: list[float], *, cached: int, wall_s: float) -> dict[str, Any]:
    turns = [1] + [2] * (len(first_s) - 1)
    requests = [
        {"chat": 0, "turn": turn, "prompt": 1000, "cached": cached, "possible": 500, "first_s": at, "whole_s": at}
        for turn, at in zip(turns, first_s, strict=True)
    ]
    extra = {"others": 0.25, "load": 3.0, "hits": cached * len(first_s), "expected_tokens": 7 * cached}
    return {"requests": requests, "wall_s": wall_s, **extra, "time": "2026-01-01 00:00"}


def test_figures_are_medians_over_rounds_and_ratios_are_within_a_round(tmp_path: Path) -> None:
    slow, fast = [1.0, 2.0, 3.0, 10.0], [1.0, 1.0, 1.0, 5.0]
    rounds = [
        {
            policy: _episode([scale * at for at in (fast if aware else slow)], cached=400 * aware, wall_s=10 * scale)
            for policy in POLICIES
            for aware in [policy.endswith("aware")]
        }
        for scale in (1.0, 4.0, 2.0)
    ]
    assert pages.spread(rounds, "round-robin", "mean").values == (4.0, 16.0, 8.0)
    assert pages.spread(rounds, "kv-aware", "p50").values == (1.0, 4.0, 2.0)
    assert pages.spread(rounds, "kv-aware", "p99").values == (5.0, 20.0, 10.0)
    assert pages.ratio(rounds, "kv-aware", "mean").values == (0.5, 0.5, 0.5)
    assert pages.ratio(rounds, "kv-aware", "later").values == pytest.approx([7 / 15] * 3)
    text = pages.page(RUN, ALONE, rounds, "images/a.svg")
    assert "| round-robin | 8.00 (4.00-16.00) | 4.00 (2.00-8.00) | 20.00 (10.00-40.00) | 20 (10-40) |" in text
    ratios = "0.50 (0.50-0.50) | 0.47 (0.47-0.47) | 1.00 (1.00-1.00) |"
    assert f"| kv-aware | 0.50 (0.50-0.50) | 0.50 (0.50-0.50) | {ratios}" in text
    assert "| kv-aware | 40.0% (40.0%-40.0%) | 50.0% (50.0%-50.0%) |" in text
    assert "`kv-aware` expected 8,400 cached tokens, the engines found 4,800." in text
    assert "`round-robin` expected" not in text
    assert "answers say 9,600, and `vllm:prefix_cache_hits_total` rose by 9,600" in text
    assert "took 25% to 25% of all cores" in text
    pages.picture(rounds, tmp_path / "images" / "a.svg")
    drawn = (tmp_path / "images" / "a.svg").read_text("utf-8")
    assert drawn.startswith("<?xml")
    pages.picture(rounds, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text("utf-8") == drawn


def test_times_of_a_round_count_only_if_others_left_all_policies_alike() -> None:
    def played(others: float) -> dict[str, dict[str, Any]]:
        episodes = {policy: _episode([1.0, 2.0], cached=100, wall_s=3.0) for policy in POLICIES}
        episodes["round-robin"] |= {"others": others, "wall_s": 100 * others}
        return episodes

    rounds = [played(0.34), played(0.4), played(0.16), played(0.1)]  # all other episodes: 0.25
    assert pages.even(rounds) == [rounds[0], rounds[2]]
    text = pages.page(RUN, ALONE, rounds, "a.svg")
    assert "| 25 (16-34) |" in text
    assert "4 rounds of 2 requests per policy; times are of 2 of them" in text
    with pytest.raises(ValueError, match="in every round: play more"):
        pages.page(RUN, ALONE, rounds[1:2], "a.svg")


def test_quantiles_are_values_of_the_sample() -> None:
    sample = [float(value) for value in range(1, 101)]
    assert pages.quantile(sample, 0.99) == 99
    assert pages.quantile(sample, 0.5) == 50
    assert pages.quantile([3.0, 1.0, 2.0], 0.5) == median([3.0, 1.0, 2.0])
    assert pages.quantile([4.0], 0.01) == 4.0
