"""Compare `make bench` with that of another checkout, interleaved in one run.

    git worktree add ../before v0.1.0 && make -C ../before build .venv/.group-test .venv/.group-bench
    python -m benches.against ../before --rounds 7 --part index --part steady_router

Every round runs each part in both checkouts, in the order old-new, then new-old, so that slow phases of the machine hit
both alike. Prints, per row, both medians, and the median and quartiles of the ratios new / old of the rounds.
A row is slower if the median ratio exceeds `--most` and the lower quartile is above 1: one slow round does not count.
Exits with 1 if a row is slower.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from benches.report import (
    CORE_BENCHES,
    RESULTS,
    ROOT,
    SCRIPTS,
    Row,
    boundary_rows,
    core_rows,
    import_row,
    machine,
    script_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

PARTS = (*CORE_BENCHES, "boundary", *SCRIPTS, "import")


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A row of `make bench` in both checkouts; `low`, `ratio` and `high` are quartiles of new / old."""

    row: str
    old: float
    new: float
    low: float
    ratio: float
    high: float
    slower: bool


def measure(part: str, root: Path) -> list[Row]:
    """Run one part of `make bench` in the checkout `root`."""
    if part in CORE_BENCHES:
        return core_rows(part, root)
    if part == "boundary":
        return boundary_rows(root)
    return [import_row(root)] if part == "import" else script_rows(part, root)


def compare(old: Path, parts: Iterable[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the figures of both checkouts, a pair per round, by row."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for part in parts:
        for number in range(rounds):
            print(f"{part}: round {number + 1} of {rounds}", file=sys.stderr)
            order = (old, ROOT) if number % 2 == 0 else (ROOT, old)
            figures = {root: {row.id: row.p50 for row in measure(part, root)} for root in order}
            for row, before in figures[old].items():
                if row in figures[ROOT]:
                    pairs[row].append((before, figures[ROOT][row]))
    return pairs


def summarise(pairs: dict[str, list[tuple[float, float]]], most: float) -> list[Compared]:
    """Return per row the medians, the quartiles of the ratios and whether the new checkout is slower."""
    rows: list[Compared] = []
    for row, figures in pairs.items():
        ratios = [after / before if before else 1.0 for before, after in figures]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        rows.append(
            Compared(
                row=row,
                old=statistics.median(before for before, _ in figures),
                new=statistics.median(after for _, after in figures),
                low=low,
                ratio=middle,
                high=high,
                slower=middle > most and low > 1.0,
            )
        )
    return sorted(rows, key=lambda row: row.ratio, reverse=True)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the other checkout, built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--most", type=float, default=1.03, help="largest ratio new / old that passes (1.03)")
    given = parser.parse_args()
    where = machine()
    rows = summarise(compare(given.old.resolve(), given.part or PARTS, given.rounds), given.most)
    print("{cpu}, {cores} cores; Python {python}, {rustc}; new: {commit}".format(**where))
    print(f"{'old':>12} {'new':>12} {'ratio':>7}  quartiles      row")
    for row in rows:
        mark = "  SLOWER" if row.slower else ""
        print(f"{row.old:12.3f} {row.new:12.3f} {row.ratio:7.3f}  {row.low:.3f}..{row.high:.3f}   {row.row}{mark}")
    slower = sum(row.slower for row in rows)
    print(f"{len(rows)} rows, {slower} slower than {given.most}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "against.json").write_text(
        json.dumps({"machine": where, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n", "utf-8"
    )
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
