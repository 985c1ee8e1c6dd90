"""Short chats mixed with questions about long documents, after Mooncake's synthetic workload.

That one mixes ShareGPT chats with the documents of L-Eval and LooGLE, with mean prompts of about
15,000 tokens; the texts are not used here, only lengths like theirs.
"""

from __future__ import annotations

from cachelb.sim.workloads.draft import Draft, Plan, around
from cachelb.sim.workloads.sessions import SessionKind, write_session
from cachelb.sim.workloads.workload import Workload

_CHAT = SessionKind("chat", 4.0, 120, 100, 220, 10.0, 32_000)


def long_documents(
    plan: Plan,
    *,
    chat_share: float = 0.5,
    document_tokens: tuple[int, int] = (18_000, 32_000),
    questions: float = 5.0,
    question_tokens: int = 60,
    output_tokens: int = 80,
    think_s: float = 20.0,
) -> Workload:
    """Generate chats, and readers who ask several questions about one long document each.

    Args:
        plan: How many requests, how fast sessions begin, from which seed.
        chat_share: Part of the sessions that are chats without a system prompt.
        document_tokens: Median lengths of the two kinds of documents, in equal parts.
        questions: Mean number of questions about a document; geometric. The next does not contain
            the answers before.
        question_tokens: Median length of a question.
        output_tokens: Median length of an answer.
        think_s: Median pause between an answer and the next question.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    if not 0 <= chat_share <= 1 or questions < 1:
        raise ValueError(f"need a share and at least one question, got {chat_share} and {questions}")
    draft = Draft("long-documents", plan)
    number = 0
    while not draft.full:
        number += 1
        if float(draft.prefixes.random()) < chat_share:
            write_session(draft, _CHAT, [], f"chat-{number}")
            continue
        median = document_tokens[int(draft.prefixes.integers(len(document_tokens)))]
        document = draft.piece(around(draft.lengths, median, 0.4))
        parent = -1
        for _ in range(int(draft.lengths.geometric(1 / questions))):
            pause_s = around(draft.pauses, think_s * 1000) / 1000 if parent >= 0 else 0.0
            question = draft.piece(around(draft.lengths, question_tokens))
            parent = draft.request(
                [document, question],
                around(draft.lengths, output_tokens),
                parent=parent,
                think_s=pause_s,
                session=f"document-{number}",
            )
            if len(draft) == plan.count:
                break
    return draft.finish()
