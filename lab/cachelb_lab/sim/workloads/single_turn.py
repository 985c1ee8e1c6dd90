"""Requests of one turn each: questions about retrieved documents, templates with an end of their own, long prompts."""

from __future__ import annotations

from itertools import islice
from typing import Literal

from cachelb.common.arguments import MOST_TOKENS, whole
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


_CHUNK_TOKENS = 512


def tool_agent(
    plan: Plan,
    *,
    long_share: float = 0.4,
    short_share: float = 0.25,
    long_templates: int = 12,
    short_templates: int = 20,
    popularity: float = 1.0,
    long_chunks: int = 12,
    short_chunks: int = 5,
    long_tail_chunks: int = 5,
    short_tail_chunks: int = 3,
    long_output_tokens: int = 12,
    short_output_tokens: int = 40,
    chat_tokens: int = 3_000,
    chat_output_tokens: int = 250,
) -> Workload:
    """Generate three classes of requests; a chunk is 512 tokens.

    Args:
        plan: How many, how fast, from which seed.
        long_share: Part of the requests with a long template and a very short answer.
        short_share: Part with a shorter template and a short answer; the rest are single chat rows.
        long_templates: How many long templates there are.
        short_templates: How many shorter ones.
        popularity: Exponent of how much more often the first templates are used.
        long_chunks: Length of a long template.
        short_chunks: Length of a shorter one.
        long_tail_chunks: Most chunks of a request's own behind a long template; at least one.
        short_tail_chunks: Likewise behind a shorter one.
        long_output_tokens: Median length of the answers.
        short_output_tokens: Likewise for shorter templates.
        chat_tokens: Median length of a chat row.
        chat_output_tokens: Median length of its answer.

    Returns:
        The workload.

    Raises:
        ValueError: Shares are negative or above 1 together.
    """
    if min(long_share, short_share) < 0 or long_share + short_share > 1:
        raise ValueError(f"long_share and short_share must add up to at most 1, got {long_share} and {short_share}")
    whole("long_tail_chunks", long_tail_chunks, 1, MOST_TOKENS // _CHUNK_TOKENS)
    whole("short_tail_chunks", short_tail_chunks, 1, MOST_TOKENS // _CHUNK_TOKENS)
    draft = Draft("tool-agent", plan)
    long = [draft.piece(long_chunks * _CHUNK_TOKENS) for _ in range(long_templates)]
    short = [draft.piece(short_chunks * _CHUNK_TOKENS) for _ in range(short_templates)]
    system = draft.piece(_CHUNK_TOKENS)
    long_zipf, short_zipf = Zipf(long_templates, popularity), Zipf(short_templates, popularity)
    while not draft.full:
        kind = float(draft.prefixes.random())
        if kind < long_share:
            template = long[int(long_zipf.draw(draft.prefixes, 1)[0])]
            chunks, output_tokens = long_tail_chunks, long_output_tokens
        elif kind < long_share + short_share:
            template = short[int(short_zipf.draw(draft.prefixes, 1)[0])]
            chunks, output_tokens = short_tail_chunks, short_output_tokens
        else:
            draft.ask([system], chat_tokens, chat_output_tokens)
            continue
        tail = draft.piece(int(draft.lengths.integers(1, chunks * _CHUNK_TOKENS + 1)))
        draft.request([template, tail], around(draft.lengths, output_tokens))
    return draft.finish()


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
