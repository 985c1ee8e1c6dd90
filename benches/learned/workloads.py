"""Lodestar's workloads (seeds/003, section 5), each of any number of requests from one seed.

The conversation trace is shrunk as the paper's scripts do: 50 tokens for every 512 of a prompt, at most 10,000, half of
an answer. The other two Mooncake workloads are not at hand; generators made like them stand in, shrunk to lengths at
which the baseline saturates near the paper's rates: prompts of `tool-agent` to a half, of `long-documents` to a sixth.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from benches.learned.shrinking import shrunk

from cachelb_lab.sim import WORKLOADS as GENERATORS
from cachelb_lab.sim import Workload, build
from cachelb_lab.sim.trace_files.mixing import mix
from cachelb_lab.sim.workloads import Poisson, Steps, read_mooncake

TRACE = "traces/mooncake/conversation_trace.jsonl.xz"
RATE_SHIFT = 2.2
"""Factor by which the rate of `rate-shift` grows half way: from 10 to 22 arrivals per second."""
ROWS_PER_SEED = 2_000

WORKLOADS = (
    "conversation",
    "tool-agent",
    "long-documents",
    "prefill-only",
    "prefix-10",
    "prefix-30",
    "prefix-50",
    "prefix-70",
    "prefix-mixed",
    "prefix-shift",
    "rate-shift",
)
"""All of them; `prefill-only` is `prefix-mixed` with answers of one token, as in the paper's Figure 8."""


RECURRING, PHASES = (("prefix-05", 1.0), ("prefix-50", 11.88 / 7.64)), 6
"""Workloads that come in turn in `recurring`, their rates beside the first one's, and how many turns there are: at 80 %
of what eight A30 take of the first, 90 % of what they take of the second."""


def make(name: str, *, rate: float, count: int, seed: int) -> Workload:
    """Return requests that come at a rate; of `rate-shift`, the rate after the shift.

    Args:
        name: One of `WORKLOADS`, or `recurring`.
        rate: Arrivals per second; of `recurring`, in its first phase.
        count: Requests.
        seed: Seed of the requests and their arrivals.

    Returns:
        The workload; no request waits for another.
    """
    if name == "recurring":
        turns = [RECURRING[turn % len(RECURRING)] for turn in range(PHASES)]
        phases = [
            make(each, rate=rate * faster, count=count // PHASES, seed=100 * seed + turn)
            for turn, (each, faster) in enumerate(turns)
        ]
        return Workload.concat(phases, name=name, one_after_the_other=True)
    contents = _contents(name, count, seed)
    rng = np.random.default_rng([seed, 1])
    stages = ((rate / RATE_SHIFT, count // 2), (rate, 1))
    arrivals = Steps(stages) if name == "rate-shift" else Poisson(rate)
    return replace(contents, name=name, arrival_s=arrivals.times(len(contents), rng))


@lru_cache(maxsize=2)
def _contents(name: str, count: int, seed: int) -> Workload:
    """Return the requests, in order."""
    if name == "conversation":
        return _conversation(count, seed)
    if name == "prefill-only":
        return build("prefix-mixed", seed=seed, count=count, output_tokens=1, output_spread=0.0)
    if name == "prefix-05":
        return build("prefix-10", seed=seed, count=count, share=0.05)
    made = build(name, seed=seed, count=count)
    if name == "tool-agent":
        return shrunk(made, rate=1.0, seed=seed, prompt=(1, 2), output=(1, 1))
    if name == "long-documents":
        # In the order of their generator, which knows pauses between turns but not how long answers take.
        free = np.full(count, -1, dtype=np.int64)
        made = replace(made, parent=free, think_s=np.zeros(count), arrival_s=np.arange(count, dtype=np.float64))
        return shrunk(made, rate=1.0, seed=seed, prompt=(1, 6), output=(1, 1))
    assert name in GENERATORS, name
    return made


def _conversation(count: int, seed: int) -> Workload:
    """Return rows of the trace from a place that the seed decides, round and round."""
    trace = _trace()
    laps: list[Workload] = []
    start = (seed - 1) * ROWS_PER_SEED % len(trace)
    while count > 0:
        lap = trace.slice(start, start + count)
        # No conversation comes back after the hour.
        salt = np.uint64((len(laps) * 0x9E3779B97F4A7C15) % 2**64)
        laps.append(replace(lap, hashes=mix(lap.hashes ^ salt), arrival_s=np.arange(len(lap), dtype=np.float64)))
        count, start = count - len(lap), 0
    return shrunk(Workload.concat(laps, one_after_the_other=True), rate=1.0, seed=seed)


@lru_cache(maxsize=1)
def _trace() -> Workload:
    """Return the whole trace."""
    data = Path(os.environ.get("CACHELB_DATA", Path(__file__).parents[3] / "shared"))
    return read_mooncake(data / TRACE)
