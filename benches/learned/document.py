"""docs/maintainers/learned-grid.md: the tables of the runs."""

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
"""The text after it is not of the grid."""

_NAMED = 8


class Grid:
    """Runs of policies at places, as ratios to the baseline.

    Args:
        store: The runs.
        places: With the first seed.
        policies: By their names in the tables.
        seeds: How many there are at most. A policy that was run with fewer is compared with the baseline in these.
    """

    def __init__(self, store: Store, places: Sequence[Place], policies: Sequence[str], seeds: int) -> None:
        self.store = store
        self.policies = list(policies)
        self.places = [place for place in places if all(place.key(policy) in store for policy in policies)]
        self.seeds = {policy: self._seeds(policy, seeds) for policy in policies}

    def _seeds(self, policy: str, most: int) -> list[int]:
        """Return the seeds that a policy was run with at all places."""
        return [
            seed
            for seed in range(1, most + 1)
            if all(
                replace(place, seed=seed).key(each) in self.store
                for place in self.places
                for each in (policy, BASELINE)
            )
        ]

    def name(self, policy: str) -> str:
        """Return the name of a policy in the tables: with its seeds, if others have more."""
        own = len(self.seeds[policy])
        return policy if own == self.most_seeds else f"{policy}, {own} seed{'s' if own > 1 else ''}"

    @property
    def most_seeds(self) -> int:
        """The most seeds that a policy was run with."""
        return max(len(seeds) for seeds in self.seeds.values())

    def figure(self, place: Place, policy: str, figure: str, span: str = "later", of: str | None = None) -> float:
        """Return a figure of TTFT in seconds, averaged over the seeds of a policy, or of another one."""
        return mean(self.of_seed(place, policy, figure, seed, span) for seed in self.seeds[of or policy])

    def of_seed(self, place: Place, policy: str, figure: str, seed: int, span: str = "later") -> float:
        """Return a figure of TTFT in seconds of one run."""
        run = self.store[replace(place, seed=seed).key(policy)]
        return float((run[span] or run["all"])[figure])

    def ratio(self, place: Place, policy: str, figure: str, span: str = "later") -> float:
        """Return the ratio of the baseline's time, with the same seeds."""
        return self.figure(place, BASELINE, figure, span, policy) / self.figure(place, policy, figure, span)

    def best(self, place: Place, figure: str, span: str = "later") -> str:
        """Return the best of the policies that learn nothing."""
        classical = [policy for policy in self.policies if not policy.startswith(LEARNED)]
        return max(classical, key=lambda policy: self.ratio(place, policy, figure, span))

    def closest(self, place: Place, figure: str) -> tuple[float, str]:
        """Return the policy that comes closest to the learned one or beats it most, with its seeds, and the ratio."""
        others = [policy for policy in self.policies if not policy.startswith(LEARNED)]
        return min(
            (self.figure(place, policy, figure) / self.figure(place, LEARNED, figure, of=policy), policy)
            for policy in others
        )


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
            f"| {grid.name(policy)} | {geometric_mean(ratios.values()):.2f} ({mean(ratios.values()):.2f}) | "
            f"{geometric_mean(tails):.2f} ({mean(tails):.2f}) | {geometric_mean(whole):.2f} | "
            f"{ratios[worst]:.2f} ({worst.workload}, {worst.fleet}, {worst.load:.0%}) | {lost} of {len(ratios)} |"
        )
        rows.append((-geometric_mean(ratios.values()), line))
    yield from (line for _, line in sorted(rows))


def against_the_best(grid: Grid) -> Iterator[str]:
    """Yield how the learned policy stands to whichever policy is best in a cell, and where it loses to it."""
    for figure, name in (("mean", "mean TTFT"), ("p99", "P99")):
        closest = {place: grid.closest(place, figure) for place in grid.places}
        ratios = {place: ratio for place, (ratio, _) in closest.items()}
        lost = sorted((ratio, place) for place, ratio in ratios.items() if ratio < 1)
        told = "; ".join(
            f"{place.workload}, {place.fleet}, {place.load:.0%}: {ratio:.2f} of {closest[place][1]}"
            for ratio, place in lost[:_NAMED]
        )
        if len(lost) > _NAMED:
            told += f"; and by less in {len(lost) - _NAMED} more"
        yield (
            f"- {name}: {geometric_mean(ratios.values()):.2f} times better than the best other policy of each cell, "
            f"which is not known beforehand; better in {len(ratios) - len(lost)} of {len(ratios)} cells. "
            + (f"It loses in {told}." if lost else "")
        )


def single_runs(grid: Grid) -> str:
    """Return how the learned policy stands to the baseline seed by seed, where averages could hide a bad one."""
    ratios = sorted(
        (grid.of_seed(place, BASELINE, "mean", seed) / grid.of_seed(place, LEARNED, "mean", seed), place, seed)
        for place in grid.places
        for seed in grid.seeds[LEARNED]
    )
    low = [each for each in ratios if each[0] < 0.97]
    told = ", ".join(
        f"{ratio:.2f} ({place.workload}, {place.fleet}, {place.load:.0%}, seed {seed})"
        for ratio, place, seed in low[:5]
    )
    return (
        f"Seed by seed, {len(low)} of {len(ratios)} runs are below 0.97 of {BASELINE}'s mean{': ' * bool(low)}{told}."
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
        yield f"| {grid.name(policy)} | " + " | ".join(texts) + " |"


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
    """Yield a table of the reasons once there was a model, averaged over the seeds."""
    yield "| workload | fleet | load | first model | `learned*` of what was in distribution | all reasons since |"
    yield "|---" * 6 + "|"
    for place in grid.places:
        runs = [grid.store[replace(place, seed=seed).key(LEARNED)] for seed in grid.seeds[LEARNED]]
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
        head: The text above the tables.

    Returns:
        Markdown.
    """
    parts = [head, "## All policies", "", *summary(grid), ""]
    if LEARNED in grid.policies and grid.places:
        parts += [
            "`learned` beside the best policy of every cell:",
            "",
            *against_the_best(grid),
            "",
            single_runs(grid),
            "",
        ]
    for figure, name in (("mean", "mean"), ("p99", "P99")):
        parts += [f"### Ratio of the {name} TTFT to {BASELINE}'s, by fleet and load", "", *by_column(grid, figure), ""]
    for fleet in FLEETS:
        if any(place.fleet == fleet for place in grid.places):
            parts += [f"## Cells of {fleet}", "", *cells(grid, fleet), ""]
    if LEARNED in grid.policies:
        parts += ["## Who decided", "", *shares(grid), ""]
    return "\n".join(parts)
