"""Ratios to the best of each cell, the obvious way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def best_of(table: Mapping[tuple[str, str], Mapping[str, float | None]], cell: str, name: str) -> float | None:
    """Return the least value of a figure among those that served most, oracles apart."""
    served = {policy: figures for (of, policy), figures in table.items() if of == cell}
    ranked = {policy: figures for policy, figures in served.items() if "+oracle" not in policy} or served
    least_lost = min(figures["unserved"] or 0 for figures in ranked.values())
    values = []
    for figures in ranked.values():
        value = figures[name]
        if (figures["unserved"] or 0) == least_lost and value is not None:
            values.append(value)
    return min(values) if values else None


def ratios_of(
    table: Mapping[tuple[str, str], Mapping[str, float | None]], policy: str, name: str, floor: float
) -> dict[str, float]:
    """Return a policy's figure by the best of each cell it is in."""
    if name == "balanced":
        parts = [
            ratios_of(table, policy, part, 1e-3) for part in ("ttft_p50_s", "ttft_mean_s", "ttft_p99_s", "e2e_mean_s")
        ]
        return {cell: geometric_mean([part[cell] for part in parts]) for cell in set.intersection(*map(set, parts))}
    found = {}
    for (cell, of), figures in table.items():
        best = best_of(table, cell, name)
        if of == policy and best is not None:
            value = figures[name]
            found[cell] = math.inf if value is None else max(value, floor) / max(best, floor)
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Return the root of the product, by logarithms to avoid overflow."""
    return math.exp(sum(map(math.log, values)) / len(values))
