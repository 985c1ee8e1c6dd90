"""The checks of the rounds: the goals of routing, and the simulator's figures for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from benches.engine.figures import BASE, MEASURES, Rounds, even_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OWN = ("adaptive", "adaptive+events")
TTFT_RATIO = 0.75
CACHED_RATIO = 0.95
OFF_RATIO = 0.15
OFF_SHARE = 0.03
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
"""Standard errors of a mean on either side that hold 95 %, from two values on."""
_STUDENT_OF_MORE = 2.18


@dataclass(frozen=True, slots=True)
class Gap:
    """How many times another policy's mean TTFT one has, by rounds.

    Attributes:
        ratio: The geometric mean of the rounds' ratios.
        spread: Half of the 95 % interval of it, as a factor; infinite of a single round.
    """

    ratio: float
    spread: float

    @property
    def is_clear(self) -> bool:
        """Say whether it is more than the spread."""
        return abs(math.log(self.ratio)) > math.log(self.spread)

    def __str__(self) -> str:
        return f"{self.ratio:.2f}" + (f" (x or / {self.spread:.2f})" if math.isfinite(self.spread) else "")


def gap(rounds: Rounds, policy: str, other: str = BASE) -> Gap:
    """Compare the mean TTFT of two policies round by round."""
    mean = MEASURES["mean"]
    logs = [math.log(mean(each[policy]) / mean(each[other])) for each in rounds]
    if len(logs) == 1:
        return Gap(math.exp(logs[0]), math.inf)
    errors = _STUDENT[len(logs) - 2] if len(logs) - 2 < len(_STUDENT) else _STUDENT_OF_MORE
    return Gap(math.exp(fmean(logs)), math.exp(errors * stdev(logs) / math.sqrt(len(logs))))


def cached(rounds: Rounds, policy: str) -> float:
    """Return the mean share of prompt tokens that were cached."""
    return fmean(MEASURES["cached"](each[policy]) for each in rounds)


def of_unbounded(rounds: Rounds, policy: str) -> float:
    """Return the cached share of the tokens that one unbounded cache would have held, the mean over rounds."""
    return fmean(MEASURES["cached"](each[policy]) / MEASURES["possible"](each[policy]) for each in rounds)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table whose first row is its head."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def goals(rounds: Rounds, simulated: Sequence[Rounds]) -> str:
    """Write which goals hold, those that do not before the others.

    Args:
        rounds: As they were measured.
        simulated: Those rounds in simulated time, each a few times.
    """
    at = even_numbers(rounds)
    timed, same = [rounds[number] for number in at], _joined(simulated[number] for number in at)
    policies = list(rounds[0])
    found = [*_routing(rounds, timed, policies)]
    found += _simulator(rounds, _joined(simulated), timed, same, list(simulated[0][0]))
    found.sort(key=lambda one: one[0])
    rows = [["goal", "found", "holds"], *([goal, what, "yes" if holds else "**no**"] for holds, goal, what in found)]
    return table(rows)


def _routing(rounds: Rounds, timed: Rounds, policies: list[str]) -> Iterable[tuple[bool, str, str]]:
    for policy in OWN:
        if policy not in policies:
            continue
        against = gap(timed, policy)
        yield against.ratio <= TTFT_RATIO, f"`{policy}`: mean TTFT at most {TTFT_RATIO} of {BASE}'s", str(against)
        others = {other: gap(timed, policy, other) for other in policies if other != policy}
        ahead = {other: one for other, one in others.items() if one.ratio > 1 and one.is_clear}
        least = max(others, key=lambda other: others[other].ratio)
        closest = f"{others[least]} of `{least}`'s"
        behind = ", ".join(f"{one} of `{other}`'s" for other, one in ahead.items())
        yield not ahead, f"`{policy}`: mean TTFT behind no other beyond the spread", behind or closest
        share = of_unbounded(rounds, policy)
        yield (
            share >= CACHED_RATIO,
            f"`{policy}`: cached at least {CACHED_RATIO} of one unbounded cache",
            f"{share:.3f}",
        )


def _simulator(
    rounds: Rounds, simulated: Rounds, timed: Rounds, same: Rounds, policies: list[str]
) -> Iterable[tuple[bool, str, str]]:
    off = {policy: _off_ratio(timed, same, policy) for policy in policies if policy != BASE}
    if off:
        worst = max(off, key=lambda policy: abs(off[policy]))
        wrong = [f"`{policy}` {value:+.0%}" for policy, value in off.items() if abs(value) > OFF_RATIO]
        goal = f"simulator: mean TTFT, as part of {BASE}'s, within {OFF_RATIO:.0%}"
        yield not wrong, goal, ", ".join(wrong) or f"at most {off[worst]:+.0%}, of `{worst}`"
    points = {policy: cached(simulated, policy) - cached(rounds, policy) for policy in policies}
    worst = max(points, key=lambda policy: abs(points[policy]))
    wrong = [f"`{policy}` {_points(value)}" for policy, value in points.items() if abs(value) > OFF_SHARE]
    goal = f"simulator: cached share within {100 * OFF_SHARE:.0f} points"
    yield not wrong, goal, ", ".join(wrong) or f"at most {_points(points[worst])}, of `{worst}`"
    clear = [pair for pair in combinations(policies, 2) if gap(timed, *pair).is_clear]
    wrong = [f"`{one}` and `{two}`" for one, two in clear if _ahead(timed, one, two) != _ahead(same, one, two)]
    goal = "simulator: the same order where gaps exceed the spread"
    yield not wrong, goal, ", ".join(wrong) or f"all {len(clear)} of {math.comb(len(policies), 2)} pairs with such gaps"


def _joined(parts: Iterable[Rounds]) -> Rounds:
    return [each for part in parts for each in part]


def _off_ratio(timed: Rounds, same: Rounds, policy: str) -> float:
    return gap(same, policy).ratio / gap(timed, policy).ratio - 1


def _ahead(rounds: Rounds, one: str, two: str) -> bool:
    return gap(rounds, one, two).ratio < 1


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def predictions(rounds: Rounds, simulated: Sequence[Rounds]) -> str:
    """Write each policy's figures as measured and as simulated, the greatest difference of TTFT first."""
    at = even_numbers(rounds)
    timed, same, everything = (
        [rounds[number] for number in at],
        _joined(simulated[number] for number in at),
        _joined(simulated),
    )
    mean = MEASURES["mean"]
    head = ["policy", f"mean TTFT of {BASE}'s, real", "simulated", "off", "mean TTFT, s, real", "simulated"]
    rows = [[*head, "cached, real", "simulated", "points off"]]
    for policy in sorted(simulated[0][0], key=lambda one: -abs(_off_ratio(timed, same, one))):
        seconds = [f"{fmean(mean(each[policy]) for each in part):.2f}" for part in (timed, same)]
        shares = [cached(part, policy) for part in (rounds, everything)]
        ratios = [f"{gap(timed, policy)}", f"{gap(same, policy).ratio:.2f}", f"{_off_ratio(timed, same, policy):+.0%}"]
        if policy == BASE:
            ratios = ["1", "1", ""]
        rows.append([policy, *ratios, *seconds, *(f"{share:.1%}" for share in shares), _points(shares[1] - shares[0])])
    return table(rows)
