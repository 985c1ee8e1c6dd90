"""The benchmark of llm-d and inference-perf: groups of prompts, visited in reshuffled full rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cachelb_lab.sim.checks import pairs
from cachelb_lab.sim.workloads.arrivals import Poisson, positive
from cachelb_lab.sim.workloads.draft import Draft, Plan
from cachelb_lab.sim.workloads.workload import Workload

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
