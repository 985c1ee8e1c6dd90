"""A simulated worker whose passes take as long as single requests at an engine say."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.engine.engine import BLOCK_SIZE

from cachelb_lab.sim import FleetSpec, Signals
from cachelb_lab.sim.fleet import WorkerSpec
from cachelb_lab.sim.gpus import GpuProfile, ModelProfile
from cachelb_lab.sim.timing import Roofline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PASS_TOKENS = 2048
"""`max_num_batched_tokens` that vLLM gives a server on a CPU."""
SEQUENCES = 8
"""`max_num_seqs` of `tests.engine.engine`."""
UNEVEN = 0.05
"""A little more or less time decides the next client, and so all that follows; figures should not depend on it."""
_SHAKEN_S = 120
# Constants of which only products with the rates below count.
_BODY, _ATTENTION_SHARE, _KV_BYTES = 1e9, 0.5, 10**12
_LEAST_S = 1e-12
_RESOLVED_S = 0.5e-3
"""Tokens that come closer together were held up on their way to the client; no engine here makes them so fast."""
_FEWEST = 6  # one for each constant


@dataclass(frozen=True, slots=True)
class Speed:
    """The times of an engine's work, in seconds.

    Attributes:
        request_s: HTTP and the like, once per request.
        prompt_s: Each token of the prompt, cached or not.
        pass_s: A pass, whatever is in it.
        token_s: Each new token of a prompt, and each decode.
        pair_s: Each pair of tokens that the attention of a prompt compares.
        context_s: Each token that a decode attends to.
    """

    request_s: float
    prompt_s: float
    pass_s: float
    token_s: float
    pair_s: float
    context_s: float

    def first_s(self, prompt: int, cached: int) -> float:
        """Return the time to the first token of a request alone."""
        return float(
            _first(prompt, cached) @ np.array([self.request_s, self.prompt_s, self.pass_s, self.token_s, self.pair_s])
        )

    def token_after_s(self, context: float, together: int = 1) -> float:
        """Return the time between tokens of so many answers at a time."""
        return self.pass_s + together * (self.token_s + context * self.context_s)

    def fleet(self, engines: int, cache_tokens: int) -> FleetSpec:
        """Return a fleet of such engines."""
        rate = 1 / max(self.token_s, _LEAST_S)  # tokens per second
        flops = 2 * _BODY * rate
        heads = round(self.pair_s * flops * _ATTENTION_SHARE / 4)  # 4 operations per head and pair
        model = ModelProfile("measured", _BODY, 1, 1, 1, heads, 1, _KV_BYTES)
        bandwidth = _KV_BYTES / max(self.context_s, _LEAST_S)
        device = GpuProfile("measured", flops, bandwidth, 1 << 30, 1.0, (1.0, 1.0), 1.0, "calibrated", kv_tokens=1)
        timing = Roofline(
            attention_share=_ATTENTION_SHARE,
            prefill_reads_context=False,
            pass_seconds=self.pass_s,
            sequence_seconds=0.0,
        )
        worker = WorkerSpec(
            device,
            model,
            timing=timing,
            block_size=BLOCK_SIZE,
            kv_tokens=cache_tokens,
            max_num_batched_tokens=PASS_TOKENS,
            max_num_seqs=SEQUENCES,
        )
        return FleetSpec((worker,) * engines)

    def signals(self, gateway_s: float, prompt_tokens: float) -> Signals:
        """Return the signals of a gateway without load reports.

        Args:
            gateway_s: Time that it adds to a request itself.
            prompt_tokens: Mean length of a prompt: the delay of a request is the same for all of them in simulations.
        """
        delay_s = self.request_s + self.prompt_s * prompt_tokens + gateway_s
        return Signals(net_delay_s=delay_s / 2, scrape_interval_s=float("inf"))


def shaken(fleet: FleetSpec, seed: int) -> FleetSpec:
    """Return the fleet with passes up to `UNEVEN` longer or shorter, drawn anew for each second and engine."""
    dice = random.Random(seed)

    def shake(worker: WorkerSpec) -> WorkerSpec:
        factors = [dice.uniform(1 - UNEVEN, 1 + UNEVEN) for _ in range(_SHAKEN_S)]
        return replace(worker, slowdown=tuple((float(second), factor) for second, factor in enumerate(factors)))

    return FleetSpec(tuple(map(shake, fleet)))


def fit(singles: Sequence[Mapping[str, Any]]) -> Speed:
    """Find the speed of an engine from requests that had it to themselves.

    Requests with equal numbers of tokens count by their median. Times between tokens and times to the first token are
    solved for all constants at once, by least squares of the relative errors; none is below 0.

    Raises:
        ValueError: There are too few kinds of requests.
    """
    kinds: dict[tuple[int, int, int], list[Mapping[str, Any]]] = {}
    for row in singles:
        kinds.setdefault((row["prompt"], row["cached"], row["output"]), []).append(row)
    if len(kinds) < _FEWEST or any(output == 1 for *_, output in kinds):
        raise ValueError(f"{_FEWEST} kinds of single requests or more, answers of 2 tokens or more; got {[*kinds]}")
    rows, times = [], []
    for (prompt, cached, output), same in kinds.items():
        rows.append([*_first(prompt, cached), 0.0])
        times.append(median(row["first_s"] for row in same))
        between_s = median((row["whole_s"] - row["first_s"]) / (output - 1) for row in same)
        if between_s >= _RESOLVED_S:
            rows.append([0.0, 0.0, 1.0, 1.0, 0.0, prompt + output / 2])  # the context half way through the answer
            times.append(between_s)
    return Speed(*map(float, _least_squares(np.array(rows), np.array(times))))


def gateway_s(sessions: Sequence[Mapping[str, Any]]) -> float:
    """Return the overhead of a gateway per request, the median over the starts of the engines."""
    return float(median(session["gateway_s"] for session in sessions))


def _first(prompt: int, cached: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how often each of request, prompt token, pass, token and pair counts until the first token."""
    new = prompt - cached
    return np.array([1.0, float(prompt), float(-(-new // PASS_TOKENS)), float(new), new * (cached + new / 2)])


def _least_squares(
    rows: np.ndarray[Any, np.dtype[np.float64]], times: np.ndarray[Any, np.dtype[np.float64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Solve for constants of 0 or more: the most negative one is set to 0 until none is negative."""
    relative = rows / times[:, None]
    kept = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while kept:
        part, *_ = np.linalg.lstsq(relative[:, kept], np.ones(len(times)), rcond=None)
        if part.min() >= 0:
            found[kept] = part
            break
        kept.pop(int(part.argmin()))
    return found
