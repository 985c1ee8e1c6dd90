"""A trace through Dynamo's simulator: settings come as JSON on standard input, a line of JSON per run goes out.

Runs in an environment of its own, which has Dynamo and no cachelb; see play.py.
"""

from __future__ import annotations

import json
import sys

FIGURES = {
    "requests": ("num_requests", 1.0),
    "ttft_mean_s": ("mean_ttft_ms", 1e-3),
    "ttft_p50_s": ("median_ttft_ms", 1e-3),
    "ttft_p99_s": ("p99_ttft_ms", 1e-3),
    "tpot_mean_s": ("mean_tpot_ms", 1e-3),
    "e2e_mean_s": ("mean_e2e_latency_ms", 1e-3),
    # As cachelb counts: a preempted request counts at its first admission.
    "hit_rate": ("first_admission_prefix_cache_reused_ratio", 1.0),
}
"""Figures of a league by Dynamo's names, and the size of its units."""


def main() -> None:
    """Replay, and print."""
    # Where all modules of benches/ are imported there need not be a Dynamo.
    from dynamo._core import KvRouterConfig, run_mocker_trace_replay  # pyright: ignore[reportMissingImports]

    job = json.load(sys.stdin)
    for _ in range(job["runs"]):
        summary = run_mocker_trace_replay(
            [job["trace"]],
            extra_engine_args={"engine": job["engine"]},
            num_workers=job["workers"],
            router_mode=job["router"],
            router_config=KvRouterConfig(**job["options"]) if job["options"] else None,
            trace_block_size=job["engine"]["block_size"],
        ).summary
        figures = {name: summary[theirs] * unit for name, (theirs, unit) in FIGURES.items()}
        figures["unserved"] = summary["num_requests"] - summary["completed_requests"]
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
