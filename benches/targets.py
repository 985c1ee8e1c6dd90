"""The targets and the figures reached, in one table: writes docs/maintainers/targets.md.

    make bench && python -m benches.compare && python -m benches.targets

Figures of speed and memory come from the newest file that `make bench` left in bench-results/, those of alternatives
from `python -m benches.compare`; everything else, which takes longer or needs real engines, stands in
benches/targets.toml with the command that measures it again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench-results"
COLUMNS = "| what | target | reached | | best alternative | measured by |\n|---|---|---|---|---|---|\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, help="file that `make bench` wrote; the newest if not given")
    parser.add_argument("--compare", type=Path, default=RESULTS / "compare.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "maintainers" / "targets.md")
    given = parser.parse_args()
    newest = given.bench or max(RESULTS.glob("20*.json"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise SystemExit("there are no figures in bench-results: run `make bench` first")
    if not given.compare.exists():
        raise SystemExit(f"there is no {given.compare}: run `python -m benches.compare` first")
    known = tomllib.loads((ROOT / "benches" / "targets.toml").read_text(encoding="utf-8"))
    bench = json.loads(newest.read_text(encoding="utf-8"))
    given.out.write_text(page(known, bench, json.loads(given.compare.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"wrote {given.out}", file=sys.stderr)


def page(known: dict[str, Any], bench: dict[str, Any], compare: dict[str, Any]) -> str:
    """Write the page.

    Args:
        known: The contents of targets.toml: a `head`, and `group`s with a `title` and `row`s.
        bench: Output of `make bench`.
        compare: Output of `python -m benches.compare`.

    Returns:
        Markdown.

    Raises:
        ValueError: A row names measurements that do not exist.
    """
    parts = [known["head"].format(**bench["machine"])]
    met = missed = 0
    for group in known["group"]:
        parts.append(f"\n## {group['title']}\n\n{COLUMNS}")
        for row in group["row"]:
            target, reached, verdict, command = (
                _measured(row, bench["rows"])
                if "rows" in row
                else (row["target"], row["reached"], row["verdict"], row["by"])
            )
            met += verdict == "met"
            missed += verdict.startswith("missed")
            beside = _beside(row["beside"], compare["rows"]) if "beside" in row else row.get("alternative", "")
            parts.append(f"| {row['what']} | {target} | {reached} | {verdict} | {beside} | {command} |\n")
    return "".join(parts).replace("{met}", str(met)).replace("{missed}", str(missed))


def _measured(row: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Return target, figure and verdict of the rows of `make bench` that a pattern finds."""
    found = [each for each in rows if re.match(row["rows"], each["id"])]
    if not found:
        raise ValueError(f"no row of `make bench` is like {row['rows']!r}, which {row['what']!r} asks for")
    limits, units = {each["target"] for each in found}, {each["unit"] for each in found}
    if len(limits) != 1 or None in limits or len(units) != 1:
        raise ValueError(f"rows like {row['rows']!r} have targets {limits} in {units}, not one")
    (limit,), (unit,) = limits, units
    values = sorted(each["p50"] for each in found)
    worse = sum(value > limit for value in values)
    reached = _figure(values[0]) if len(values) == 1 else f"{_figure(values[0])} to {_figure(values[-1])}"
    of = f" in {worse} of {len(values)}" if len(values) > 1 else ""
    verdict = f"missed{of}, {values[-1] / limit:.2f}x" if worse else "met"
    return f"{limit:g} {unit}", f"{reached} {unit}", verdict, "`make bench`"


def _beside(task: str, rows: list[dict[str, Any]]) -> str:
    """Return the best alternative at a task of the comparison, and how it compares."""
    times = {row["contender"]: row["p50"] for row in rows if row["task"] == task}
    own = times.get("cachelb")
    others = {name: time for name, time in times.items() if not name.startswith("cachelb")}
    if own is None or not others:
        raise ValueError(
            f"the comparison has no contenders at {task!r}; its tasks are {sorted({r['task'] for r in rows})}"
        )
    best = min(others, key=lambda name: others[name])
    return f"{best}: {others[best] / own:.1f}x"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
