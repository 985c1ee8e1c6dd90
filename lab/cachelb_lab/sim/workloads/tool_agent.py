"""Traffic like Mooncake's tool-and-agent trace: chats, and templates with a short end of their own."""

from __future__ import annotations

from cachelb.common.arguments import MOST_TOKENS, whole
from cachelb_lab.sim.workloads.draft import Draft, Plan, Zipf, around
from cachelb_lab.sim.workloads.workload import Workload

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
