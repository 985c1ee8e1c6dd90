"""The steps of `make bench-engine`, with fake engines in place of vLLM."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches.engine import __main__ as bench
from benches.engine import alone, figures, goals
from benches.engine import episode as episodes
from benches.engine import page as pages
from benches.engine.calibration import Speed, fit, gateway_s
from benches.engine.client import ask
from benches.engine.episode import POLICIES, Fleet, play
from benches.engine.processor import Processors
from benches.engine.replay import replay
from benches.engine.workload import Known, Shape, plan
from benches.gpu import __main__ as gpu
from benches.gpu import singles
from tests.gateways import wait_until

from cachelb import Router
from cachelb_fakes import FakeFleet

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
        assert 0 <= each["sent_s"] <= episode["wall_s"] - each["whole_s"]
        assert len(each["output"]) == 8
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
    both_ways = "round-robin, prefill-times-batch+events(crowding=1)"
    policies = ["round-robin", "prefill-times-batch(crowding=1)+events"]
    command = ["bench", "--chats", "9", "--turns", "2", "--rounds", "2", "--runs", str(runs), "--out", str(out)]
    command += ["--policy", both_ways]

    def run(*extra: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        bench.main()
        return [json.loads(line)["cell"] for line in runs.read_text("utf-8").splitlines()]

    monkeypatch.setattr(bench, "engines", lambda given, shape: engines(2, kv_blocks=1024))
    for name, value in {"COLD": (64, 160, 320), "PARTS": ((64, 160),), "LONGEST": 320, "REPEATS": 1}.items():
        monkeypatch.setattr(alone, name, value)
    monkeypatch.setattr(Processors, "others", lambda self: 0.0)  # else the page is refused while the machine is busy
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="no round is complete"):
            run("--minutes", "0")
        first = run("--rounds", "1")
        assert first == ["settings", "alone/0", "alone/1", *(f"0/{policy}" for policy in policies)]
        assert "1 rounds of 18 requests per policy" in out.read_text("utf-8")
        both = run()
        assert both == [*first, "alone/2", *(f"1/{policy}" for policy in reversed(policies))]
        assert "2 rounds of 18 requests per policy" in out.read_text("utf-8")
        assert "after another start" not in out.read_text("utf-8")
        more = [*both, "alone/3", "0/adaptive", "1/adaptive"]
        assert run("--policy", f"{both_ways},adaptive") == more
        assert "In 2 rounds, some policies were played after another start" in out.read_text("utf-8")
        assert run("--policy", "adaptive,round-robin") == more
        text = out.read_text("utf-8")
        assert "\n| adaptive |" in text
        assert "\n| prefill" not in text
        assert (out.parent / "images" / "engines-measured.svg").exists()
        monkeypatch.setattr(bench, "engines", None)
        assert run() == run("--write") == more
        with pytest.raises(SystemExit, match="is of other settings"):
            run("--turns", "3")
        for bad in (["--turns", "1"], ["--policy", "adaptive"], ["--policy", "round-robin,adaptive+oracle"]):
            with pytest.raises(SystemExit):
                run(*bad)
    finally:
        signal.signal(signal.SIGTERM, before)
    errors = capsys.readouterr().err
    assert "--turns must be 2 or more, got 1" in errors
    assert "--policy must have round-robin" in errors
    assert "adaptive+oracle is no router that engines could have" in errors


def test_an_error_of_an_engine_and_a_full_cache_end_the_episode_and_its_threads(fleet: Fleet) -> None:
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="answered 400"):
        play(fleet, "round-robin", Shape(chats=3, turns=2, shared=0, system_tokens=3000), seed=1)
    assert set(threading.enumerate()) <= before
    full = Fleet(fleet.urls, fleet.endpoints, lambda: None, BLOCK)
    with pytest.raises(RuntimeError, match="in the cache that was emptied"):
        play(full, "round-robin", SMALL, seed=1)


SETTINGS = {name: getattr(SMALL, name) for name in Shape.__dataclass_fields__}
SETTINGS |= {"size": "mid", "dtype": "float32", "tokens_per_cache": 4096, "distinct": 8192, "last_prompt": 300}
RUN = {"settings": SETTINGS, "cpu": "a cpu", "cores": 2, "vllm": "0", "python": "3", "commit": "abc"}
SPEED = Speed(request_s=0.02, prompt_s=4e-6, pass_s=0.005, token_s=1e-4, pair_s=3e-8, context_s=1e-6)


def _single(prompt: int, cached: int) -> dict[str, float]:
    first_s = SPEED.first_s(prompt, cached)
    whole_s = first_s + 16 * SPEED.token_after_s(prompt + 8.5)
    return {"engine": 0, "prompt": prompt, "cached": cached, "output": 17, "first_s": first_s, "whole_s": whole_s}


SINGLES = [_single(*kind) for kind in ((512, 0), (512, 480), (3072, 0), (3072, 2048), (5120, 4096), (8192, 0))]
CHECKS = {"behind_s": 0.9, "token_together_s": 0.0125}
SESSION = {"singles": SINGLES, "alone": SINGLES[:2], "gateway_s": 0.001, "checks": CHECKS}


def _episode(first_s: list[float], *, cached: int, wall_s: float) -> dict[str, Any]:
    turns = [1] + [2] * (len(first_s) - 1)
    requests = [
        {"chat": 0, "turn": turn, "prompt": 1000, "cached": cached, "possible": 500, "first_s": at, "whole_s": at}
        for turn, at in zip(turns, first_s, strict=True)
    ]
    extra = {"others": 0.25, "load": 3.0, "hits": cached * len(first_s), "expected_tokens": 7 * cached}
    return {"requests": requests, "wall_s": wall_s, **extra, "time": "2026-01-01 00:00"}


def test_figures_are_medians_over_rounds_and_ratios_are_within_a_round(tmp_path: Path) -> None:
    def played(policy: str, scale: float) -> dict[str, Any]:
        aware = policy.endswith("aware")
        first_s = [scale * at for at in ([1.0, 1.0, 1.0, 5.0] if aware else [1.0, 2.0, 3.0, 10.0])]
        return _episode(first_s, cached=400 * aware, wall_s=10 * scale)

    rounds = [{policy: played(policy, scale) for policy in POLICIES} for scale in (1.0, 4.0, 2.0)]
    assert [figures.quantile([*map(float, range(100, 0, -1))], share) for share in (0.99, 0.5)] == [99, 50]
    assert figures.spread(rounds, "round-robin", "mean").values == (4.0, 16.0, 8.0)
    assert figures.spread(rounds, "kv-aware", "p50").values == (1.0, 4.0, 2.0)
    assert figures.spread(rounds, "kv-aware", "p99").values == (5.0, 20.0, 10.0)
    assert figures.ratio(rounds, "kv-aware", "mean").values == (0.5, 0.5, 0.5)
    assert figures.ratio(rounds, "kv-aware", "later").values == pytest.approx([7 / 15] * 3)
    text = pages.page(RUN, [SESSION], rounds, [rounds] * 3, "images/a.svg")
    assert "| round-robin | 8.00 (4.00-16.00) | 4.00 (2.00-8.00) | 20.00 (10.00-40.00) | 20 (10-40) |" in text
    ratios = "0.50 (0.50-0.50) | 0.47 (0.47-0.47) | 1.00 (1.00-1.00) |"
    assert f"| kv-aware | 0.50 (0.50-0.50) | 0.50 (0.50-0.50) | {ratios}" in text
    assert "| kv-aware | 40.0% (40.0%-40.0%) | 50.0% (50.0%-50.0%) |" in text
    assert "`kv-aware` expected 8,400 cached tokens, the engines found 4,800." in text
    assert "`round-robin` expected" not in text
    assert "answers report 9,600, and `vllm:prefix_cache_hits_total` rose by 9,600" in text
    assert "| 512 | 0 | 82.2 | 82.2 | 82.2 | 5.6 | 5.6 |" in text
    assert "between tokens of three answers at a time | 12.5 | 8.5 |" in text
    assert "took 25% to 25% of all cores" in text
    pages.picture(rounds, tmp_path / "images" / "a.svg")
    pages.picture(rounds, tmp_path / "again.svg")
    drawn = (tmp_path / "images" / "a.svg").read_text("utf-8")
    assert drawn[:5] == "<?xml"
    assert (tmp_path / "again.svg").read_text("utf-8") == drawn


def test_times_of_a_round_count_only_if_others_left_all_policies_alike() -> None:
    def played(others: float) -> dict[str, dict[str, Any]]:
        episodes = {policy: _episode([1.0, 2.0], cached=100, wall_s=3.0) for policy in POLICIES}
        episodes["round-robin"] |= {"others": others, "wall_s": 100 * others}
        return episodes

    rounds = [played(0.34), played(0.4), played(0.16), played(0.1)]  # all other episodes: 0.25
    assert figures.even(rounds) == [rounds[0], rounds[2]]
    text = pages.page(RUN, [SESSION], rounds, [rounds] * 4, "a.svg")
    assert "| 25 (16-34) |" in text
    assert "4 rounds of 2 requests per policy; times are of 2 of them" in text
    with pytest.raises(ValueError, match="in every round: play more"):
        pages.page(RUN, [SESSION], rounds[1:2], [rounds[1:2]], "a.svg")


def test_the_fit_finds_the_speed_that_single_requests_were_made_with() -> None:
    late = [{**row, "first_s": 9.0, "whole_s": 99.0} for row in SINGLES]
    found = fit([*SINGLES, *late, *SINGLES])
    for name in Speed.__dataclass_fields__:
        assert getattr(found, name) == pytest.approx(getattr(SPEED, name), rel=1e-6), name
    # Tokens that all came at once have no time between them.
    at_once = [{**SINGLES[0], "whole_s": SINGLES[0]["first_s"]}, *SINGLES[1:]]
    assert fit(at_once).pass_s == pytest.approx(SPEED.pass_s, rel=1e-6)
    assert gateway_s([{"gateway_s": value} for value in (3.0, 1.0, 2.0)]) == 2.0
    faster = [{**row, "first_s": row["first_s"] - 0.025} for row in SINGLES]  # by more than requests and passes take
    assert min(getattr(fit(faster), name) for name in Speed.__dataclass_fields__) == 0.0
    with pytest.raises(ValueError, match="6 kinds of single requests or more"):
        fit(SINGLES[:5])


@pytest.mark.parametrize(("prompt", "answer"), [(160, 1), (1600, 8), (5120, 8)])
def test_simulated_engines_are_as_fast_as_they_were_fitted(prompt: int, answer: int) -> None:
    shape = Shape(1, 1, 0, 0, prompt - 64, (64, 64), answer, in_flight=1)
    fleet = SPEED.fleet(2, 32_768)
    assert [worker.cache_tokens for worker in fleet] == [32_768] * 2
    (request,) = replay(fleet, SPEED.signals(0.001, prompt), "round-robin", shape, seed=1)["requests"]
    assert request["first_s"] == pytest.approx(SPEED.first_s(prompt, 0) + 0.001, rel=1e-3)
    contexts = range(prompt + 1, prompt + answer)
    rest_s = sum(SPEED.token_after_s(context) for context in contexts)
    assert request["whole_s"] - request["first_s"] == pytest.approx(rest_s, rel=2e-3)


def test_the_simulated_loop_is_closed_and_draws_as_the_clients_do(fleet: Fleet) -> None:
    """With one client nothing depends on times, so the fake engines must have the same requests and the same hits."""
    shape = replace(SMALL, in_flight=1)
    real = play(fleet, "round-robin", shape, seed=5)["requests"]
    simulated = replay(SPEED.fleet(2, 4096), SPEED.signals(0.0, 200), "round-robin", shape, seed=5)["requests"]
    for key in ("chat", "turn", "prompt", "possible"):
        assert [each[key] for each in simulated] == [each[key] for each in real], key
    for ours, theirs in zip(simulated, real, strict=True):  # fakes do not cache what answers fill: a block at most
        assert 0 <= ours["cached"] - theirs["cached"] <= BLOCK


def test_simulated_clients_send_no_more_than_they_may_and_no_turn_before_the_last_one_ended() -> None:
    found = replay(SPEED.fleet(2, 4096), SPEED.signals(0.0, 200), "adaptive", SMALL, seed=1)
    requests = found["requests"]
    assert sorted((each["chat"], each["turn"]) for each in requests) == [(c, t) for c in range(5) for t in (1, 2, 3)]
    spans = {(each["chat"], each["turn"]): (each["sent_s"], each["sent_s"] + each["whole_s"]) for each in requests}
    for (chat, turn), (sent_s, _) in spans.items():
        assert sum(begin <= sent_s < end for begin, end in spans.values()) <= SMALL.in_flight
        if turn > 1:
            assert sent_s >= spans[chat, turn - 1][1]
    assert found["wall_s"] == max(end for _, end in spans.values())
    assert sum(sent_s == 0 for sent_s, _ in spans.values()) == SMALL.in_flight


CACHED = {"round-robin": 300, "adaptive": 480, "kv-aware": 500}


def _rounds(means: dict[str, list[float]], cached: dict[str, int]) -> figures.Rounds:
    return [
        {policy: _episode([times[number]], cached=cached[policy], wall_s=1.0) for policy, times in means.items()}
        for number in range(len(means["round-robin"]))
    ]


def test_goals_that_do_not_hold_come_first() -> None:
    real = _rounds({"round-robin": [1.0, 4.0] * 2, "adaptive": [0.5, 2.1] * 2, "kv-aware": [0.4, 1.6] * 2}, CACHED)
    times = {"round-robin": [1.0] * 4, "adaptive": [0.35] * 4, "kv-aware": [0.4] * 4}
    same = _rounds(times, CACHED | {"adaptive": 449})
    lines = goals.goals(real, [[each] * 2 for each in same]).splitlines()[2:]
    assert [line.rsplit("|", 2)[1].strip() for line in lines] == ["**no**"] * 4 + ["yes"] * 2
    behind, ratio, points, order, least, share = lines
    assert "`adaptive`: mean TTFT behind no other" in behind
    assert "1.28 (x or / 1.05) of `kv-aware`'s" in behind
    assert "`adaptive` -32%" in ratio
    assert "kv-aware" not in ratio
    assert "`adaptive` -3.1" in points
    assert "`adaptive` and `kv-aware`" in order
    assert "at most 0.75" in least
    assert "0.51 (x or / 1.05)" in least
    assert "0.960" in share


def test_engines_that_run_are_measured_in_turns_and_the_best_comes_first(fleet: Fleet) -> None:
    rounds = gpu.measure(fleet, ["round-robin", "adaptive+events"], replace(SMALL, in_flight=1), rounds=2)
    assert [list(each) for each in rounds] == [["round-robin", "adaptive+events"], ["adaptive+events", "round-robin"]]
    cached = {policy: figures.spread(rounds, policy, "cached").values for policy in rounds[0]}
    assert all(aware > blind for aware, blind in zip(cached["adaptive+events"], cached["round-robin"], strict=True))
    lines = gpu.table(rounds).splitlines()
    assert sorted(line.split()[0] for line in lines[1:]) == ["adaptive+events", "round-robin"]
    with pytest.raises(SystemExit, match="/reset_prefix_cache: start it with VLLM_SERVER_DEV_MODE=1"):
        gpu.empty(fleet.urls)


def test_single_requests_stand_beside_the_simulators(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeFleet(1, block_size=BLOCK) as fakes:
        arguments = ["--url", fakes.urls[0], "--gpu", "h200", "--block-size", str(BLOCK), "--repeats", "1"]
        singles.main([*arguments, "--prompts", "64,4096", "--answers", "2x64"])
    prompts, tokens = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert [line[:24].strip() for line in (*prompts, *tokens)] == [
        "tokens of the prompt",
        "64",
        "4,096",
        "requests x prompt",
        "2 x 64",
    ]
    assert singles.table("x", ["a"], [0.2], [0.05]).split()[-4:] == ["a", "200.0", "50.0", "0.25"]
    # By the formula of docs/maintainers/simulator-measured.md, with a mfu of .72.
    rate = 0.72 * 989e12
    expected_s = 4096 * 2 * 6.98e9 / rate + 4 * 32 * 128 * 32 * 4096 * 2048 / (0.6 * rate) + 0.002
    assert float(prompts[2].split()[2]) == pytest.approx(1e3 * expected_s, rel=0.01)
    for wrong in ("0x64", "64", "2x64x1", "twoxtwo"):
        with pytest.raises(SystemExit, match="2"):
            singles.main([*arguments, "--answers", wrong])
        assert f"--answers: must be like {singles.ANSWERS}, got {wrong!r}" in capsys.readouterr().err


def test_rounds_that_are_whole_are_kept_when_interrupted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def interrupted(_fleet: Fleet, policy: str, _shape: Shape, *, seed: int) -> figures.Episode:
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append(policy)
        return {"seed": seed}

    monkeypatch.setattr(gpu, "play", interrupted)
    assert gpu.measure(fleet, ["round-robin", "adaptive"], SMALL, rounds=3) == [
        {"round-robin": {"seed": 0}, "adaptive": {"seed": 0}}
    ]
    with pytest.raises(KeyboardInterrupt):
        gpu.measure(fleet, ["round-robin", "adaptive"], SMALL, rounds=3)


def test_an_admission_of_a_policy_holds_what_the_gateway_sends(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    routers: list[Router[str]] = []

    def kept(*arguments: Any, **options: Any) -> Router[str]:
        routers.append(Router(*arguments, **options))
        return routers[-1]

    monkeypatch.setattr(episodes, "Router", kept)
    episode = play(fleet, "adaptive(max_wait_s=none)+events", SMALL, seed=1)
    assert len(episode["requests"]) == 15
    assert sum(band.admitted + band.released for band in routers[-1].stats().admission) == 15
    play(fleet, "adaptive+events", SMALL, seed=1)
    assert not routers[-1].stats().admission


def test_a_refused_request_is_sent_again_until_it_is_answered() -> None:
    with FakeFleet(1) as fakes:
        fakes.workers[0].fail("status", status=429, retry_after_s=0, times=2)
        answer = ask(fakes.urls[0], list(range(10)), 4)
        assert (answer.refused, len(answer.output), fakes.workers[0].counts.faults) == (2, 4, {"429": 2})
        # Without a time to come back it is an error as any other.
        fakes.workers[0].fail("status", status=429, times=1)
        with pytest.raises(RuntimeError, match="answered 429"):
            ask(fakes.urls[0], list(range(10)), 4)
