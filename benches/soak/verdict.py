"""Whether it held, and the figures that say so."""

from __future__ import annotations

import itertools
import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.soak.hostile import GOOD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benches.soak.run import Look, Result

SLOPE = 0.01
"""Memory may grow by this part of itself in ten minutes."""
RATIO = 1.5
"""The p99 of selections may grow by so much, beyond the growth of the yardstick's."""
WARM = 1 / 6
"""Part of the time after which the first third begins that is compared with the last one."""
GROWTH, GROWTH_BYTES = 0.1, 8 << 20
"""Memory of a life's last third may exceed that of its second by the larger of both, open files by the former."""
LONG_S = 600.0
"""In less time nothing settles: memory and times are reported, not judged."""
_LEFT = ("left at once", "left mid-stream")


@dataclass(frozen=True)
class Point:
    """One thing that must hold.

    Attributes:
        what: The claim.
        found: The figures found.
        holds: Whether it holds.
    """

    what: str
    found: str
    holds: bool


def judge(result: Result) -> list[Point]:
    """Judge a run."""
    return [*_memory(result), *_bookings(result), *_errors(result), *_times(result), *_state(result)]


def _lives(result: Result) -> dict[tuple[str, int], list[Look]]:
    found: dict[tuple[str, int], list[Look]] = {}
    for look in result.looks:
        found.setdefault((look.name, look.life), []).append(look)
    return found


