"""A trace through Dynamo's simulator with its router, and through cachelb's with several policies, on equal engines.

    python -m benches.compare.replays --traces ../shared/traces      # two minutes

Dynamo runs in the environment that `python -m benches.compare` made; docs/simulator.md says how far both simulators
agree.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benches.sim_validation import CONVERSATION
from tests.sim import test_validation_dynosim as dynosim

from cachelb.sim import simulate
from cachelb.sim.workloads.traces import read_mooncake

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench-results" / "compare-replays.json"
THEIRS = ROOT / ".venv-compare" / "bin" / "python"
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
    parser.add_argument("--traces", type=Path, required=True, help="folder with mooncake/")
    trace = parser.parse_args().traces / CONVERSATION
    if not THEIRS.exists():
        raise SystemExit("Dynamo is not installed: run `make wheel && python -m benches.compare` first")
    rows = [*_theirs(trace), *_ours(trace)]
    # By load, Dynamo first.
    rows.sort(key=lambda row: row["load"])
    RUN.parent.mkdir(exist_ok=True)
    RUN.write_text(json.dumps({"rows": rows}, indent=2), encoding="utf-8")


def _theirs(trace: Path) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as plain:
        plain.write(lzma.decompress(trace.read_bytes()))
        plain.flush()
        script = Path(__file__).with_name("dynamo_replay.py")
        command = [str(THEIRS), str(script), plain.name, *map(str, LOADS)]
        print("Dynamo's simulator", file=sys.stderr)
        environment = {**os.environ, "DYN_LOG": "error"}
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def _ours(trace: Path) -> list[dict[str, Any]]:
    conversation = read_mooncake(trace, block_size=64)
    rows: list[dict[str, Any]] = []
    for load in LOADS:
        requests = conversation.speed_up(load)
        for policy, (name, options) in POLICIES.items():
            print(f"x{load:.0f} {policy}", file=sys.stderr)
            run = simulate(requests, dynosim.FLEET, name, seed=1, signals=dynosim.AT_ONCE, **options)
            ours = dynosim.columns(run)
            rows.append({"load": load, "simulator": "cachelb", "policy": policy, **{key: ours[key] for key in _KEPT}})
    return rows


if __name__ == "__main__":
    main()
