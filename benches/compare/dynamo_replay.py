"""A trace through Dynamo's simulator with each of its routers: a line of JSON each.

Runs in the environment of the alternatives, which has no cachelb of this checkout; see replays.py.
"""

from __future__ import annotations

import json
import sys

ENGINE = {
    "backend": "vllm",
    "num_gpu_blocks": 6_400,
    "block_size": 64,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8_192,
}
"""As `tests/sim/test_validation_dynosim.py` has the fleet, with Dynamo's default timing."""
RUNS = {"round_robin": 1, "kv_router": 4}
"""Dynamo's router draws equal costs without a seed: the mean of several runs."""
FIGURES = {
    "ttft_mean": "mean_ttft_ms",
    "ttft_p99": "p99_ttft_ms",
    "tpot": "mean_tpot_ms",
    "reuse": "prefix_cache_reused_ratio",
}


def main(trace: str, loads: list[float]) -> None:
    """Replay, and print."""
    # Where all modules of benches/ are imported there need not be a Dynamo.
    from dynamo._core import run_mocker_trace_replay  # pyright: ignore[reportMissingImports]

    for load in loads:
        for router, runs in RUNS.items():
            found = [
                run_mocker_trace_replay(
                    [trace],
                    extra_engine_args={"engine": ENGINE},
                    num_workers=8,
                    router_mode=router,
                    arrival_speedup_ratio=load,
                    trace_block_size=512,
                ).summary
                for _ in range(runs)
            ]
            figures = {key: sum(run[theirs] for run in found) / runs for key, theirs in FIGURES.items()}
            print(json.dumps({"load": load, "simulator": "Dynamo", "policy": router, **figures}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [float(load) for load in sys.argv[2:]])
