"""One system prompt that most traffic shares: without a guard, one worker gets it all."""

from __future__ import annotations

from cachelb.sim.workloads.draft import Draft, Plan, around
from cachelb.sim.workloads.workload import Workload


def monopoly(
    plan: Plan,
    *,
    share: float = 0.8,
    system_tokens: int = 4_000,
    question_tokens: int = 200,
    output_tokens: int = 120,
) -> Workload:
    """Generate single questions, most of them behind the same system prompt.

    Args:
        plan: How many, how fast, from which seed.
        share: Part of the requests with that prompt; the others have one as long of their own.
        system_tokens: Its length.
        question_tokens: Median length of a question.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: ``share`` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be from 0 to 1, got {share}")
    draft = Draft("monopoly", plan)
    system = draft.piece(system_tokens)
    while not draft.full:
        common = float(draft.prefixes.random()) < share
        first = system if common else draft.piece(system_tokens)
        question = draft.piece(around(draft.lengths, question_tokens))
        draft.request([first, question], around(draft.lengths, output_tokens))
    return draft.finish()
