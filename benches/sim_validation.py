"""Figures of the simulator beside published measurements: the rows of docs/maintainers/simulator-measured.md.

python benches/sim_validation.py --traces ../shared/traces

Asserts nothing; `tests/lab/sim/test_validation_*.py` do, and hold the settings of each row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benches.dynamo_router import DynamoRouter
from tests.lab.sim import test_validation_dynosim as dynosim
from tests.lab.sim import test_validation_kernels as kernels
from tests.lab.sim import test_validation_llmd as llmd
from tests.lab.sim import test_validation_mooncake as mooncake
from tests.lab.sim import test_validation_vllm_log as vllm_log

from cachelb_lab.sim import Signals, simulate
from cachelb_lab.sim.workloads.files.traces import read_mooncake

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachelb_lab.sim import SimResult, Workload

CONVERSATION = Path("mooncake", "conversation_trace.jsonl.xz")


def beside(ours: Iterable[float], theirs: Iterable[float]) -> str:
    """Write figures as simulated / reference (difference)."""
    pairs = zip(ours, theirs, strict=True)
    return "  ".join(f"{one:.4g}/{other:.4g} ({one / other - 1:+.1%})" for one, other in pairs)


def dynamo(requests: Workload) -> SimResult:
    """Route by Dynamo's own books."""
    signals = Signals(net_delay_s=0.0, event_lag_s=0.0, scrape_interval_s=float("inf"), kv_events=True)
    return simulate(requests, dynosim.FLEET, signals=signals, gateway=DynamoRouter(requests, 8, seed=1))


def print_dynosim(traces: Path) -> None:
    """Print the rows of DynoSim."""
    reference = dynosim.read_reference(traces)
    conversation = read_mooncake(traces / CONVERSATION, block_size=64)
    print("DynoSim: TTFT mean, p90, p99, TPOT, E2E (ms), reuse, output tok/s")
    for speed_up in (1.0, 2.0, 4.0):
        requests = conversation.speed_up(speed_up)
        runs = {
            "round-robin": ("round_robin", simulate(requests, dynosim.FLEET, "round-robin", signals=dynosim.AT_ONCE)),
            "overlap-cost": (
                "kv_router",
                simulate(requests, dynosim.FLEET, "overlap-cost+events", seed=1, signals=dynosim.AT_ONCE),
            ),
            "Dynamo's books": ("kv_router", dynamo(requests)),
        }
        for name, (mode, result) in runs.items():
            ours, theirs = dynosim.columns(result), reference[speed_up, mode]
            print(f"  x{speed_up:.0f} {name:15}", beside(ours.values(), (theirs[key] for key in ours)))


def print_vllm_log(traces: Path) -> None:
    """Print the statistics of the log."""
    log = vllm_log.read_log(traces)
    run = vllm_log.run_again(log, traces)
    print("vLLM on an RTX 4090: mean, p50, p90, p99 (s)")
    for name, ours, theirs in (
        ("TTFT", run.ttft_s, log.first - log.queued),
        ("TPOT", run.tpot_s, (log.last - log.first) / (log.tokens - 1)),
        ("latency", run.e2e_s, log.last - log.queued),
    ):
        print(f"  {name:8}", beside(vllm_log.statistics(ours), vllm_log.statistics(theirs)))
    print("  makespan", beside([run.end_s], [float(log.last.max() - log.queued[0])]))


def print_llmd(traces: Path) -> None:
    """Print the stages of llm-d's benchmark."""
    reference, simulated = llmd.read_reference(traces), llmd.run_stages()
    print("llm-d, 37 % capacity: mean TTFT (s), output tok/s")
    for rate in llmd.RATES:
        for name in llmd.CONFIGURATIONS:
            print(f"  {rate:3.0f}/s {name:8}", beside(simulated[rate, name], reference[rate, name]))


def print_mooncake(traces: Path) -> None:
    """Print Figure 5."""
    print("Mooncake, Figure 5: mean TTFT (s)")
    published = {"random": 19.65, "load": 5.27, "cache": 3.58}
    for name, seconds in mooncake.place(traces / CONVERSATION).items():
        print(f"  {name:8}", beside([seconds], [published[name]]))


def print_kernels(traces: Path) -> None:
    """Print the times of the cost model beside measured times of kernels."""
    print("kernels: charged / measured at least, at most")
    for gpu in kernels.NAMES:
        measured = kernels.read_kernels(traces)
        for op, sizes in (
            ("gemm", range(1, 65)),
            ("gemm", range(512, 8_193)),
            ("prefill", range(2_048, 16_385)),
            ("decode", range(32, 65)),
        ):
            ratios = kernels.ratios(measured, gpu, op, sizes)
            print(f"  {gpu:9} {op:7} {sizes.start:>5}-{sizes.stop - 1:<6} {np.min(ratios):.2f} {np.max(ratios):.2f}")


def main() -> None:
    """Print every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder with mooncake/, anchors/ and llmservingsim/")
    traces = parser.parse_args().traces
    print_dynosim(traces)
    print_vllm_log(traces)
    print_llmd(traces)
    print_mooncake(traces)
    print_kernels(traces)


if __name__ == "__main__":
    main()
