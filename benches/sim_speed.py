"""Time and memory of simulated runs, each in a process of its own. Not part of the checks.

python benches/sim_speed.py --trace conversation_trace.jsonl.xz --requests 100000 1000000

A row is a whole process: start, imports, reading or generating, the run with policy `cache-aware` over eight A100,
16-token blocks. `cpu s` is its processor time, which other work on the machine changes least; memory is the most that
was resident. `us/request`, of processor time in the run alone, shows whether it grows with the number of requests.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

FLEET = "8xa100"
POLICY = "cache-aware"


def run(trace: Path | None, generator: str, requests: int) -> None:
    """Read or generate, simulate, and print what it took as JSON."""
    from cachelb_lab.sim import FleetSpec, build, prepare, simulate
    from cachelb_lab.sim.workloads import read_workload

    workload = build(generator, seed=1, count=requests) if trace is None else read_workload(trace)
    prepared = prepare(workload)
    ready = time.process_time()
    result = simulate(workload, FleetSpec.parse(FLEET), POLICY, seed=1, prepared=prepared)
    assert result.finished.all()
    row = {
        "workload": workload.name,
        "requests": len(workload),
        "cpu_s": time.process_time(),
        "run_s": time.process_time() - ready,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(row))


def main() -> None:
    """Measure each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a trace to run whole")
    parser.add_argument("--requests", type=int, nargs="*", default=[100_000], help="how many to generate")
    parser.add_argument("--generator", default="prefix-mixed", help="workload to generate")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        run(options.trace, options.generator, *options.requests or [0])
        return
    print("workload                       requests  whole s    cpu s   us/request   peak MiB")
    rows = [["--requests", str(count), "--generator", options.generator] for count in options.requests]
    if options.trace:
        rows.insert(0, ["--trace", str(options.trace), "--requests", "0"])
    for row in rows:
        begin = time.perf_counter()
        command = [sys.executable, __file__, "--row", *row]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        whole_s = time.perf_counter() - begin
        print(
            f"{done['workload']:28} {done['requests']:>10,} {whole_s:8.1f} {done['cpu_s']:8.1f}"
            f" {done['run_s'] / done['requests'] * 1e6:12.1f} {done['peak_mib']:10.0f}"
        )


if __name__ == "__main__":
    main()
