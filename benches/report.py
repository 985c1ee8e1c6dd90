"""Run every benchmark, print one table with the targets beside it, write the same as JSON.

Run by `make bench`; figures are medians of single calls. Exits with 1 when a benchmark fails (a wrong answer aborts
it), not when a target is missed: whether a machine is fast enough is for the reader.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench-results"
PYTHON = ".venv/bin/python"
"""Interpreter of a checkout that `make build` and `make bench` prepared."""
CORE_BENCHES = ("body", "decode", "events", "hashing", "index", "fed", "feeds", "learned", "memory", "radix")
IMPORTS = 21
IMPORT_TIMER = "import time; start = time.perf_counter(); import cachelb; print((time.perf_counter() - start) * 1e3)"

SCRIPTS = ("fed_selection", "steady_router", "radix_pause", "sharing_cost", "snapshots", "learned_training")

# The first pattern that matches a row's id gives its target: at most so much, in the row's unit.
TARGETS: tuple[tuple[str, float], ...] = (
    (r"body/chat-2K/hash", 2.0),
    (r"body/prose-32K/hash", 15.0),
    (r"body/code-35K/hash", 40.0),
    (r"body/tools-1M/hash", 1200.0),
    (r"body/(code-35K|tools-1M)/ratio", 2.5),
    (r"decode/store-1/", 250.0),
    (r"decode/store-64/", 25.0),
    (r"events/apply-64/", 50.0),
    (r"events/drain-1/", 1000.0),
    (r"events/drain-64/", 125.0),
    (r"hash/32768tok/B16/warm", 9.0),
    (r"feeds/decode/", 1000.0),
    (r"feeds/prefill/", 125.0),
    (r"fed/match/.*/128/cold", 1.6),
    (r"fed/match/.*/2048/cold", 2.0),
    (r"fed/announce/.*/64new", 60.0),
    (r"fit/mlp/10000", 2000.0),
    (r"predict/mlp/16rows", 15.0),
    (r"predict/mlp/256rows", 250.0),
    (r"coreset/", 1000.0),
    (r"match/64w/.*/128/cold", 1.2),
    (r"match/64w/.*/2048/cold", 1.5),
    (r"match/64w/.*/8192/cold", 2.0),
    (r"match/1024w/.*/2048/cold", 2.5),
    (r"touch/", 0.2),
    (r"store/.*/evicting", 60.0),
    (r"store/", 25.0),
    (r"bytes/events/int", 64.0),
    (r"bytes/one-holder", 32.0),
    (r"bytes/further-holder", 2.0),
    (r"python/fed_selection/p99-ratio", 3.0),
    (r"python/record_request/32768/buffer/known", 12.0),
    (r"python/record_request/32768/list/known", 65.0),
    (r"python/select_worker/512/", 5.0),
    (r"python/select_worker/32768/known", 20.0),
    (r"python/select_worker/131072/known", 50.0),
    (r"python/admission/release/shortest-uncached", 1000.0),
    (r"python/admission/release/", 50.0),
    (r"python/router/steady/16/learned/", 25.0),
    (r"python/router/steady/256/learned/", 400.0),
    (r"python/router/steady/", 6.0),
    (r"python/router/1024/", 20.0),
    (r"python/router/learned/16/", 25.0),
    (r"python/router/learned/256/", 400.0),
    (r"python/learned/round/", 10.0),
    (r"python/learned/slowdown/", 2.0),
    (r"python/router/64/text-8192", 15.0),
    (r"python/router/64/body-2K", 8.0),
    (r"python/router/64/custom", 30.0),
    (r"python/router/64/(?!messages)", 6.0),
    (r"radix/evict-part/", 1000.0),
    (r"python/radix/texts-32768/known", 30.0),
    (r"python/radix/texts-32768/first", 60.0),
    (r"python/radix/tokens-32768/known", 15.0),
    (r"python/radix/tokens-32768/first", 40.0),
    (r"python/radix/bytes-per-short-prompt", 400.0),
    (r"python/radix/pause/evicting", 1000.0),
    (r"python/sharing/select/.*/added", 2.0),
    (r"python/sharing/wire/", 24.0),
    (r"python/snapshots/(write|write-file|restore|peer-tell|peer-hear)$", 1000.0),
    (r"python/snapshots/bytes-per-block", 24.0),
    (r"python/import", 30.0),
    (r"wheel", 3.24),  # 3.4 MB, of which 1.3 for the gRPC server with TLS
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measured figure; the fields are those of the JSON lines that the Rust benches print."""

    id: str
    unit: str
    p50: float
    p99: float
    n: int
    note: str

    @property
    def target(self) -> float | None:
        """The most that `p50` should be, if the row has a target."""
        return next((limit for pattern, limit in TARGETS if re.match(pattern, self.id)), None)

    @property
    def verdict(self) -> str:
        """Say whether the target is met."""
        if self.target is None:
            return ""
        return "met" if self.p50 <= self.target else f"missed, {self.p50 / self.target:.2f}x"


