"""Agents with tools: a long description of the tools, many short turns, small pauses."""

from __future__ import annotations

from cachelb.sim.workloads.draft import Draft, Plan
from cachelb.sim.workloads.sessions import SessionKind, shared_texts, write_sessions
from cachelb.sim.workloads.workload import Workload


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
