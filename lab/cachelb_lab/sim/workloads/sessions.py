"""Sessions of chats and agents: a prompt is the whole history plus a new message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachelb_lab.sim.workloads.draft import Draft, Piece, Plan, Zipf, around
from cachelb_lab.sim.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class SessionKind:
    """The shape of sessions of one kind."""

    name: str  # in session ids
    turns: float  # mean number; geometric
    first_tokens: float  # median of the first message
    new_tokens: float  # median of a later turn, besides the answer before it
    output_tokens: float  # median of an answer
    think_s: float  # median pause between an answer and the next turn
    max_prompt_tokens: int  # a session ends before a prompt gets longer
    spreads: tuple[float, float, float] = (0.6, 0.6, 0.6)  # deviations of the logarithms of messages, answers, pauses

    def __post_init__(self) -> None:
        for key, least in {"turns": 1, "first_tokens": 1, "new_tokens": 1, "output_tokens": 1, "think_s": 0}.items():
            if not least <= getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be at least {least}, got {getattr(self, key)}")


def shared_texts(draft: Draft, count: int, tokens: tuple[int, int]) -> list[Piece]:
    """Return texts that sessions share, of a length uniform between the two."""
    low, high = tokens
    if count < 1 or not 1 <= low <= high:
        raise ValueError(f"need at least one shared text of 1 or more tokens, got {count} of {low} to {high}")
    return [draft.piece(int(draft.lengths.integers(low, high + 1))) for _ in range(count)]


def write_sessions(
    draft: Draft,
    kind: SessionKind,
    systems: Sequence[Piece],
    *,
    popularity: float = 1.0,
    resumed: Callable[[], list[Piece]] = list,
) -> None:
    """Append sessions until there are enough requests; the last one may be cut short.

    They begin with one of `systems`, the first ones more often by the exponent `popularity`, and what `resumed` makes.
    """
    zipf = Zipf(len(systems), popularity)
    number = 0
    while not draft.full:
        system = systems[int(zipf.draw(draft.prefixes, 1)[0])]
        write_session(draft, kind, [system, *resumed()], f"{kind.name}-{number}")
        number += 1


def write_session(draft: Draft, kind: SessionKind, history: list[Piece], name: str) -> None:
    """Append one session, behind a history."""
    history = list(history)
    parent, new_tokens = -1, kind.first_tokens
    turns = int(draft.lengths.geometric(1 / kind.turns))
    for _ in range(turns):
        message = draft.piece(around(draft.lengths, new_tokens, kind.spreads[0]))
        if parent >= 0 and sum(piece.tokens for piece in history) + message.tokens > kind.max_prompt_tokens:
            return
        history.append(message)
        answer = draft.piece(around(draft.lengths, kind.output_tokens, kind.spreads[1]))
        think_s = around(draft.pauses, kind.think_s * 1000, kind.spreads[2]) / 1000 if parent >= 0 else 0.0
        parent = draft.request(history, answer, parent=parent, think_s=think_s, session=name)
        if draft.full:
            return
        history.append(answer)
        new_tokens = kind.new_tokens


def chat(
    plan: Plan,
    *,
    apps: int = 8,
    system_tokens: tuple[int, int] = (300, 1_500),
    turns: float = 6.0,
    first_tokens: int = 150,
    new_tokens: int = 120,
    output_tokens: int = 220,
    think_s: float = 12.0,
    max_prompt_tokens: int = 32_000,
) -> Workload:
    """Generate chats; those of an app begin with its system prompt.

    Sessions arrive by the plan. A turn's prompt is the whole history, answers included, and the
    new message; it arrives after the answer before and a pause.

    Args:
        plan: How many requests, how fast sessions begin, from which seed.
        apps: How many system prompts there are; the first are used more.
        system_tokens: The shortest and the longest of them.
        turns: Mean number of turns; geometric.
        first_tokens: Median tokens of the first message.
        new_tokens: Median tokens of a later one.
        output_tokens: Median length of an answer.
        think_s: Median pause between an answer and the next turn.
        max_prompt_tokens: A session ends before a prompt gets longer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    draft = Draft("chat", plan)
    kind = SessionKind("chat", turns, first_tokens, new_tokens, output_tokens, think_s, max_prompt_tokens)
    write_sessions(draft, kind, shared_texts(draft, apps, system_tokens))
    return draft.finish()


