"""How much of the prompts of sub-agents lies cached where they are sent, on recorded sessions of coding agents.

The measure is what one unbounded cache per session would give them. Eight workers, caches without bounds; requests come
at their recorded times within a session, and sessions at random ones.

Run::

    python -m benches.sub_agents agent_sessions_develop.jsonl.xz
    python -m benches.sub_agents agent_sessions_develop.jsonl.xz --per-minute 5
"""

from __future__ import annotations

import argparse
import heapq
import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelb import Decision, Router

BLOCK = 64
PREFILL_S = 0.00008
"""Per token."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request."""

    at_s: float
    session: int
    agent: str | None
    blocks: np.ndarray[Any, np.dtype[np.uint64]]
    prompt_tokens: int
    answer_s: float

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the client's session and agent."""
        names = {"x-claude-code-session-id": str(self.session)}
        return names if self.agent is None else names | {"x-claude-code-agent-id": self.agent}


def rows(path: str, per_minute: float) -> Iterator[Row]:
    """Read all sessions."""
    luck, begin_s = random.Random(1), 0.0
    with lzma.open(path, "rt") as file:
        for session, line in enumerate(file):
            begin_s += luck.expovariate(per_minute / 60)
            for at, entry in enumerate(json.loads(line)["requests"]):
                agents = entry.get("requests")
                start_s = begin_s + (entry["t"] if agents else 0.0)
                for one in agents or [entry]:
                    ids = np.array(one["hash_ids"][: one["in"] // BLOCK], dtype=np.uint64)
                    blocks = ids | np.uint64(session + 1 << 32)
                    agent = f"agent-{at}" if agents else None
                    yield Row(start_s + one["t"], session, agent, blocks, one["in"], one.get("api_time") or 1.0)


def replay(requests: list[Row]) -> tuple[int, int]:
    """Route all of them; return blocks of sub-agents found where they were sent, and in a cache of their session."""
    now = 0.0
    router = Router([f"gpu{at}" for at in range(8)], block_size=BLOCK, clock=lambda: now, seed=1)
    caches: dict[int, set[int]] = {}
    ahead: list[tuple[float, int, bool, Decision[str]]] = []
    found = expected = 0
    for number, row in enumerate(requests):
        while ahead and ahead[0][0] <= row.at_s:
            now, _, is_over, decision = heapq.heappop(ahead)
            if is_over:
                decision.on_complete()
            else:
                decision.on_first_token()
        now = row.at_s
        tokens = row.prompt_tokens
        decision = router.select_worker(blocks=row.blocks, prompt_tokens=tokens, headers=row.headers)
        cache, blocks = caches.setdefault(row.session, set()), row.blocks.tolist()
        if row.agent is not None:
            found += decision.matched_tokens // BLOCK
            expected += next((at for at, block in enumerate(blocks) if block not in cache), len(blocks))
        cache.update(blocks)
        first_s = now + (tokens - decision.matched_tokens) * PREFILL_S
        heapq.heappush(ahead, (first_s, number, False, decision))
        heapq.heappush(ahead, (max(first_s, now + row.answer_s), number, True, decision))
    return found, expected


def main() -> None:
    """Print the share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="sessions as kv-cache-tester publishes them, JSON Lines, compressed by xz")
    parser.add_argument("--per-minute", type=float, default=1.0, help="sessions that begin (default: %(default)s)")
    arguments = parser.parse_args()
    requests = sorted(rows(arguments.trace, arguments.per_minute), key=lambda row: row.at_s)
    found, expected = replay(requests)
    agents = sum(row.agent is not None for row in requests)
    print(f"{agents} requests of sub-agents among {len(requests)}: {found / expected:.3f} of the blocks of one cache")


if __name__ == "__main__":
    main()
