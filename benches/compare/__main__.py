"""Install the alternatives beside cachelb, measure all in one run, write docs/compare.md and its picture.

    python -m benches.compare                     # about five minutes, after a download of 500 MB
    python -m benches.compare --calls 64          # fewer calls
    python -m benches.compare --write             # write the page of the last run again

With production-stack's source at hand, PYTHONPATH=.../src adds its index: it has no release.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benches.compare.page import page, picture

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-compare"
RUN = ROOT / "bench-results" / "compare.json"


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--write", action="store_true", help="measure nothing")
    given = parser.parse_args()
    if not given.write:
        _install()
        _measure(given.calls)
    report = json.loads(RUN.read_text(encoding="utf-8"))
    docs = ROOT / "docs"
    (docs / "compare.md").write_text(page(report), encoding="utf-8")
    picture(report, docs / "images" / "compare.svg")
    print("wrote docs/compare.md and docs/images/compare.svg", file=sys.stderr)


def _install() -> None:
    """Make the environment, or bring it up to date."""
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    wheels = sorted((ROOT / "target" / "wheels").glob("*.whl"))
    if not wheels:
        raise SystemExit("there is no wheel: run `make wheel` first")
    pip = [str(VENV / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(Path(__file__).parent / "requirements.txt")], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheels[-1])], check=True)
    subprocess.run([*pip, "click", "rich"], check=True)


def _measure(calls: int) -> None:
    """Run the comparison there."""
    # Dynamo logs every worker it meets.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DYN_LOG": "error"}
    command = [str(VENV / "bin" / "cachelb"), "bench", "--json", "--calls", str(calls)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    RUN.parent.mkdir(exist_ok=True)
    # Whatever the alternatives print comes before the document.
    RUN.write_text(run.stdout[run.stdout.index("{\n") :], encoding="utf-8")


if __name__ == "__main__":
    main()