def agent(
    plan: Plan,
    *,
    toolsets: int = 5,
    toolset_tokens: tuple[int, int] = (3_000, 8_000),
    turns: float = 15.0,
    task_tokens: int = 250,
    tool_tokens: int = 350,
    output_tokens: int = 60,
    gap_s: float = 1.2,
    max_prompt_tokens: int = 60_000,
) -> Workload:
    """Generate sessions of agents; the history grows by what tools return.

    Args:
        plan: How many requests, how fast sessions begin, from which seed.
        toolsets: How many descriptions of tools there are; the first are used more.
        toolset_tokens: The shortest and the longest of them.
        turns: Mean number of turns; geometric.
        task_tokens: Median tokens of the task.
        tool_tokens: Median tokens that a tool returns.
        output_tokens: Median length of a call.
        gap_s: Median time that a tool takes.
        max_prompt_tokens: A session ends before a prompt gets longer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    draft = Draft("agent", plan)
    kind = SessionKind("agent", turns, task_tokens, tool_tokens, output_tokens, gap_s, max_prompt_tokens)
    write_sessions(draft, kind, shared_texts(draft, toolsets, toolset_tokens))
    return draft.finish()


def coding_agent(
    plan: Plan,
    *,
    toolsets: int = 12,
    toolset_tokens: tuple[int, int] = (14_000, 22_000),
    turns: float = 65.0,
    resumed_share: float = 0.35,
    resumed_tokens: int = 110_000,
    task_tokens: int = 1_000,
    tool_tokens: int = 270,
    output_tokens: int = 220,
    gap_s: float = 10.0,
    max_prompt_tokens: int = 300_000,
) -> Workload:
    """Generate sessions of coding agents: long prompts, short answers, and a third that resume an earlier session.

    The defaults are near 372 recorded sessions of kv-cache-tester, where prompts have 100,000 tokens in the median and
    210,000 at the 90th percentile; 96 % of the tokens were in prompts before, 98 % here.

    Args:
        plan: How many requests, how fast sessions begin, from which seed.
        toolsets: How many descriptions of tools there are; the first are used more.
        toolset_tokens: The shortest and the longest of them.
        turns: Mean number of turns; geometric.
        resumed_share: Part of the sessions that begin with the history of an earlier one, which no other shares.
        resumed_tokens: Median tokens of that.
        task_tokens: Median tokens of the task.
        tool_tokens: Median tokens that a tool returns.
        output_tokens: Median length of an answer.
        gap_s: Median time that tools and people take between an answer and the next turn.
        max_prompt_tokens: A session ends before a prompt gets longer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    draft = Draft("coding-agent", plan)
    kind = SessionKind(
        *("coding-agent", turns, task_tokens, tool_tokens, output_tokens, gap_s, max_prompt_tokens),
        spreads=(1.8, 0.9, 1.4),
    )

    def resumed() -> list[Piece]:
        if float(draft.prefixes.random()) >= resumed_share:
            return []
        return [draft.piece(min(around(draft.lengths, resumed_tokens, 0.8), max_prompt_tokens))]

    write_sessions(draft, kind, shared_texts(draft, toolsets, toolset_tokens), resumed=resumed)
    return draft.finish()


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

    After Mooncake's synthetic workload, which mixes ShareGPT chats with the documents of L-Eval and LooGLE, with mean
    prompts of about 15,000 tokens; the texts are not used here, only lengths like theirs.

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
    if questions < 1:
        raise ValueError(f"questions must be at least 1, got {questions}")
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
            turn = {"parent": parent, "think_s": pause_s, "session": f"document-{number}"}
            parent = draft.ask([document], question_tokens, output_tokens, **turn)
            if len(draft) == plan.count:
                break
    return draft.finish()
