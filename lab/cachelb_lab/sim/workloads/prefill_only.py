"""Requests that end with their first token, as the prefill half of a split fleet sees them."""

from __future__ import annotations

from cachelb_lab.sim.workloads.draft import Draft, Plan, Zipf, around
from cachelb_lab.sim.workloads.workload import Workload


def prefill_only(
    plan: Plan,
    *,
    prefixes: int = 150,
    popularity: float = 0.8,
    prefix_tokens: int = 3_000,
    question_tokens: int = 2_000,
) -> Workload:
    """Generate long prompts with answers of one token; half of a prompt may be shared.

    Args:
        plan: How many, how fast, from which seed.
        prefixes: How many prefixes there are.
        popularity: Exponent of how much more often the first are used.
        prefix_tokens: Median length of a prefix.
        question_tokens: Median length of the rest.

    Returns:
        The workload.

    Raises:
        ValueError: There is no prefix, or the exponent is negative.
    """
    draft = Draft("prefill-only", plan)
    zipf = Zipf(prefixes, popularity)
    texts = [draft.piece(around(draft.lengths, prefix_tokens, 0.5)) for _ in range(prefixes)]
    while not draft.full:
        text = texts[int(zipf.draw(draft.prefixes, 1)[0])]
        draft.request([text, draft.piece(around(draft.lengths, question_tokens))], 1)
    return draft.finish()
