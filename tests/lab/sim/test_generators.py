"""Generators: the same seed gives the same bytes, another rate the same prompts, and each reuses what it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cachelb_lab.sim.workloads import WORKLOADS, Constant, Draft, Gamma, Given, Plan, build, parse_arrivals

COUNT = 600

# Figures of 600 requests with seed 1: the hit fraction of an infinite cache, tokens of prompts and answers, the last
# arrival of a session's first. They change only when a generator does.
FIGURES = {
    "prefix-10": (0.08286, 1509623, 59595, 49.872244),
    "prefix-30": (0.254411, 1509623, 59595, 49.872244),
    "prefix-50": (0.426098, 1509623, 59595, 49.872244),
    "prefix-70": (0.597193, 1509623, 59595, 49.872244),
    "prefix-mixed": (0.344012, 1509623, 59595, 49.872244),
    "prefix-shift": (0.194806, 1498927, 60006, 49.872244),
    "rate-shift": (0.344012, 1509623, 59595, 43.436605),
    "chat": (0.946084, 1818527, 155987, 74.209576),
    "agent": (0.965062, 7794563, 42348, 69.483614),
    "coding-agent": (0.98558, 74018462, 185117, 364.087823),
    "rag": (0.35324, 2667876, 107697, 49.872244),
    "rag-sorted": (0.59129, 2667876, 107697, 49.872244),
    "monopoly": (0.765499, 2534293, 88215, 29.923346),
    "bursts": (0.862195, 2859902, 102754, 117.0),
    "bursts-distinct": (0.0, 2696411, 105934, 117.0),
    "tool-agent": (0.579326, 3163950, 72236, 49.872244),
    "shared-prefix": (0.830406, 5400000, 600000, 119.693385),
    "long-documents": (0.816534, 8366310, 109206, 133.493363),
    "prefill-only": (0.520142, 3913858, 600, 49.872244),
    "churn": (0.576446, 2062763, 71064, 49.872244),
    "hot-set": (0.849065, 2140745, 73279, 49.872244),
    "giants": (0.432296, 2394584, 88310, 49.872244),
    "tenants": (0.775083, 2747867, 115421, 49.872244),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_generator_makes_what_it_says(name: str) -> None:
    made = build(name, seed=1, count=COUNT)
    figures = (made.infinite_hits(), made.prompt_tokens.sum(), made.output_tokens.sum())
    assert (*figures, made.arrival_s[made.parent < 0].max()) == pytest.approx(FIGURES[name], abs=1e-6)


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(name: str) -> None:
    one, same, other = (build(name, seed=seed, count=150) for seed in (1, 1, 2))
    assert one == same
    assert one != replace(other, seed=1)


# Bursts have no rate beside their size and period.
@pytest.mark.parametrize("name", [name for name in WORKLOADS if not name.startswith("bursts")])
def test_another_rate_changes_arrivals_only(name: str) -> None:
    slow, fast = (build(name, seed=1, count=150, rate=rate) for rate in (2.0, 8.0))
    roots = slow.parent < 0
    if roots.all():
        assert np.allclose(slow.arrival_s, fast.arrival_s * 4, atol=1e-5)
        slow = replace(slow, arrival_s=fast.arrival_s)
        assert slow == fast
    else:  # sessions begin in one order, but their turns may stand elsewhere between those of others
        assert np.allclose(slow.arrival_s[roots], fast.arrival_s[fast.parent < 0] * 4, atol=1e-5)
        assert sessions(slow) == sessions(fast)


def sessions(workload: Any) -> dict[str, list[Any]]:
    turns: dict[str, list[Any]] = {}
    for row, name in enumerate(workload.session):
        facts = (int(workload.prompt_tokens[row]), int(workload.output_tokens[row]), float(workload.think_s[row]))
        blocks = (workload.prompt(row).tolist(), workload.answer(row).tolist())
        turns.setdefault(name, []).append((facts, blocks))
    return turns


@pytest.mark.parametrize("name", WORKLOADS)
def test_generator_is_valid_and_has_as_many_requests_as_asked_for(name: str) -> None:
    workload = build(name, seed=3, count=77, block_size=32).validate()
    assert (len(workload), workload.block_size, workload.name, workload.seed) == (77, 32, name, 3)
    assert (np.diff(workload.arrival_s[workload.parent < 0]) >= 0).all()


@pytest.mark.parametrize("name", ["chat", "agent", "coding-agent"])
def test_next_turn_begins_with_the_turn_before_and_its_answer(name: str) -> None:
    workload = build(name, seed=1, count=300)
    children = np.flatnonzero(workload.parent >= 0)
    assert len(children) > 100
    for child in children:
        parent = int(workload.parent[child])
        known = [*workload.prompt(parent).tolist(), *workload.answer(parent).tolist()]
        assert len(known) == (int(workload.prompt_tokens[parent]) + int(workload.output_tokens[parent])) // 16
        assert workload.prompt(int(child)).tolist()[: len(known)] == known
        assert workload.prompt_tokens[child] > workload.prompt_tokens[parent] + workload.output_tokens[parent]
        assert workload.think_s[child] > 0


def test_seeds_and_workloads_share_no_text() -> None:
    every = [build(name, seed=seed, count=50) for name in ("rag", "monopoly", "churn") for seed in (1, 2)]
    hashes = np.concatenate([np.unique(workload.hashes) for workload in every])
    assert len(np.unique(hashes)) == len(hashes)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_prompts_share_the_tokens_of_their_common_pieces(block_size: int) -> None:
    draft = Draft("pieces", Plan(block_size=block_size, count=4))
    first, second, third = draft.piece(70), draft.piece(33), draft.piece(50)
    for prompt in ([first, second], [first, third], [first, second, third], [first.__class__(first.name, 90)]):
        draft.request(prompt, 5)
    workload = draft.finish()
    expected = {(0, 1): 70, (0, 2): 103, (1, 2): 70, (0, 3): 70, (2, 3): 70}
    for (one, other), tokens in expected.items():
        shared = min(workload.prompt_tokens[one], workload.prompt_tokens[other], tokens) // block_size
        a, b = workload.prompt(one).tolist(), workload.prompt(other).tolist()
        assert a[:shared] == b[:shared]
        assert set(a[shared:]).isdisjoint(b[shared:])


def test_prefix_groups_come_at_equal_distances() -> None:
    workload = build("prefix-50", seed=1, count=775)
    rows: dict[int, list[int]] = {}
    for row in range(775):
        rows.setdefault(int(workload.prompt(row)[0]), []).append(row)
    assert sorted(map(len, rows.values())) == [5] * 5 + [10] * 75
    gaps = np.concatenate([np.diff(places) * len(places) / 775 for places in rows.values()])
    assert 0.8 < gaps.min() < gaps.max() < 1.2


def test_shared_prefix_visits_every_prompt_once_a_round() -> None:
    workload = build("shared-prefix", seed=1, count=30, groups=5, prompts=2)
    prompts = [int(workload.prompt(row)[-1]) for row in range(30)]
    assert len(set(prompts)) == 10
    rounds = [prompts[first : first + 10] for first in (0, 10, 20)]
    assert all(len(set(each)) == 10 for each in rounds)
    assert rounds[0] != rounds[1]


# === arrivals ===


@pytest.mark.parametrize(
    ("text", "rate", "cv"),
    [("poisson", 8.0, 1.0), ("constant", 8.0, 0.0), ("gamma:2.5", 8.0, 2.5), ("gamma:0.5", 8.0, 0.5)],
)
def test_arrivals_have_their_rate_and_spread(text: str, rate: float, cv: float) -> None:
    times = parse_arrivals(text, rate).times(20_000, np.random.default_rng(1))
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(rate, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-5)
    assert np.array_equal(times, np.rint(times * 1e6) / 1e6)


def test_a_step_changes_the_rate() -> None:
    times = parse_arrivals("step:20@10000", 5).times(20_000, np.random.default_rng(1))
    assert 1 / np.diff(times[:10_000]).mean() == pytest.approx(5, rel=0.05)
    assert 1 / np.diff(times[10_000:]).mean() == pytest.approx(20, rel=0.05)


def test_arrivals_of_a_trace_go_round() -> None:
    trace = Given(np.array([0.5, 1.0, 2.0]))
    assert trace.times(5, np.random.default_rng(0)).tolist() == [0.5, 1.0, 2.0, 2.5, 3.0]
    with pytest.raises(ValueError, match=r"seconds\[1\] is 0.5 behind 1: times must ascend"):
        Given(np.array([1.0, 0.5]))


@pytest.mark.parametrize("process", [lambda: Constant(0), lambda: Gamma(1, float("nan")), lambda: Gamma(-1, 1)])
def test_rates_must_be_positive(process: Any) -> None:
    with pytest.raises(ValueError, match=r"must be (above 0|a finite number), got (0|nan|-1)"):
        process()


# === by name ===


def test_unknown_names_and_options_are_answered_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="no workload 'monopol'; did you mean 'monopoly'"):
        build("monopol")
    with pytest.raises(TypeError, match="workload 'rag' has no option 'docs'; it has documents, "):
        build("rag", docs=3)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        build("rag", count=0)
    with pytest.raises(TypeError, match="set size and period_s"):
        build("bursts", arrivals="poisson")


def test_options_reach_the_generator() -> None:
    assert build("bursts", count=60, rate=30).arrival_s.tolist() == sorted([0.0, 0.5, 1.0, 1.5] * 15)
    assert build("rag", count=40, system_tokens=1600).prompt_tokens.min() > 1600
    assert WORKLOADS["prefix-30"].options["share"] == 0.3
