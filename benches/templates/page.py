"""Tables of figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benches.templates.cells import Sum

Cell = tuple[str, str]
"""An agent and a template."""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns, the first to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f} %"


HEAD = ("found", "worst", "< 80 %", "< 90 %", "false", "worst", "> 1 %", "> 5 %", "cells")


def figures(sums: Sequence[Sum]) -> list[str]:
    """Summarize cells: means, worst ones and counts."""
    found, false = [each.found_share for each in sums], [each.false_share for each in sums]
    if not sums:
        return ["-"] * len(HEAD)
    return [
        percent(fmean(found)),
        percent(min(found)),
        str(sum(share < 0.8 for share in found)),
        str(sum(share < 0.9 for share in found)),
        f"{100 * fmean(false):.2f} %",
        percent(max(false)),
        str(sum(share > 0.01 for share in false)),
        str(sum(share > 0.05 for share in false)),
        str(len(sums)),
    ]


def cell_rows(cells: dict[Cell, tuple[Sum, Sum]]) -> list[list[str]]:
    """List cells: true and found shares of next turns and first requests, and false ones; the worst first."""
    rows = [["cell", "turns: true", "found", "false", "firsts: true", "found", "false"]]
    order = sorted(cells, key=lambda cell: min(cells[cell][0].found_share, 1 - cells[cell][0].false_share))
    for agent, template in order:
        row = [f"{agent} / {template}"]
        for each in cells[agent, template]:
            true = each.true / each.length if each.length else 0.0
            row += [percent(true), percent(each.found_share), percent(each.false_share)]
        rows.append(row)
    return rows
