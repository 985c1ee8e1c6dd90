"""Requests that come together: nothing has been reported back when the next one is placed."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cachelb.sim.workloads.arrivals import Bursts
from cachelb.sim.workloads.draft import Draft, Plan, around
from cachelb.sim.workloads.workload import Workload


def bursts(
    plan: Plan,
    *,
    size: int = 15,
    period_s: float = 3.0,
    prefixes: Literal["same", "distinct", "pairs"] = "same",
    prefix_tokens: int = 4_000,
    question_tokens: int = 300,
    output_tokens: int = 150,
) -> Workload:
    """Generate bursts; the arrival process of the plan is not used.

    Args:
        plan: How many, from which seed.
        size: Requests of a burst, all at one instant.
        period_s: Seconds between two bursts.
        prefixes: ``"same"``: a burst has one prefix of its own; ``"distinct"``: each request has;
            ``"pairs"``: two requests of a burst have.
        prefix_tokens: Median length of a prefix.
        question_tokens: Median length of the rest.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    sharing = {"same": size, "distinct": 1, "pairs": 2}
    if prefixes not in sharing:
        raise ValueError(f"prefixes must be one of {', '.join(sharing)}, got {prefixes!r}")
    draft = Draft(
        "bursts" if prefixes == "same" else f"bursts-{prefixes}", replace(plan, arrivals=Bursts(size, period_s))
    )
    prefix = draft.piece(prefix_tokens)
    while not draft.full:
        if len(draft) % size % sharing[prefixes] == 0:
            prefix = draft.piece(around(draft.lengths, prefix_tokens, 0.3))
        question = draft.piece(around(draft.lengths, question_tokens))
        draft.request([prefix, question], around(draft.lengths, output_tokens))
    return draft.finish()