def core_rows(bench: str, root: Path = ROOT) -> list[Row]:
    """Run a Rust bench of the checkout `root`."""
    command = ["cargo", "bench", "--quiet", "--locked", "--bench", bench]
    run = subprocess.run(command, check=True, cwd=root, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in run.stdout.splitlines() if line.startswith("{")]


def script_rows(name: str, root: Path = ROOT) -> list[Row]:
    """Run a measurement of the checkout `root` that is a script of its own."""
    command = [f"{root}/{PYTHON}", "-m", f"benches.{name}"]
    run = subprocess.run(command, check=True, cwd=root, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in run.stdout.splitlines()]


def boundary_rows(root: Path = ROOT) -> list[Row]:
    """Run the pytest-benchmark suite of the Python boundary of the checkout `root`."""
    data_file = root / "bench-results" / "boundary.json"
    data_file.parent.mkdir(exist_ok=True)
    command = [
        f"{root}/{PYTHON}",
        "-m",
        "pytest",
        "benches",
        "--quiet",
        "--benchmark-only",
        f"--benchmark-json={data_file}",
    ]
    subprocess.run([*command, "--benchmark-columns=median"], check=True, cwd=root, stdout=sys.stderr)
    rows = []
    for bench in json.loads(data_file.read_text("utf-8"))["benchmarks"]:
        times = sorted(bench["stats"]["data"])
        rows.append(
            Row(
                id=bench["extra_info"]["id"],
                unit="us",
                p50=statistics.median(times) * 1e6,
                p99=times[(len(times) - 1) * 99 // 100] * 1e6,
                n=len(times),
                note=bench["extra_info"]["note"],
            )
        )
    data_file.unlink()
    return rows


def import_row(root: Path = ROOT) -> Row:
    """Time `import cachelb` in new interpreters of the checkout `root`."""
    command = [f"{root}/{PYTHON}", "-c", IMPORT_TIMER]
    times = sorted(
        float(subprocess.run(command, check=True, cwd=root, capture_output=True, text=True).stdout)
        for _ in range(IMPORTS)
    )
    return Row(
        "python/import", "ms", statistics.median(times), times[-1], IMPORTS, "new interpreter each, p99 = slowest"
    )


def wheel_row() -> Row:
    """Weigh the wheel that `make wheel` left behind."""
    (wheel,) = (ROOT / "target" / "wheels").glob("cachelb-*.whl")
    size = wheel.stat().st_size / 2**20
    return Row("wheel", "MiB", size, size, 1, wheel.name)


def machine() -> dict[str, Any]:
    """Describe where and on what the figures were taken."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "rustc": rustc.stdout.strip(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def table(rows: list[Row]) -> str:
    """Lay the rows out, those with a target first."""
    lines = [("what", "p50", "p99", "unit", "target", "", "note")]
    lines += [
        (
            row.id,
            f"{row.p50:.2f}",
            f"{row.p99:.2f}",
            row.unit,
            "" if row.target is None else f"<= {row.target:g}",
            row.verdict,
            row.note,
        )
        for row in sorted(rows, key=lambda row: row.target is None)
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    right = (1, 2)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def main() -> int:
    """Measure, print, write."""
    RESULTS.mkdir(exist_ok=True)
    where = machine()
    scripts = [row for name in SCRIPTS for row in script_rows(name)]
    core = [row for bench in CORE_BENCHES for row in core_rows(bench)]
    rows = [*core, *boundary_rows(), *scripts, import_row(), wheel_row()]
    print("{cpu}, {cores} cores, load {load} at the start; Python {python}, {rustc}; commit {commit}".format(**where))
    print(table(rows))
    path = RESULTS / f"{where['date']}-{where['commit']}.json"
    results = [{**dataclasses.asdict(row), "target": row.target, "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({"machine": where, "rows": results}, indent=1) + "\n", "utf-8")
    print(f"\nwritten to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
