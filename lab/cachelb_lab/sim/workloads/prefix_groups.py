"""Published sets of prompts that groups share: Lodestar's, and the benchmark of llm-d and inference-perf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import number
from cachelb_lab.sim.checks import pairs
from cachelb_lab.sim.workloads.arrivals import Poisson, positive
from cachelb_lab.sim.workloads.draft import Draft, Piece, Plan, near
from cachelb_lab.sim.workloads.workload import Workload

MIXED_SHARES = (0.1, 0.3, 0.5, 0.7)
"""The shares that the mixed set has in equal parts."""

# Tokens of a class of prompts, groups of one set, requests of a group.
_CLASSES = ((1_000, 25, 10), (2_000, 25, 10), (4_000, 25, 10), (8_000, 5, 5))
_MILLION = 1_000_000
_SHARE_SPREAD, _LENGTH_SPREAD = 0.1, 0.05


def prefix_groups(
    plan: Plan, *, share: float | Sequence[float] = MIXED_SHARES, output_tokens: int = 100, output_spread: float = 0.1
) -> Workload:
    """Generate requests that share part of their prompt with those of their group.

    A set has prompts of about 1,000, 2,000 and 4,000 tokens, 25 groups of 10 each, and 5 groups of
    5 of 8,000; further sets have new groups. Requests of a group come at equal distances.

    Args:
        plan: How many, how fast, from which seed.
        share: Part of a prompt that its group has in common, or several in equal parts.
        output_tokens: Mean length of an answer.
        output_spread: Standard deviation of that, as a part of the mean.

    Returns:
        The workload.
    """
    shares = [share] if isinstance(share, (int, float)) else list(share)
    draft = Draft("prefix-" + ("mixed" if len(shares) > 1 else f"{shares[0] * 100:g}"), plan)
    _write(draft, lambda _row, group: shares[group % len(shares)], output_tokens, output_spread)
    return draft.finish()


def prefix_shift(
    plan: Plan, *, before: float = 0.05, after: float = 0.5, at: float = 0.5, output_tokens: int = 100
) -> Workload:
    """Generate `prefix_groups` whose shared part changes under way.

    Args:
        plan: How many, how fast, from which seed.
        before: The shared part at first.
        after: The shared part later.
        at: After which part of the requests it changes.
        output_tokens: Mean length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: A share is not between 0 and 1.
    """
    for name, value in {"before": before, "after": after, "at": at}.items():
        number(name, value, least=0.0, most=1.0)
    draft = Draft("prefix-shift", plan)
    turn = round(plan.count * at)
    _write(draft, lambda row, _group: before if row < turn else after, output_tokens, 0.1, turn=turn)
    return draft.finish()


def _write(
    draft: Draft,
    share_of: Callable[[int, int], float],
    output_tokens: int,
    output_spread: float,
    *,
    turn: int | None = None,
) -> None:
    """Append sets of groups until there are enough requests."""
    # No group straddles a change of the share: a new set begins there.
    stops = [stop for stop in (turn, draft.plan.count) if stop is not None]
    for stop in stops:
        while len(draft) < stop:
            for prefix, total in _one_set(draft, share_of)[: stop - len(draft)]:
                rest = draft.piece(total - prefix.tokens)
                draft.request([prefix, rest], near(draft.lengths, output_tokens, output_spread))


def _one_set(draft: Draft, share_of: Callable[[int, int], float]) -> list[tuple[Piece, int]]:
    """Return a set's requests in their order: prefix and length of the prompt."""
    placed: list[tuple[float, int, Piece, int]] = []
    number = 0
    for tokens, groups, each in _CLASSES:
        for _ in range(groups):
            share = share_of(len(draft), number)
            prefix = draft.piece(
                tokens * min(_MILLION, near(draft.lengths, share * _MILLION, _SHARE_SPREAD)) // _MILLION
            )
            phase = float(draft.prefixes.random())
            for nth in range(each):
                total = max(prefix.tokens + 1, near(draft.lengths, tokens, _LENGTH_SPREAD))
                placed.append(((nth + phase) / each, number, prefix, total))
            number += 1
    placed.sort(key=lambda entry: entry[:2])
    return [(prefix, total) for _, _, prefix, total in placed]


LLMD_STAGES = ((9, 30), (3, 210), (4, 180), (5, 120), (6, 120), (8, 90), (10, 70), (12, 60), (15, 50), (20, 50))
"""Rate and seconds of the stages of llm-d's published benchmark; the first one only warms up."""


def shared_prefix(
    plan: Plan,
    *,
    groups: int = 83,
    prompts: int = 3,
    system_tokens: int = 8_000,
    question_tokens: int = 1_000,
    output_tokens: int = 1_000,
    stages: Sequence[tuple[float, float]] | None = None,
    drain_s: float = 120.0,
) -> Workload:
    """Generate rounds through all prompts, each round in another order.

    Args:
        plan: How many, how fast, from which seed. With ``stages``, those decide how many and how fast.
        groups: System prompts.
        prompts: Questions behind each of them; a question is asked again in each round.
        system_tokens: Length of a system prompt.
        question_tokens: Length of a question.
        output_tokens: Length of every answer.
        stages: Rates (requests per second) with seconds; Poisson inside a stage.
        drain_s: Pause behind a stage, so that a fleet can finish. A real benchmark waits until it
            has; a workload cannot know when that is.

    Returns:
        The workload.

    Raises:
        ValueError: There is no prompt, or a stage without a request.

    Example:
        >>> stages = shared_prefix(Plan(seed=1), stages=LLMD_STAGES[:3])
        >>> len(stages), round(stages.infinite_hits(), 2)
        (1620, 0.94)
    """
    if groups < 1 or prompts < 1:
        raise ValueError(f"groups and prompts must be at least 1, got {groups} and {prompts}")
    if stages is not None:
        for rate, seconds in pairs("stages", stages):
            positive("rate", rate)
            positive("seconds", seconds)
        counts = [round(rate * seconds) for rate, seconds in stages]
        if not counts or min(counts) < 1:
            raise ValueError(f"every stage needs at least one request, got {list(stages)}")
        plan = replace(plan, count=sum(counts))
    draft = Draft("shared-prefix", plan)
    systems = [draft.piece(system_tokens) for _ in range(groups)]
    texts = [(system, draft.piece(question_tokens)) for system in systems for _ in range(prompts)]
    times = None if stages is None else _stage_times(stages, drain_s, draft.arrivals)
    order: list[int] = []
    while not draft.full:
        if not order:
            order = draft.prefixes.permutation(len(texts)).tolist()
        at_s = float("nan") if times is None else float(times[len(draft)])
        draft.request(texts[order.pop()], max(1, output_tokens), arrival_s=at_s)
    return draft.finish()


def _stage_times(
    stages: Sequence[tuple[float, float]], drain_s: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the arrivals of all stages."""
    start_s, times = 0.0, []
    for rate, seconds in stages:
        stage = Poisson(rate).times(round(rate * seconds), rng)
        times.append(stage + start_s)
        start_s += max(seconds, float(stage[-1])) + drain_s
    return np.concatenate(times)
