"""The ladder of hit rates of captured traffic: from the ideal to the engines' reports, and other policies in its place.

Ideal and capacity-bound are counted on the prompts, chosen and delivered are those of the records, and perfect routing
and the policies are simulated: the same requests at the same times, on engines like those of the capture.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cachelb.policies import POLICIES
from cachelb_lab.analysis import Analysis, analyse
from cachelb_lab.sim.contender import ORACLE
from cachelb_lab.sim.experiments.compare import compare
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.fleet import DEFAULT_MODEL, FleetSpec, WorkerSpec
from cachelb_lab.sim.gpus import GpuProfile, find_gpu, find_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb_lab.sim.workloads import CapturedTraffic

DEFAULT_GPU = "a100-80"
"""That of workers whose device is unknown."""

PERFECT = ("kv-aware" + ORACLE, "adaptive" + ORACLE)
"""Contenders for perfect routing, beside the policies."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One hit rate of the ladder."""

    name: str
    hit_rate: float | None  # share of the prompt tokens, None where it is unknown
    basis: str  # "counted", "simulated" or "reported"
    detail: str


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A policy on the same requests, simulated."""

    policy: str
    is_current: bool
    hit_rate: float
    ttft_s: float  # mean
    ttft_ratio: float | None  # to that of the current policy, simulated too


@dataclass(frozen=True, slots=True)
class Ladder:
    """The hit rates of captured traffic, the causes of losses, and other policies."""

    requests: int
    prompt_tokens: int
    rungs: tuple[Rung, ...]
    losses: Analysis
    policies: tuple[Counterfactual, ...]
    fleet: str  # that was simulated

    def as_dict(self) -> dict[str, Any]:
        """Return everything by name, as JSON values."""
        return {**asdict(self), "losses": self.losses.as_dict()}


def fleet_of(
    traffic: CapturedTraffic, *, model: str = DEFAULT_MODEL, gpu: str | None = None, kv_tokens: int | None = None
) -> FleetSpec:
    """Return the fleet of a capture; `gpu` and `kv_tokens` of each worker win over those that it has."""
    block_size = traffic.workload.block_size
    workers = [(gpu or worker.gpu, kv_tokens or worker.kv_tokens) for worker in traffic.workers] or [(gpu, kv_tokens)]
    return FleetSpec(
        tuple(
            WorkerSpec(_device(name), find_model(model), block_size=block_size, kv_tokens=tokens)
            for name, tokens in workers
        )
    )


def climb(
    traffic: CapturedTraffic,
    fleet: FleetSpec,
    policies: Sequence[str],
    *,
    knows_capacity: bool,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
) -> Ladder:
    """Compute the ladder. Without `knows_capacity` the fleet's caches are a guess, which the second rung leaves out."""
    workload = traffic.workload
    profile, losses = PoolProfile(workload), analyse(traffic.records)
    current = traffic.policy if traffic.policy in POLICIES else None
    names: list[str] = list(dict.fromkeys([*policies, *([] if current is None else [current])]))
    perfect = [name for name in PERFECT if name not in names]
    compared = compare(workload, fleet, [*names, *perfect], threads=threads, progress=progress)
    figures = [cell.runs[0].metrics for cell in compared.cells]
    ttft_s = dict(zip(names, (each.ttft_s.mean for each in figures), strict=False))
    base = ttft_s.get(current or "")
    best = max(range(len(figures)), key=lambda at: figures[at].hit_rate)
    infinite, pool = profile.hits(), profile.hits(fleet.cache_tokens // workload.block_size)
    of = losses.prompt_tokens or 1
    rungs = (
        Rung("ideal", infinite.token_rate, "counted", "one cache without limit"),
        Rung(
            "capacity-bound",
            pool.token_rate if knows_capacity else None,
            "counted",
            f"one LRU pool of {fleet.cache_tokens:,} tokens" if knows_capacity else "cache sizes unknown: --kv-tokens",
        ),
        Rung("perfect routing", figures[best].hit_rate, "simulated", f"the best found: {[*names, *perfect][best]}"),
        Rung("chosen", losses.selected_matched_tokens / of, "reported", "predicted for the picked workers"),
        Rung(
            "delivered",
            losses.engine_cached_tokens / of if losses.reported else None,
            "reported",
            "by the engines" if losses.reported else "engines report no cached tokens",
        ),
    )
    return Ladder(
        requests=len(workload),
        prompt_tokens=int(workload.prompt_tokens.sum(dtype="int64")),
        rungs=rungs,
        losses=losses,
        policies=tuple(
            Counterfactual(
                name, name == current, each.hit_rate, each.ttft_s.mean, each.ttft_s.mean / base if base else None
            )
            for name, each in zip(names, figures, strict=False)
        ),
        fleet=fleet.describe(),
    )


def _device(name: str | None) -> GpuProfile:
    try:
        return find_gpu(name or DEFAULT_GPU)
    except ValueError:
        return find_gpu(DEFAULT_GPU)
