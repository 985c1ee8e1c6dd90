"""Pairs weighed by cost, against every prompt computed apart and beside: `python -m benches.pairs`."""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import Any

import numpy as np

from cachelb_lab.sim import FleetSpec, build, simulate
from cachelb_lab.sim.simulation import prepare

H100 = {"chat": (1, 12), "rag": (1, 3), "agent": (1, 8), "tool-agent": (1, 3)}
A30 = {"chat": (1, 3), "rag": (0.2, 0.4), "agent": (0.3, 1), "tool-agent": (0.2, 0.4)}
CELLS = ((4, 4, "h100", H100), (2, 6, "h100", H100), (6, 2, "h100", H100), (4, 4, "a30", A30))
APART: dict[str, Any] = {"prefill_policy": "prefill-times-batch", "pd_uncached_token_threshold": 0}
BESIDE: dict[str, Any] = {
    "prefill_policy": "adaptive",
    "decode_policy": "adaptive",
    "pd_uncached_token_threshold": 1 << 39,
}


def ways(prefill: int, decode: int, gpu: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """List fleets and options of the router by name."""
    split = f"{prefill}x{gpu}@prefill+{decode}x{gpu}@decode"
    return {
        "apart": (split, APART),
        "beside": (split, BESIDE),
        "all": (f"{prefill + decode}x{gpu}", {}),
        "weighed": (split, {}),
        "weighed, e2e": (split, {"objective": "e2e"}),
    }


def cell(kind: str, times: float, fleet: tuple[int, int, str], seeds: list[int], count: int) -> list[str]:
    """Run every way over some seeds: mean TTFT / mean time per output token in milliseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        workload = build(kind, seed=seed, count=count).speed_up(times)
        prepared = prepare(workload)
        for name, (spec, options) in ways(*fleet).items():
            result = simulate(workload, FleetSpec.parse(spec), seed=1, prepared=prepared, **options)
            done = result.finished
            pair = (float(result.ttft_s[done].mean()), float(np.nanmean(result.tpot_s[done])))
            found.setdefault(name, []).append(pair)
    means = [[1e3 * fmean(column) for column in zip(*runs, strict=True)] for runs in found.values()]
    return [f"{ttft:.0f} / {tpot:.1f}" for ttft, tpot in means]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="21,22")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("| fleet, requests |", " | ".join(ways(1, 1, "h100")), "|")
    print("|---" * (1 + len(ways(1, 1, "h100"))) + "|")
    for prefill, decode, gpu, loads in CELLS:
        for kind, speeds in loads.items():
            for times in speeds:
                row = cell(kind, times, (prefill, decode, gpu), seeds, options.count)
                print(f"| {prefill}P+{decode}D {gpu.upper()}, {kind} x{times} |", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
