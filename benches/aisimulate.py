"""AISimulate's times of a pass as the engine: by how much cachelb's H100 differs, and policies before such engines.

    python -m benches.aisimulate                        # the first run installs 1.5 GB into .venv-aisimulate

Single requests of many sizes are timed by AISimulate's forward-pass model of Llama-3.1-8B in vLLM on an H100, which
interpolates measured kernels. `fit_scale` fits cachelb's cost model to them, as to an engine of one's own.
"""

from __future__ import annotations

import json
import subprocess
from itertools import product
from pathlib import Path
from statistics import fmean

from benches.compare.environment import install_into

from cachelb_lab.sim import FleetSpec, Measurement, build, fit_scale, simulate
from cachelb_lab.sim.figures.metrics import hit_rate
from cachelb_lab.sim.timing import Roofline

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-aisimulate"
PACKAGE = "aisimulate==0.13.0.dev202610270000000085"
"""A wheel of PyPI. The sources of 0.12 and 0.13.0 there fetch their wheels from an index of NVIDIA's own."""
POLICIES = ("adaptive+events", "adaptive", "cache-aware", "prefill-times-batch", "overlap-cost+events", "round-robin")
SEEDS = (1, 2, 3)
CHUNK = 8_192
SIZES = [(cached + new, cached, 100) for cached, new in product((0, 8_192, 32_768, 98_304), (256, 1_024, 4_096, 8_192))]
THEIRS = """
import json, sys
from aisimulate_core import RustForwardPassPerfModel
asked = {"worker_type": "aggregated", "model": "meta-llama/Meta-Llama-3.1-8B", "system": "h100_sxm", "backend": "vllm"}
model = RustForwardPassPerfModel.best_available(json.dumps(asked))
for prompt, cached, output in json.load(sys.stdin):
    first = model.predict_prefill_latency_total(1, prompt - cached, cached)
    rest = sum(model.predict_decode_latency_total(1, prompt + at) for at in range(1, output))
    print(json.dumps([first / 1e3, (first + rest) / 1e3]))
"""


def main() -> None:
    """Fit, then run the policies with both timings."""
    if not VENV.exists():
        install_into(VENV, PACKAGE)
    command = [str(VENV / "bin" / "python"), "-c", THEIRS]
    made = subprocess.run(command, input=json.dumps(SIZES), stdout=subprocess.PIPE, text=True, check=True)
    times = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("[")]
    measured = [
        Measurement(prompt, cached, output, ttft_s=first, total_s=whole)
        for (prompt, cached, output), (first, whole) in zip(SIZES, times, strict=True)
    ]
    worker = FleetSpec.parse("1xh100", max_num_batched_tokens=CHUNK).workers[0]
    fitted = fit_scale(measured, worker)
    print(f"AISimulate / cachelb: prefill {fitted.prefill:.2f}, decode {fitted.decode:.2f}\n")
    agents = [build("coding-agent", seed=seed, count=3_000, rate=0.02) for seed in SEEDS]
    print("| policy | TTFT mean, s | hits | TTFT mean, AISimulate's | hits |\n|---|---:|---:|---:|---:|")
    for policy in POLICIES:
        cells = []
        for timing in (Roofline(), fitted):
            fleet = FleetSpec.parse("8xh100", timing=timing, max_num_batched_tokens=CHUNK)
            runs = [
                simulate(each, fleet, policy, seed=seed, sample_interval_s=float("inf"))
                for seed, each in zip(SEEDS, agents, strict=True)
            ]
            ttft_s = fmean(float(run.ttft_s.mean()) for run in runs)
            cells += [f"{ttft_s:.2f}", f"{fmean(map(hit_rate, runs)):.1%}"]
        print(f"| `{policy}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
