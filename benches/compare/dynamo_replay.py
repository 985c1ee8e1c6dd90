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


def main(trace: str, loads: list[float]) -> None:
    """Replay, and print."""
    # Where all modules of benches/ are imported there need not be a Dynamo.
    from dynamo._core import run_mocker_trace_replay  # pyright: ignore[reportMissingImports]

    for load in loads:
        for router in ("round_robin", "kv_router"):
            found = run_mocker_trace_replay(
                [trace],
                extra_engine_args={"engine": ENGINE},
                num_workers=8,
                router_mode=router,
                arrival_speedup_ratio=load,
                trace_block_size=512,
            ).summary
            row = {
                "load": load,
                "simulator": "Dynamo",
                "policy": router,
                "ttft_mean": found["mean_ttft_ms"],
                "ttft_p99": found["p99_ttft_ms"],
                "tpot": found["mean_tpot_ms"],
                "reuse": found["prefix_cache_reused_ratio"],
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [float(load) for load in sys.argv[2:]])
