"""Multi-turn chats: people who read and think between the turns."""

from __future__ import annotations

from cachelb.sim.workloads.draft import Draft, Plan
from cachelb.sim.workloads.sessions import SessionKind, shared_texts, write_sessions
from cachelb.sim.workloads.workload import Workload


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