def slope_per_10_min(looks: Sequence[Look], what: str = "resident_bytes") -> float:
    """Return the growth of memory in ten minutes, in parts of itself: the median over all pairs of looks.

    Only the last two thirds of a life count: before that, memory fills up.

    Args:
        looks: At one life of a gateway.
        what: Which figure of the report.
    """
    kept = [(look.at_s, float(getattr(look.report, what))) for look in looks[len(looks) // 3 :]]
    slopes = [(b - a) / (b_s - a_s) for (a_s, a), (b_s, b) in itertools.combinations(kept, 2)]
    return 600 * float(np.median(slopes)) / max(1.0, float(np.median([size for _, size in kept])))


def _memory(result: Result) -> Iterable[Point]:
    for (name, life), looks in _lives(result).items():
        if len(looks) < 4:
            continue
        slope = slope_per_10_min(looks)
        span_s = looks[-1].at_s - looks[len(looks) // 3].at_s
        judged = span_s >= LONG_S / 2
        mib = [look.report.resident_bytes / 2**20 for look in looks]
        yield Point(
            f"memory of {name}, life {life}, grows less than {SLOPE:.0%} in 10 minutes",
            f"{slope:+.2%} over its last {span_s / 60:.1f} minutes, {mib[len(mib) // 3]:.1f} to {mib[-1]:.1f} MiB; "
            f"in use: of malloc {slope_per_10_min(looks, 'malloc_bytes'):+.2%}, of the interpreter "
            f"{slope_per_10_min(looks, 'python_blocks'):+.2%}"
            f"{'' if judged else '; too short to judge'}",
            not judged or slope < SLOPE,
        )
        yield _growth(name, life, looks, judged=judged)


def _growth(name: str, life: int, looks: Sequence[Look], *, judged: bool) -> Point:
    third = len(looks) // 3
    parts = looks[third : 2 * third], looks[2 * third :]
    before, after = (float(np.median([look.report.resident_bytes for look in part])) for part in parts)
    opened, later = (float(np.median([look.report.descriptors for look in part])) for part in parts)
    return Point(
        f"memory and open files of {name}, life {life}, are in its last third as in its second",
        f"{before / 2**20:.1f} and {after / 2**20:.1f} MiB, {opened:.0f} and {later:.0f} files"
        f"{'' if judged else '; too short to judge'}",
        not judged
        or (after - before <= max(GROWTH * before, GROWTH_BYTES) and abs(later - opened) <= max(2.0, GROWTH * opened)),
    )


def _bookings(result: Result) -> Iterable[Point]:
    rest = [*result.rest.values(), *([result.before_restart] if result.before_restart else [])]
    leaked = sum(each.bookings for each in rest)
    opened = sum(each.open_requests for each in result.rest.values())
    load = sum(each.load for each in result.rest.values())
    peers = sum(booked for each in result.rest.values() for booked, _, _ in each.peers)
    waiting = sum(each.waiting for each in rest)
    yield Point(
        "no booking is left over once nothing is under way",
        f"of {sum(each.decisions for each in rest):,} decisions {leaked} without an end; {opened} requests open, "
        f"{load} of load, {peers} of peers, {waiting} held by admission",
        not any((leaked, opened, load, peers, waiting)),
    )
    waited = sum(each.waited for each in rest)
    is_low = result.plan.rate is not None or result.seconds < LONG_S
    yield Point("admission holds some requests", f"{waited:,} waited", is_low or waited > 0)
    lost = sum(each.endings[how] for each in rest for how in ("abandoned", "expired"))
    yield Point("every decision is ended by its gateway", f"{lost} abandoned or expired", not lost)


def _errors(result: Result) -> Iterable[Point]:
    seen = Counter(result.outcomes)
    good, torn, away = (seen.pop(how, 0) for how in ("200", "torn", "not sent"))
    left = sum(seen.pop(how, 0) for how in _LEFT)
    struck = sum(count for what, count in result.faults.items() if what not in {"restart", "gateway"})
    yield Point(
        "clients see no error but answers that an injected fault tore",
        f"{good:,} answered, {left:,} left, {torn:,} torn, {away:,} not sent; {struck:,} faults and "
        f"{result.faults['restart']} restarts of workers failed {result.failed:,} attempts; "
        f"else {dict(seen) or 'nothing'}",
        not seen and torn <= result.failed and good > 0,
    )
    wrong = {what: count for what, count in result.hostile.items() if what.partition(": ")[2] not in GOOD}
    # A worker may fail while a slow client reads its answer.
    if torn + wrong.get("slow: torn", 0) <= result.failed:
        wrong.pop("slow: torn", None)
    yield Point(
        "hostile clients get an answer of 4xx, or none",
        f"{sum(result.hostile.values()):,} of them; {wrong or 'none'} otherwise",
        not wrong,
    )
    crashes = sum(each.crashes for each in result.rest.values())
    crashes += result.before_restart.crashes if result.before_restart else 0
    yield Point("no gateway has an uncaught exception", f"{crashes}", not crashes)


def thirds(result: Result) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the selections and yardsticks of the first third after the warm-up, and of the last one."""
    end_s = result.looks[-1].at_s
    length_s = end_s * (1 - WARM) / 3
    first = [look for look in result.looks if WARM * end_s < look.at_s <= WARM * end_s + length_s]
    last = [look for look in result.looks if look.at_s > end_s - length_s]
    return _times_of(first), _times_of(last)


def _times_of(looks: Sequence[Look]) -> tuple[np.ndarray, np.ndarray]:
    selects = np.array([took for look in looks for took in look.report.select_ns], np.float64)
    yards = np.array([took for look in looks for took in look.report.yardstick_ns], np.float64)
    return selects, yards


def _times(result: Result) -> Iterable[Point]:
    (first, first_yard), (last, last_yard) = thirds(result)
    if not len(first) or not len(last):
        what = "selections are timed in the first third and in the last"
        yield Point(what, f"{len(first)}, {len(last)}", holds=result.seconds < LONG_S)
        return
    before, after, yard_before, yard_after = (
        float(np.quantile(times, 0.99)) / 1e3 for times in (first, last, first_yard, last_yard)
    )
    ratio = after / before
    beyond = ratio / (yard_after / yard_before)
    judged = result.seconds >= LONG_S
    yield Point(
        f"the p99 of selections grows at most {RATIO:g}-fold beyond the yardstick's",
        f"{before:.0f} us in the first third, {after:.0f} us in the last: {ratio:.2f}; the yardstick "
        f"{yard_before:.0f} and {yard_after:.0f} us, so {beyond:.2f} beyond it"
        f"{'' if judged else '; too short to judge'}",
        not judged or min(ratio, beyond) <= RATIO,
    )


def _state(result: Result) -> Iterable[Point]:
    heard = [len(each.peers) for each in result.rest.values()]
    yield Point("each gateway receives from the other", f"{heard}", heard == [1] * len(heard))
    fed = [each.events.get("fed", 0) for each in result.rest.values()]
    off = {
        name: sum(abs(report.held[url] - cached) for url, cached in result.cached.items())
        for name, report in result.rest.items()
    }
    yield Point(
        "the gateways' index equals the workers' caches",
        f"{sum(result.cached.values()):,} blocks, "
        + ", ".join(f"{count} off at {name}" for name, count in off.items())
        + f"; {fed} of {result.plan.workers} workers fed by events",
        not any(off.values()) and fed == [result.plan.workers] * len(fed),
    )


def figures(result: Result, points: Sequence[Point]) -> dict[str, Any]:
    """Return everything that is kept, ready for JSON."""
    looks = []
    for look in result.looks:
        report = asdict(look.report)
        for name in ("select", "yardstick"):
            times = report.pop(f"{name}_ns")
            quantiles = np.quantile(times, (0.5, 0.99)) / 1e3 if times else (0.0, 0.0)
            report[f"{name}_p50_us"], report[f"{name}_p99_us"] = (round(float(value), 1) for value in quantiles)
            report["selections"] = len(times)
        looks.append({**asdict(look), "report": report})
    complaints: Counter[str] = Counter()
    for each in (*result.rest.values(), *([result.before_restart] if result.before_restart else [])):
        complaints.update(each.complaints)
    return {
        "plan": asdict(result.plan),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}",
        "rate": result.rate,
        "seconds": result.seconds,
        "probes": result.probes,
        "outcomes": dict(result.outcomes),
        "faults": dict(result.faults),
        "hostile": dict(result.hostile),
        "failed": result.failed,
        "cached": result.cached,
        "complaints": dict(complaints),
        "verdict": [asdict(point) for point in points],
        "looks": looks,
    }
