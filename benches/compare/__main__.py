"""Install the alternatives beside cachelb, measure all in one run, write docs/maintainers/compare.md and its picture.

    python -m benches.compare                     # about ten minutes, after a download of 500 MB
    python -m benches.compare --calls 64          # fewer calls
    python -m benches.compare --task matching     # one task; the others keep the figures of the last run
    python -m benches.compare --crates            # the Rust crates instead; builds them first
    python -m benches.compare --write             # write the page of the last run again
    python -m benches.compare --here              # install nothing, print the page of installed ones; --json

Traces through Dynamo's simulator are a command of their own: `python -m benches.dynamo`.

With production-stack's source at hand, PYTHONPATH=.../src adds its index: it has no release.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benches.compare.environment import PYTHON, install
from benches.compare.page import page, picture
from benches.compare.tasks import measure
from benches.structures.running import TASKS

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench-results" / "compare.json"
CRATES = ROOT / "bench-results" / "compare-crates.json"


def main() -> None:
    """Run the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--task", action="append", default=[], choices=TASKS, help="as of benches.structures")
    parser.add_argument("--crates", action="store_true", help="measure the Rust crates")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--here", action="store_true", help="measure in this environment, write nothing")
    parser.add_argument("--json", action="store_true", help="with --here, print JSON")
    given = parser.parse_args()
    if given.here:
        logging.disable(logging.INFO)  # Ray sends every logger's lines to the terminal
        run = measure(given.task, calls=given.calls, progress=lambda task: print(task, file=sys.stderr)).to_dict()
        print(json.dumps(run, indent=2) if given.json else page(run, None))
        return
    if given.crates:
        _measure_crates()
    elif not given.write:
        _install()
        _measure(given.calls, given.task)
    report = _read(RUN)
    if report is None:
        raise SystemExit(f"there is no {RUN.relative_to(ROOT)}: run without --write and --crates first")
    docs = ROOT / "docs" / "maintainers"
    (docs / "compare.md").write_text(page(report, _read(CRATES)), encoding="utf-8")
    picture(report, docs / "images" / "compare.svg")
    print("wrote docs/maintainers/compare.md and docs/maintainers/images/compare.svg", file=sys.stderr)


def _install() -> None:
    """Make the environment, or bring it up to date."""
    wheels = sorted((ROOT / "target" / "wheels").glob("*.whl"))
    if not wheels:
        raise SystemExit("there is no wheel: run `make wheel` first")
    install()
    install("--force-reinstall", "--no-deps", str(wheels[-1]))


def _measure(calls: int, tasks: list[str]) -> None:
    """Run `--here` in that environment."""
    # Dynamo logs every worker it meets.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DYN_LOG": "error"}
    command = [str(PYTHON), "-m", "benches.compare", "--here", "--json", "--calls", str(calls)]
    command += [argument for task in tasks for argument in ("--task", task)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    # The alternatives print before the document.
    report = json.loads(run.stdout[run.stdout.index("{\n") :])
    before = _read(RUN) if tasks else None
    if before is not None:
        again = {row["task"] for row in report["rows"]}
        report["rows"] = [row for row in before["rows"] if row["task"] not in again] + report["rows"]
    _keep(RUN, report)


def _measure_crates() -> None:
    """Build the comparison of crates, and run it."""
    manifest = Path(__file__).parent / "crates" / "Cargo.toml"
    target = ROOT / "target" / "compare"
    command = ["cargo", "run", "--release", "--locked", "--manifest-path", str(manifest), "--target-dir", str(target)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    _keep(CRATES, json.loads(run.stdout))


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _keep(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
