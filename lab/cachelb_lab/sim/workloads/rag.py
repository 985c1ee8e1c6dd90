"""Questions about retrieved documents: what prompts share depends on the documents' order."""

from __future__ import annotations

from itertools import islice
from typing import Literal

from cachelb_lab.sim.workloads.draft import Draft, Plan, Zipf, around
from cachelb_lab.sim.workloads.workload import Workload

_DRAWS = 200
"""For each document of a prompt, until one that was not found."""


def rag(
    plan: Plan,
    *,
    documents: int = 400,
    popularity: float = 1.0,
    most_per_prompt: int = 5,
    document_tokens: int = 900,
    system_tokens: int = 400,
    question_tokens: int = 60,
    output_tokens: int = 150,
    order: Literal["ranked", "sorted"] = "ranked",
) -> Workload:
    """Generate questions, each behind some documents of a corpus.

    Args:
        plan: How many, how fast, from which seed.
        documents: Size of the corpus.
        popularity: Exponent of how much more often the first documents are found.
        most_per_prompt: A prompt has from one to so many.
        document_tokens: Median length of a document.
        system_tokens: Length of the system prompt that all share.
        question_tokens: Median length of a question.
        output_tokens: Median length of an answer.
        order: ``"ranked"``: as found, so two prompts with the same documents may share none;
            ``"sorted"``: by number, popular ones first, which prompts share more often.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    if not 1 <= most_per_prompt <= documents:
        raise ValueError(f"most_per_prompt must be from 1 to the {documents} documents, got {most_per_prompt}")
    if order not in ("ranked", "sorted"):
        raise ValueError(f"order must be 'ranked' or 'sorted', got {order!r}")
    draft = Draft("rag" if order == "ranked" else f"rag-{order}", plan)
    zipf = Zipf(documents, popularity)
    corpus = [draft.piece(around(draft.lengths, document_tokens, 0.5)) for _ in range(documents)]
    system = draft.piece(system_tokens)
    while not draft.full:
        count = int(draft.lengths.integers(1, most_per_prompt + 1))
        found: dict[int, None] = {}
        for _ in range(_DRAWS * count):
            if len(found) == count:
                break
            found[int(zipf.draw(draft.prefixes, 1)[0])] = None
        # The others are so rare that they could be drawn for ever.
        rest = (number for number in range(documents) if number not in found)
        found |= dict.fromkeys(islice(rest, count - len(found)))
        numbers = sorted(found) if order == "sorted" else list(found)
        draft.ask([system, *(corpus[number] for number in numbers)], question_tokens, output_tokens)
    return draft.finish()
