"""A trace through Dynamo's simulator with its router, and through cachelb's with several policies, on equal engines.

    python -m benches.compare.replays --traces ../shared/traces      # ten minutes

Dynamo's figures are those of `anchors/dynosim_1.6.1_conversation.json`, which `run_mocker_trace_replay` of
ai-dynamo-runtime 1.6.1 gave; docs/simulator.md says how far both simulators agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benches.sim_validation import CONVERSATION
from tests.sim import test_validation_dynosim as dynosim

from cachelb.sim import simulate
from cachelb.sim.workloads.traces import read_mooncake

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench-results" / "compare-replays.json"
LOADS = (1.0, 2.0, 4.0)
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "round-robin": ("round-robin", {}),
    "overlap-cost+events": ("overlap-cost+events", {}),
    "cache-aware+events": ("cache-aware+events", {}),
    "prefill-times-batch+events": ("prefill-times-batch+events", {}),
    "the same, crowding=1": ("prefill-times-batch+events", {"crowding": 1.0}),
}
_KEPT = ("ttft_mean", "ttft_p99", "tpot", "reuse")


def main() -> None:
    """Simulate, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder with mooncake/ and anchors/")
    traces = parser.parse_args().traces
    reference = dynosim.read_reference(traces)
    conversation = read_mooncake(traces / CONVERSATION, block_size=64)
    rows: list[dict[str, Any]] = []
    for load in LOADS:
        for mode in ("round_robin", "kv_router"):
            theirs = reference[load, mode]
            rows.append({"load": load, "simulator": "Dynamo", "policy": mode, **{key: theirs[key] for key in _KEPT}})
        for policy, (name, options) in POLICIES.items():
            print(f"x{load:.0f} {policy}", file=sys.stderr)
            requests = conversation.speed_up(load)
            run = simulate(requests, dynosim.FLEET, name, seed=1, signals=dynosim.AT_ONCE, **options)
            ours = dynosim.columns(run)
            rows.append({"load": load, "simulator": "cachelb", "policy": policy, **{key: ours[key] for key in _KEPT}})
    RUN.parent.mkdir(exist_ok=True)
    RUN.write_text(json.dumps({"rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
