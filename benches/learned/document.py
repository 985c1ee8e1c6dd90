"""docs/learned-grid.md: what the runs say."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING

from benches.learned.rates import BASELINE, FLEETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.learned.cells import Place
    from benches.learned.store import Store

LEARNED = "learned"
ABLATIONS = "<!-- ablations -->"
"""What stands behind it is not of the grid."""

_NAMED = 8


class Grid:
    """Runs of policies at places, as ratios to the baseline.

    Args:
        store: The runs.
        places: With the first seed.
        policies: By their names in the tables.
        seeds: How many there are of each.
    """

    def __init__(self, store: Store, places: Sequence[Place], policies: Sequence[str], seeds: int) -> None:
        self.store = store
        self.policies = list(policies)
        self.seeds = range(1, seeds + 1)
        self.places = [place for place in places if self._complete(place)]

    def _complete(self, place: Place) -> bool:
        return all(
            replace(place, seed=seed).key(policy) in self.store for seed in self.seeds for policy in self.policies
        )

    def figure(self, place: Place, policy: str, figure: str, span: str = "later") -> float:
        """Return a figure of TTFT in seconds, averaged over the seeds."""
        runs = (self.store[replace(place, seed=seed).key(policy)] for seed in self.seeds)
        return mean(float((run[span] or run["all"])[figure]) for run in runs)

    def ratio(self, place: Place, policy: str, figure: str, span: str = "later") -> float:
        """Return by what the baseline takes longer."""
        return self.figure(place, BASELINE, figure, span) / self.figure(place, policy, figure, span)

    def best(self, place: Place, figure: str, span: str = "later") -> str:
        """Return the best of the policies that learn nothing."""
        classical = [policy for policy in self.policies if not policy.startswith(LEARNED)]
        return min(classical, key=lambda policy: self.figure(place, policy, figure, span))


def summary(grid: Grid) -> Iterator[str]:
    """Yield a table of all policies: TTFT of the baseline over theirs, over all places."""
    yield (
        "| policy | mean TTFT, geometric (arithmetic) | P99, geometric (arithmetic) | mean TTFT, whole run | "
        "worst cell | cells below 0.97 |"
    )
    yield "|---" * 6 + "|"
    rows = []
    for policy in grid.policies:
        ratios = {place: grid.ratio(place, policy, "mean") for place in grid.places}
        tails = [grid.ratio(place, policy, "p99") for place in grid.places]
        whole = [grid.ratio(place, policy, "mean", "all") for place in grid.places]
        worst = min(ratios, key=lambda place: ratios[place])
        lost = sum(ratio < 0.97 for ratio in ratios.values())
        line = (
            f"| {policy} | {geometric_mean(ratios.values()):.2f} ({mean(ratios.values()):.2f}) | "
            f"{geometric_mean(tails):.2f} ({mean(tails):.2f}) | {geometric_mean(whole):.2f} | "
            f"{ratios[worst]:.2f} ({worst.workload}, {worst.fleet}, {worst.load:.0%}) | {lost} of {len(ratios)} |"
        )
        rows.append((-geometric_mean(ratios.values()), line))
    yield from (line for _, line in sorted(rows))


def against_the_best(grid: Grid) -> Iterator[str]:
    """Yield how the learned policy stands to whichever policy is best in a cell, and where it loses to it."""
    for figure, name in (("mean", "mean TTFT"), ("p99", "P99")):
        ratios = {
            place: grid.ratio(place, LEARNED, figure) / grid.ratio(place, grid.best(place, figure), figure)
            for place in grid.places
        }
        lost = sorted((ratio, place) for place, ratio in ratios.items() if ratio < 1)
        told = "; ".join(
            f"{place.workload}, {place.fleet}, {place.load:.0%}: {ratio:.2f} of {grid.best(place, figure)}"
            for ratio, place in lost[:_NAMED]
        )
        if len(lost) > _NAMED:
            told += f"; and by less in {len(lost) - _NAMED} more"
        yield (
            f"- {name}: {geometric_mean(ratios.values()):.2f} times better than the best other policy of each cell, "
            f"which nobody knows beforehand; better in {len(ratios) - len(lost)} of {len(ratios)} cells. "
            + (f"It loses in {told}." if lost else "")
        )


def by_column(grid: Grid, figure: str) -> Iterator[str]:
    """Yield a table of all policies: geometric means over the workloads of a fleet and load."""
    columns = [
        (fleet, load)
        for fleet in FLEETS
        for load in sorted({place.load for place in grid.places if place.fleet == fleet})
    ]
    yield "| policy | " + " | ".join(f"{fleet}, {load:.0%}" for fleet, load in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for policy in grid.policies:
        texts = []
        for column in columns:
            places = [place for place in grid.places if (place.fleet, place.load) == column]
            texts.append(f"{geometric_mean([grid.ratio(place, policy, figure) for place in places]):.2f}")
        yield f"| {policy} | " + " | ".join(texts) + " |"


def cells(grid: Grid, fleet: str) -> Iterator[str]:
    """Yield a table of the places of a fleet: the baseline, the learned policy and the best of the others."""
    learned = [policy for policy in grid.policies if policy.startswith(LEARNED)]
    yield (
        "| workload | load, rate | baseline mean / P99 | "
        + " | ".join(f"{policy}: mean, P99" for policy in learned)
        + (" | " if learned else "")
        + "best classical, mean | best classical, P99 |"
    )
    yield "|---" * (5 + len(learned)) + "|"
    for place in grid.places:
        if place.fleet != fleet:
            continue
        own = [_ratios(grid, place, policy) for policy in learned]
        by_mean, by_tail = grid.best(place, "mean"), grid.best(place, "p99")
        yield (
            " | ".join(
                [
                    f"| {place.workload}",
                    f"{place.load:.0%}, {place.rate:.1f}/s",
                    f"{grid.figure(place, BASELINE, 'mean'):.3g} / {grid.figure(place, BASELINE, 'p99'):.3g} s",
                    *own,
                    f"{grid.ratio(place, by_mean, 'mean'):.2f} {by_mean}",
                    f"{grid.ratio(place, by_tail, 'p99'):.2f} {by_tail}",
                ]
            )
            + " |"
        )


def _ratios(grid: Grid, place: Place, policy: str) -> str:
    return f"{grid.ratio(place, policy, 'mean'):.2f}, {grid.ratio(place, policy, 'p99'):.2f}"


def shares(grid: Grid) -> Iterator[str]:
    """Yield a table of who decided once there was a model, averaged over the seeds."""
    yield "| workload | fleet | load | first model | `learned*` of what was in distribution | all reasons since |"
    yield "|---" * 6 + "|"
    for place in grid.places:
        runs = [grid.store[replace(place, seed=seed).key(LEARNED)] for seed in grid.seeds]
        found = [run for run in runs if "model_s" in run]
        if not found:
            yield f"| {place.workload} | {place.fleet} | {place.load:.0%} | never | - | - |"
            continue
        reasons = {reason: 0.0 for run in found for reason in run["model_reasons"]}
        for reason in reasons:
            reasons[reason] = mean(run["model_reasons"].get(reason, 0.0) for run in found)
        told = ", ".join(f"{reason} {share:.1%}" for reason, share in sorted(reasons.items(), key=lambda it: -it[1]))
        first_s = max(run["model_s"] for run in found)
        yield (
            f"| {place.workload} | {place.fleet} | {place.load:.0%} | {first_s:.0f} s | {in_distribution(reasons):.1%} "
            f"| {told} |"
        )


def in_distribution(reasons: dict[str, float]) -> float:
    """Return the share of `learned*` among decisions that were not out of distribution.

    Args:
        reasons: Shares of all.

    Returns:
        From 0 to 1.
    """
    own = sum(share for reason, share in reasons.items() if reason.startswith(LEARNED))
    return own / (1 - reasons.get("ood", 0.0))


def document(grid: Grid, head: str) -> str:
    """Return the page.

    Args:
        grid: The runs.
        head: What stands above the tables.

    Returns:
        Markdown.
    """
    parts = [head, "## All policies", "", *summary(grid), ""]
    if LEARNED in grid.policies and grid.places:
        parts += ["`learned` beside the best policy of every cell:", "", *against_the_best(grid), ""]
    for figure, name in (("mean", "mean"), ("p99", "P99")):
        parts += [f"### Ratio of the {name} TTFT to {BASELINE}'s, by fleet and load", "", *by_column(grid, figure), ""]
    for fleet in FLEETS:
        if any(place.fleet == fleet for place in grid.places):
            parts += [f"## Cells of {fleet}", "", *cells(grid, fleet), ""]
    if LEARNED in grid.policies:
        parts += ["## Who decided", "", *shares(grid), ""]
    return "\n".join(parts)
