"""Drive real policies over a trace against simulated engine caches, in simulated time.

There is no engine model: a request occupies its worker from its arrival for
``uncached tokens / 8,000 + output tokens * 0.02`` seconds, whatever else runs there. That is
enough for load policies to see load that follows from their own choices. A prompt is cached from
its arrival on. At one instant, requests end before others arrive.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cachelb import policies
from cachelb.sim.engine_cache import EngineCaches, engine_blocks
from cachelb.sim.expand import TokenExpander
from cachelb.sim.lru_bound import HitCount, ReuseProfile
from cachelb.sim.report import Bound, PolicyResult, Report, Source, WallClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from cachelb.decision import Decision
    from cachelb.sim.traces import Request

PREFILL_TOKENS_PER_S = 8_000
SECONDS_PER_OUTPUT_TOKEN = 0.02

_SESSION_IDS = 2
_PROGRESS_EVERY = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated workers and how their caches count.

    Attributes:
        workers: How many workers.
        kv_tokens: Tokens each worker can cache.
        block_size: Tokens per block, for engines and policies alike.
        id_tokens: Tokens one hash id of the trace stands for; a multiple of ``block_size``.
        seed: Seed of the policies.

    Raises:
        ValueError: There is no worker, or a worker cannot hold one block.
    """

    workers: int
    kv_tokens: int
    block_size: int
    id_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        engine_blocks(self.kv_tokens, self.block_size)

    @property
    def names(self) -> list[str]:
        """Return the names of the workers."""
        return [f"worker-{number}" for number in range(self.workers)]


def compare(
    name: str,
    requests: Sequence[Request],
    policy_names: Iterable[str],
    fleet: Fleet,
    *,
    on_progress: Callable[[str, int], None] | None = None,
) -> Report:
    """Replay a trace once per policy and set the results beside the single-pool bound.

    Args:
        name: What the report calls the trace.
        requests: The trace, in order of arrival.
        policy_names: Policies to replay.
        fleet: Workers, caches and seed.
        on_progress: Called with a policy's name and the requests it has placed so far.

    Returns:
        The report.

    Raises:
        ValueError: A policy's name is unknown, or ``block_size`` does not divide ``id_tokens``.

    Example:
        >>> from cachelb.sim.workloads import MIXED_ID_TOKENS, mixed_workload
        >>> fleet = Fleet(workers=4, kv_tokens=60_000, block_size=64, id_tokens=MIXED_ID_TOKENS)
        >>> report = compare("mixed", mixed_workload(200, seed=1), ["cache-aware", "random"], fleet)
        >>> aware, random = report.policies
        >>> aware.hits.token_rate > random.hits.token_rate
        True
    """
    profile = ReuseProfile(requests, id_tokens=fleet.id_tokens, block_size=fleet.block_size)
    pool_blocks = fleet.workers * engine_blocks(fleet.kv_tokens, fleet.block_size)
    bound = Bound(pool_blocks * fleet.block_size, profile.hits(pool_blocks), profile.hits())
    return Report(
        source=_source(name, requests, fleet.id_tokens),
        workers=fleet.workers,
        kv_tokens=fleet.kv_tokens,
        block_size=fleet.block_size,
        seed=fleet.seed,
        bound=bound,
        policies=tuple(_Replay(policy, fleet).run(requests, bound, on_progress) for policy in policy_names),
    )


def session_key(request: Request) -> str:
    """Return what keeps a request's turns together for policies that go by session.

    Args:
        request: A request of a trace.

    Returns:
        The trace's own session id; without one, the first two block ids. One would not do: all
        requests of a trace may begin with the same system prompt.

    Example:
        >>> from cachelb.sim.traces import Request
        >>> session_key(Request(0.0, 1500, 1, (0, 14, 15)))
        '0-14'
    """
    return request.session or "-".join(map(str, request.hash_ids[:_SESSION_IDS]))


class _Clock:
    """Simulated seconds, handed to the policy in place of a real clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Running:
    """Requests in flight and when each reaches its first token and its end."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._events: list[tuple[float, int, float | None, Decision[str]]] = []
        self._number = 0
        self.inflight: Counter[str] = Counter()
        self.peak = 0
        self.peak_worker = 0

    def start(self, decision: Decision[str], prefill_s: float, decode_s: float) -> None:
        """Book a request on its worker from now on."""
        first_token_s = self._clock.now_s + prefill_s
        self._push(first_token_s, first_token_s + decode_s, decision)
        self.inflight[decision.worker] += 1
        self.peak = max(self.peak, self.inflight.total())
        self.peak_worker = max(self.peak_worker, self.inflight[decision.worker])

    def advance(self, until_s: float) -> None:
        """Let time pass up to and including an instant."""
        while self._events and self._events[0][0] <= until_s:
            self._clock.now_s, _, end_s, decision = heapq.heappop(self._events)
            if end_s is None:
                decision.on_complete()
                self.inflight[decision.worker] -= 1
            else:
                decision.on_first_token()
                self._push(end_s, None, decision)
        self._clock.now_s = until_s

    def drain(self) -> None:
        """Let time pass until nothing runs."""
        while self._events:
            self.advance(self._events[0][0])

    def _push(self, at_s: float, end_s: float | None, decision: Decision[str]) -> None:
        """Queue the first token (with the end to follow) or, without one, the end."""
        heapq.heappush(self._events, (at_s, self._number, end_s, decision))
        self._number += 1


