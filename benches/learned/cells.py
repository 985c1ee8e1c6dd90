"""The grid: its runs, and the figures that are kept of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.learned.rates import rate
from benches.learned.workloads import make

from cachelb_lab.sim import FleetSpec, simulate

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb._core import SimWorkload
    from cachelb_lab.sim import SimResult, Workload

LOADS = (0.6, 0.8, 0.95)
"""Medium to saturated, as parts of the capacity under `prefix-cache-and-load`."""
COUNT = 20_000
SETTLED_S = 300.0
"""The first five minutes, in which a model has to be found."""
MODEL = ("learned", "learned-tie", "k-filter", "explore")
"""Reasons of decisions that only a policy with a model makes."""

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "prefix-cache-and-load": ("prefix-cache-and-load", {}),
    "learned": ("learned", {"training": "inline"}),
    "prefill-times-batch": ("prefill-times-batch", {}),
    "cache-aware": ("cache-aware", {}),
    "estimated-ttft": ("estimated-ttft", {}),
    "exploit-explore": ("exploit-explore", {}),
    "prefix-cache(0.2)": ("prefix-cache", {"tau": 0.2}),
    "prefix-cache(0.4)": ("prefix-cache", {"tau": 0.4}),
    "prefix-cache(0.6)": ("prefix-cache", {"tau": 0.6}),
    "prefix-cache(0.8)": ("prefix-cache", {"tau": 0.8}),
    "overlap-cost": ("overlap-cost", {}),
    "sticky-until-saturated": ("sticky-until-saturated", {}),
    "least-loaded": ("least-loaded", {}),
    "queue-over-throughput": ("queue-over-throughput", {}),
    "round-robin": ("round-robin", {}),
}
"""By the name in the tables. All go by their placements and by load reports every 100 ms; none receives KV events."""


@dataclass(frozen=True, order=True)
class Place:
    """A workload and a fleet that all policies are run on.

    Attributes:
        workload: One of the workloads.
        fleet: One of the fleets.
        load: Part of the baseline's capacity.
        seed: Seed of requests, arrivals and ties.
        count: Least number of requests.
    """

    workload: str
    fleet: str
    load: float
    seed: int
    count: int = COUNT

    def key(self, policy: str) -> str:
        """Return the key of a run in the store."""
        return "/".join(map(str, (self.workload, self.fleet, self.load, policy, self.seed, self.count)))

    @property
    def rate(self) -> float:
        """Return the arrivals per second."""
        return rate(self.workload, self.fleet, self.load)

    @property
    def requests(self) -> Workload:
        """Return the requests: of the whole grid as many as come in ten minutes at least."""
        count = self.count if self.count < COUNT else max(self.count, round(2 * SETTLED_S * self.rate))
        return make(self.workload, rate=self.rate, count=count, seed=self.seed)


def run(
    place: Place, policy: str, requests: Workload, prepared: SimWorkload | None = None, **options: object
) -> dict[str, Any]:
    """Return the figures of one policy at one place.

    Args:
        place: Where.
        policy: One of `POLICIES`.
        requests: Those of the place.
        prepared: The requests in the engine model's form.
        options: Options of the policy, over those of `POLICIES`.

    Returns:
        JSON values.
    """
    name, own = POLICIES[policy]
    fleet = FleetSpec.parse(place.fleet)
    result = simulate(requests, fleet, name, seed=place.seed, prepared=prepared, **{**own, **options})
    return figures(result)


def figures(result: SimResult, since_s: float = SETTLED_S) -> dict[str, Any]:
    """Return the figures of a run in the tables.

    Args:
        result: The run.
        since_s: When the figures called `later` begin.

    Returns:
        TTFT over all and later, hit rate, what was finished, and who decided.
    """
    served = result.finished
    later = served & (result.arrival_s >= since_s)
    ttft = result.first_token_s - result.arrival_s
    prompt = result.workload.prompt_tokens[served].sum(dtype=np.int64)
    return {
        "requests": len(ttft),
        "all": _spread(ttft[served]),
        "later": _spread(ttft[later]) if later.any() else None,
        "hit": float(result.cached_tokens[served].sum(dtype=np.int64) / prompt),
        "finished": float(served.mean()),
        "preemptions": int(result.worker_preemptions.sum()),
        "reasons": _shares(result, np.ones(len(ttft), dtype=bool)),
        **_model(result),
        "run_s": round(result.wall_clock.run_s, 2),
    }


def _spread(seconds: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return mean and percentiles of times."""
    p50, p99 = (float(each) for each in np.percentile(seconds, [50, 99]))
    return {"mean": float(seconds.mean()), "p50": p50, "p99": p99}


def _shares(result: SimResult, which: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return the reasons of some decisions, the most frequent first."""
    counts = np.bincount(result.reason[which], minlength=len(result.reasons))
    order = np.argsort(-counts, kind="stable")
    return {result.reasons[at]: round(float(counts[at] / which.sum()), 4) for at in order if counts[at]}


def _model(result: SimResult) -> dict[str, Any]:
    """Return when a model decided first, and the reasons from then on."""
    codes = [result.reasons.index(reason) for reason in MODEL if reason in result.reasons]
    learned = np.isin(result.reason, codes) & (result.arrival_s >= 0)
    if result.policy != "learned" or not learned.any():
        return {}
    first_s = float(result.arrival_s[learned].min())
    return {"model_s": first_s, "model_reasons": _shares(result, result.arrival_s >= first_s)}
