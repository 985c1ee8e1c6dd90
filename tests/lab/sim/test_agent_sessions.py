"""Recorded sessions of agents: what they share, and what waits for what."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelb.errors import TraceError
from cachelb_lab.sim.workloads import Constant, Workload, read_agent_sessions, read_workload


def turn(at_s: float, ids: list[int], **fields: Any) -> dict[str, Any]:
    """Return a request with a prompt of whole blocks and five tokens."""
    return {"t": at_s, "in": 64 * len(ids) + 5, "out": 10, "hash_ids": ids, "api_time": 2.0, "think_time": 1.0} | fields


def agent(*requests: dict[str, Any], tools: int = 100, **fields: Any) -> dict[str, Any]:
    """Return a session, or a sub-agent, whose tools and system prompt take two blocks."""
    return {"id": "a", "tool_tokens": tools, "system_tokens": 30, "requests": list(requests)} | fields


def read(folder: Path, *rows: Any, **options: Any) -> Workload:
    file = folder / "agents.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return read_agent_sessions(file, arrivals=Constant(0.01), **options)


def blocks(workload: Workload) -> list[list[int]]:
    """Return the hashes of every prompt."""
    ends = workload.offsets.astype(int)
    return [workload.hashes[begin:end].tolist() for begin, end in pairwise(ends)]


def common(one: list[int], other: list[int]) -> int:
    """Count equal leading blocks, and check that no block behind them is equal."""
    equal = [a == b for a, b in zip(one, other, strict=False)]
    count = equal.index(False) if False in equal else len(equal)
    assert not set(one[count:]) & set(other[count:])
    return count


@pytest.mark.parametrize(("tools", "shared"), [(100, 2), (101, 0), (30, 0)])
def test_sessions_with_equal_tools_and_system_prompts_share_these_alone(
    tmp_path: Path, tools: int, shared: int
) -> None:
    workload = read(tmp_path, agent(turn(0, [1, 2, 3])), agent(turn(0, [1, 2, 3]), tools=tools))
    assert common(*blocks(workload)) == shared


def test_a_prompt_that_begins_otherwise_shares_nothing_with_other_sessions(tmp_path: Path) -> None:
    session = agent(turn(0, [1, 2, 3]), turn(9, [1, 7, 8]), turn(19, [1, 2, 3, 4]))
    first, odd, later, *others = blocks(read(tmp_path, session, session, loop="open"))
    assert (common(first, odd), common(first, later), common(odd, others[1])) == (1, 3, 1)


def test_sub_agents_share_their_own_prefix(tmp_path: Path) -> None:
    sub = agent(turn(0, [11, 12, 13]), tools=70, t=4.0)
    first, one, other_first, other = blocks(read(tmp_path, *[agent(turn(0, [1, 2, 3]), sub)] * 2, loop="open"))
    assert (common(one, other), common(first, other_first), common(first, one)) == (1, 2, 0)


def test_closed_loop_waits_for_answers_and_sub_agents(tmp_path: Path) -> None:
    """The sub-agent begins at 5 s, three seconds after the first answer; its two requests end at 15 s."""
    sub = agent(turn(0, [9]), turn(8, [9, 10]), t=5.0)
    session = agent(
        turn(0, [1]), sub, turn(16, [1, 2], think_time=14.0), turn(30, [1, 2, 3]), turn(31, [1], think_time=None)
    )
    workload = read(tmp_path, session, session | {"id": "b"})
    assert workload.session == ["a"] * 6 + ["b"] * 6
    assert workload.parent.tolist() == [-1, 0, 1, 2, 3, 4, -1, 6, 7, 8, 9, 10]
    assert workload.think_s.tolist() == [0.0, 3.0, 6.0, 1.0, 1.0, 0.0] * 2
    assert workload.arrival_s[[0, 6]].tolist() == [0.0, 100.0]


def test_open_loop_comes_at_the_recorded_times(tmp_path: Path) -> None:
    session = agent(turn(0, [1]), agent(turn(1, [9]), t=5.0), turn(16, [1, 2]))
    workload = read(tmp_path, session, session, loop="open")
    assert workload.arrival_s.tolist() == [0.0, 6.0, 16.0, 100.0, 106.0, 116.0]
    assert set(workload.parent.tolist()) == {-1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (agent(turn(0, [1]) | {"in": 128}), "1 hash_ids, but in 128 makes 2 full blocks of 64 tokens"),
        (agent(turn(0, [1 << 32])), r"hash_ids must be below 2\*\*32"),
        (agent(turn(-1, [1])), "t must be seconds >= 0, got -1"),
        (agent(), "requests must be a list of objects"),
        (agent(turn(0, [1])) | {"tool_tokens": None}, "tool_tokens"),
        (agent(agent(t=3.0)), "requests must be a list of objects"),
    ],
)
def test_bad_session_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(TraceError, match=r"agents\.jsonl:2: .*" + message):
        read(tmp_path, agent(turn(0, [1])), row)


def test_unknown_loop_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="loop must be 'open' or 'closed', got 'half'"):
        read(tmp_path, agent(turn(0, [1])), loop="half")


def test_its_format_is_told_by_the_first_row(tmp_path: Path) -> None:
    read(tmp_path, agent(turn(0, [1, 2])), agent(turn(0, [1])))
    assert len(read_workload(tmp_path / "agents.jsonl", limit=1)) == 1
    assert read_workload(tmp_path / "agents.jsonl", block_size=16).offsets.tolist() == [0, 8, 12]


@pytest.mark.long
def test_published_sessions_are_read(traces: Path) -> None:
    workload = read_workload(traces / "agents/agent_sessions_develop.jsonl.xz", limit=40)
    assert workload.infinite_hits() > 0.9
    assert np.median(workload.prompt_tokens) > 50_000