class _Replay:
    """One policy on one fleet, from empty caches."""

    def __init__(self, policy_name: str, fleet: Fleet) -> None:
        self._name = policy_name
        self._fleet = fleet
        self._workers = fleet.names
        self._clock = _Clock()
        self._running = _Running(self._clock)
        self._policy = _make_policy(policy_name, fleet, self._clock)
        self._caches = EngineCaches(self._workers, kv_tokens=fleet.kv_tokens, block_size=fleet.block_size)
        self._served = dict.fromkeys(self._workers, 0)
        self._busy_s = dict.fromkeys(self._workers, 0.0)
        self._reasons: Counter[str] = Counter()
        self._select_ns: list[int] = []
        self._predicted_tokens = 0
        self._hit_blocks = 0

    def run(
        self, requests: Sequence[Request], bound: Bound, on_progress: Callable[[str, int], None] | None
    ) -> PolicyResult:
        """Serve every request in turn."""
        started = time.perf_counter()
        expander = TokenExpander(self._fleet.id_tokens)
        for number, request in enumerate(requests, start=1):
            self._running.advance(request.arrival_s)
            self._serve(request, expander.tokens(request))
            if on_progress and (number % _PROGRESS_EVERY == 0 or number == len(requests)):
                on_progress(self._name, number)
        self._running.drain()
        return self._result(bound, time.perf_counter() - started)

    def _serve(self, request: Request, tokens: npt.NDArray[np.uint32]) -> None:
        """Place one request and occupy the worker it was given."""
        session = session_key(request)
        before_ns = time.perf_counter_ns()
        decision = self._policy.select_worker(self._workers, tokens=tokens, session=session)
        self._select_ns.append(time.perf_counter_ns() - before_ns)
        hit_blocks = self._caches.serve(decision.worker, tokens)
        uncached_tokens = request.prompt_tokens - hit_blocks * self._fleet.block_size
        prefill_s = uncached_tokens / PREFILL_TOKENS_PER_S
        decode_s = request.output_tokens * SECONDS_PER_OUTPUT_TOKEN
        self._running.start(decision, prefill_s, decode_s)
        self._served[decision.worker] += 1
        self._busy_s[decision.worker] += prefill_s + decode_s
        self._reasons[decision.reason] += 1
        self._predicted_tokens += decision.matched_tokens
        self._hit_blocks += hit_blocks

    def _result(self, bound: Bound, replay_s: float) -> PolicyResult:
        """Put the counts together."""
        hits = HitCount(
            blocks=bound.pool.blocks,
            hit_blocks=self._hit_blocks,
            prompt_tokens=bound.pool.prompt_tokens,
            hit_tokens=self._hit_blocks * self._fleet.block_size,
        )
        return PolicyResult(
            policy=self._name,
            requests=len(self._select_ns),
            hits=hits,
            predicted_tokens=self._predicted_tokens,
            hit_vs_bound=hits.hit_tokens / bound.pool.hit_tokens if bound.pool.hit_tokens else 0.0,
            requests_max_over_mean=_max_over_mean(self._served.values()),
            busy_max_over_mean=_max_over_mean(self._busy_s.values()),
            peak_inflight=self._running.peak,
            peak_inflight_worker=self._running.peak_worker,
            worker_requests=tuple(self._served.values()),
            reasons=dict(self._reasons),
            wall_clock=_wall_clock(self._select_ns, replay_s),
        )


def _make_policy(name: str, fleet: Fleet, clock: _Clock) -> policies.BuiltinPolicy:
    """Build a policy; one with an index gets the engines' block size and capacity."""
    options: dict[str, Any] = {"seed": fleet.seed, "clock": clock}
    if "max_blocks_per_worker" in (type(policies.make(name)).__new__.__kwdefaults__ or {}):
        options |= {
            "block_size": fleet.block_size,
            "max_blocks_per_worker": engine_blocks(fleet.kv_tokens, fleet.block_size),
        }
    policy = policies.make(name, **options)
    if not hasattr(policy, "select_worker"):
        raise TypeError(f"policy {name!r} only chooses within a router; a replay runs those with select_worker()")
    return cast("policies.BuiltinPolicy", policy)


def _wall_clock(select_ns: list[int], replay_s: float) -> WallClock:
    """Summarise the time of the calls."""
    if not select_ns:
        return WallClock(decisions_per_s=0.0, select_p50_us=0.0, select_p99_us=0.0, replay_s=replay_s)
    p50_us, p99_us = np.percentile(select_ns, [50, 99]) / 1000
    return WallClock(
        decisions_per_s=len(select_ns) * 1e9 / max(1, sum(select_ns)),
        select_p50_us=float(p50_us),
        select_p99_us=float(p99_us),
        replay_s=replay_s,
    )


def _max_over_mean(values: Iterable[float]) -> float:
    """Return how far the largest value stands above the mean; 1 when all are 0."""
    column = list(values)
    mean = sum(column) / len(column)
    return max(column) / mean if mean else 1.0


def _source(name: str, requests: Sequence[Request], id_tokens: int) -> Source:
    """Describe a trace."""
    return Source(
        name=name,
        requests=len(requests),
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        output_tokens=sum(request.output_tokens for request in requests),
        duration_s=requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0,
        id_tokens=id_tokens,
    )
