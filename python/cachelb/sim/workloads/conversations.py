"""Seeded workloads for replays without a trace file.

Prompts are described by chained block ids only, as in a trace. Every conversation is append-only:
a turn's prompt is the whole history plus what is new, so its leading full blocks never change.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.sim.traces import Request

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

MIXED_ID_TOKENS = 64
"""Tokens one hash id of `mixed_workload` stands for."""

_SECONDS_PER_OUTPUT_TOKEN = 0.02
_MAX_PROMPT_TOKENS = 32_000
_SPREAD = 0.6  # sigma of the lognormal draws


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of traffic.

    Attributes:
        name: Used in session ids.
        share: Share of the sessions.
        prefixes: How many different shared prefixes (system prompts, tool descriptions) exist.
        prefix_tokens: Shortest and longest shared prefix.
        turns: Mean number of turns (geometric).
        new_tokens: Median tokens a turn adds to the prompt (user text or tool output).
        output_tokens: Median length of an answer.
        gap_s: Median pause between an answer and the next turn.
    """

    name: str
    share: float
    prefixes: int
    prefix_tokens: tuple[int, int]
    turns: float
    new_tokens: int
    output_tokens: int
    gap_s: float


_KINDS = (
    _Kind("chat", 0.45, 6, (300, 900), turns=6, new_tokens=180, output_tokens=220, gap_s=12),
    _Kind("agent", 0.25, 5, (3000, 6000), turns=10, new_tokens=350, output_tokens=60, gap_s=1.5),
    _Kind("single", 0.30, 12, (1500, 3000), turns=1, new_tokens=400, output_tokens=120, gap_s=1),
)


def mixed_workload(count: int, *, seed: int, sessions_per_s: float = 1.6) -> list[Request]:
    """Generate multi-turn chats, tool-using agents and single calls with shared system prompts.

    Sessions arrive as a Poisson process; inside one, the next turn follows the answer after a
    pause. All of it depends on the seed alone, not on how a policy serves it.

    Args:
        count: Requests to generate.
        seed: Seed of every random choice.
        sessions_per_s: Rate of new sessions.

    Returns:
        ``count`` requests in order of arrival, with `MIXED_ID_TOKENS` tokens per hash id.

    Raises:
        ValueError: ``count`` is negative or ``sessions_per_s`` is not positive.

    Example:
        >>> first, second = mixed_workload(2, seed=7)
        >>> first.arrival_s <= second.arrival_s, first == mixed_workload(1, seed=7)[0]
        (True, True)
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    if not 0 < sessions_per_s < math.inf:
        raise ValueError(f"sessions_per_s must be positive, got {sessions_per_s}")
    rng = random.Random(seed)
    ids = _Ids()
    prefixes = {kind: [rng.randint(*kind.prefix_tokens) for _ in range(kind.prefixes)] for kind in _KINDS}
    requests: list[Request] = []
    start_s = 0.0
    number = 0
    # A session only adds requests after its start: once the next session would start behind the
    # count-th request, the first `count` are final.
    while len(requests) < count or start_s < requests[count - 1].arrival_s:
        start_s += rng.expovariate(sessions_per_s)
        kind = rng.choices(_KINDS, [kind.share for kind in _KINDS])[0]
        prefix = _skewed(rng, kind.prefixes)
        requests += _session(
            rng, ids, kind=kind, prefix=(prefix, prefixes[kind][prefix]), number=number, start_s=start_s
        )
        requests.sort(key=lambda request: request.arrival_s)
        number += 1
    return requests[:count]


def _session(
    rng: random.Random, ids: _Ids, *, kind: _Kind, prefix: tuple[int, int], number: int, start_s: float
) -> Iterator[Request]:
    """Yield the turns of one session; `prefix` is the shared prefix's index and its tokens."""
    prefix_index, prompt_tokens = prefix
    name = f"{kind.name}-{number}"
    arrival_s = start_s
    while True:
        prompt_tokens += _around(rng, kind.new_tokens)
        if prompt_tokens > _MAX_PROMPT_TOKENS:
            return
        output_tokens = _around(rng, kind.output_tokens)
        yield Request(
            arrival_s=round(arrival_s, 3),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            hash_ids=ids.chain((kind.name, prefix_index), prefix[1], number, prompt_tokens),
            session=name,
        )
        if rng.random() * kind.turns < 1:
            return
        prompt_tokens += output_tokens
        arrival_s += output_tokens * _SECONDS_PER_OUTPUT_TOKEN + kind.gap_s * rng.lognormvariate(0, _SPREAD)


class _Ids:
    """Numbers the blocks of prompts: shared ones by prefix, full ones by session, tails by length."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def chain(self, prefix: Hashable, prefix_tokens: int, session: int, prompt_tokens: int) -> tuple[int, ...]:
        """Return the ids of one prompt."""
        shared = prefix_tokens // MIXED_ID_TOKENS
        full, tail = divmod(prompt_tokens, MIXED_ID_TOKENS)
        keys: list[Hashable] = [(prefix, block) for block in range(shared)]
        keys += [(session, block) for block in range(shared, full)]
        if tail:
            keys.append((session, full, tail))
        return tuple(self._numbers.setdefault(key, len(self._numbers)) for key in keys)


def _around(rng: random.Random, median: int) -> int:
    """Draw a token count around a median, at least 1."""
    return 1 + int(median * rng.lognormvariate(0, _SPREAD))


def _skewed(rng: random.Random, count: int) -> int:
    """Draw an index, the first ones more often (Zipf with exponent 1)."""
    return rng.choices(range(count), [1 / (index + 1) for index in range(count)])[0]
