"""Cells, and their runs: Dynamo's router in Dynamo's simulator, cachelb's policies in cachelb's, the engines equal."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.compare.environment import PYTHON, pinned
from benches.dynamo.trace import write_mooncake

from cachelb.common.calls import Call
from cachelb_lab.sim import FleetSpec, Signals, simulate
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.figures.metrics import measure
from cachelb_lab.sim.league.cells import FIRST_SEED, digest
from cachelb_lab.sim.league.figures import NAMES, SLO, figures_of
from cachelb_lab.sim.league.traces import Trace, fingerprint
from cachelb_lab.sim.timing import Polynomial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb_lab.sim import Workload
    from cachelb_lab.sim.league import Store

DYNAMO = pinned("ai-dynamo-runtime")
WORKERS = 8
BUDGET, SEQS = 8_192, 256
"""Tokens and sequences of a pass: DynoSim's defaults."""
KV_TOKENS = 16_384 * 64
"""Cache of a worker in tokens: DynoSim's default."""
AT_ONCE = Signals(event_lag_s=0.0, net_delay_s=0.0, scrape_interval_s=float("inf"))
"""As DynoSim: routing takes no time, events come with the end of a pass, and no load is reported."""
TOLERANCE = {"ttft_mean_s": 0.02, "ttft_p99_s": 0.02, "tpot_mean_s": 0.02, "e2e_mean_s": 0.02}
"""By how much the engines may differ under round robin, as a share."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A trace on equal engines at several speeds.

    Attributes:
        trace: As the league takes it.
        kv_tokens: Capacity of a worker's cache.
        unit: Speed at x1: the divisor of arrival times.
        loads: Multiples of that.
    """

    trace: str
    kv_tokens: int = KV_TOKENS
    unit: float = 1.0
    loads: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace at one speed."""

    setting: Setting
    load: float

    @property
    def speed(self) -> float:
        """The divisor of arrival times."""
        return self.setting.unit * self.load

    @property
    def workload(self) -> Workload:
        """The requests at their own speed."""
        return _requests(self.setting.trace)

    @property
    def by_the_clock(self) -> Cell:
        """The cell with turns that wait for no answer.

        Where they do, round robin places all that follow one late answer elsewhere: arrivals that differ by a
        millisecond change its mean TTFT by up to a tenth, in one simulator as between two.
        """
        return replace(self, setting=replace(self.setting, trace=self.setting.trace.replace(",loop=closed", "")))

    @property
    def fleet(self) -> FleetSpec:
        """The workers as cachelb's simulator has them; their time is a polynomial, whatever the device."""
        return FleetSpec.parse(
            f"{WORKERS}xa100-80",
            block_size=self.workload.block_size,
            kv_tokens=self.setting.kv_tokens,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEQS,
            timing=Polynomial(),
            commit="step_end",
        )

    @property
    def engine(self) -> dict[str, Any]:
        """The options of Dynamo's engine."""
        block_size = self.workload.block_size
        return {
            "backend": "vllm",
            "num_gpu_blocks": self.setting.kv_tokens // block_size,
            "block_size": block_size,
            "max_num_seqs": SEQS,
            "max_num_batched_tokens": BUDGET,
        }

    @property
    def key(self) -> str:
        """The key of its runs in a store."""
        return digest([_fingerprint(self.setting.trace), self.fleet.native(), self.speed])

    def facts(self) -> dict[str, Any]:
        """Return what tables say of it, as `cachelb_lab.sim.league.Cell.facts` does."""
        return {
            "trace": Trace.parse(self.setting.trace).label,
            "part": "all",
            "fleet": f"{WORKERS}xDynoSim",
            "model": "DynoSim",
            "load": f"x{self.load:g}",
            "realism": "none",
            "seed": FIRST_SEED,
        }


@cache
def _requests(trace: str) -> Workload:
    """Return requests that both simulators read alike.

    Their times have whole microseconds. No prompt finds the answer before it in a cache: Dynamo draws the tokens of
    answers.
    """
    workload = Trace.parse(trace).requests(FIRST_SEED)
    return replace(
        workload,
        arrival_s=np.round(workload.arrival_s, 6),
        think_s=np.round(workload.think_s, 6),
        output_hashes=workload.output_hashes[:0],
        output_offsets=np.zeros_like(workload.output_offsets),
    )


@cache
def _fingerprint(trace: str) -> str:
    return fingerprint(_requests(trace))


def play_ours(store: Store, cell: Cell, policy: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Run a policy of cachelb once per seed, or return its stored figures."""
    known = store.get("run", f"{cell.key}/{policy}")
    if known is None or known["runs"] < len(seeds):
        requests, fleet = cell.workload.speed_up(cell.speed), cell.fleet
        bound = PoolProfile(requests).hits(fleet.cache_tokens // requests.block_size)
        runs = []
        for seed in seeds:
            run = simulate(requests, fleet, policy, seed=seed, signals=AT_ONCE, sample_interval_s=float("inf"))
            runs.append(figures_of(measure(run, slo=SLO, bound=bound, infinite=bound)))
        row = {**cell.facts(), "cell": cell.key, "policy": policy, **summary(runs)}
        store.add("run", f"{cell.key}/{policy}", row)
    return store.get("run", f"{cell.key}/{policy}") or {}


def play_theirs(store: Store, cell: Cell, router: str, runs: int) -> dict[str, Any]:
    """Run a router of Dynamo, which draws without a seed, some times, or return its stored figures."""
    name = dynamo_name(router)
    known = store.get("run", f"{cell.key}/{name}")
    if known is None or known["runs"] < runs:
        call = Call.parse(router)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.jsonl")
            # Dynamo's own speed-up would shorten the pauses of a session as well.
            write_mooncake(trace, cell.workload.speed_up(cell.speed))
            job = {"trace": str(trace), "engine": cell.engine, "workers": WORKERS, "runs": runs}
            script = Path(__file__).with_name("theirs.py")
            made = subprocess.run(
                [str(PYTHON), str(script)],
                input=json.dumps({**job, "router": call.name, "options": dict(call.options)}),
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "DYN_LOG": "error"},
            )
        found = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
        kept = summary(found)
        store.add_import(cell.key, name, kept.pop("figures"), source=DYNAMO, **cell.facts(), **kept)
    return store.get("run", f"{cell.key}/{name}") or {}


def dynamo_name(router: str) -> str:
    """Return the name of a router of Dynamo in tables."""
    return f"Dynamo {router}"


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of runs, and the least and most of each figure."""
    columns = {name: [run[name] for run in runs] for name in NAMES if all(run.get(name) is not None for run in runs)}
    return {
        "runs": len(runs),
        "figures": {name: float(np.mean(values)) for name, values in columns.items()},
        "spread": {name: [min(values), max(values)] for name, values in columns.items()},
    }


def unequal(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return in which figures the engines differ by more than `TOLERANCE` under round robin."""
    one, other = ours["figures"], theirs["figures"]
    return [
        f"{name} {one[name]:.6g} here, {other[name]:.6g} in Dynamo"
        for name, most in TOLERANCE.items()
        if abs(one[name] / other[name] - 1) > most
    ]
