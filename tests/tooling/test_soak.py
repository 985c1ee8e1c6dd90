"""The soak, for seconds: its code works, its verdict holds, and would not if something were wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches.soak import hostile
from benches.soak.page import write_page
from benches.soak.run import Plan, Result, soak
from benches.soak.verdict import LONG_S, figures, judge


@pytest.fixture(scope="module")
def result() -> Result:
    return soak(Plan(minutes=0.25, workers=3, hybrid=1, every_s=1.5, restart_s=4.0, rate=12.0), lambda _line: None)


def broken(result: Result) -> list[str]:
    return [point.what for point in judge(result) if not point.holds]


def at_rest(result: Result, **changes: Any) -> Result:
    return replace(result, rest={name: replace(each, **changes) for name, each in result.rest.items()})


def stretched(result: Result, *, bytes_per_s: float = 0.0, slower: int = 1, more_files: int = 0) -> Result:
    """Make it a long run, in which memory or files grow, or the last selections take longer than the first ones."""
    life = [look for look in result.looks if look.name == "serve"]
    looks = []
    for place, look in enumerate(life):
        at_s = LONG_S * (place + 1) / len(life)  # however long it took to look
        late = place > len(life) / 2
        report = replace(
            look.report,
            resident_bytes=int(80e6 + bytes_per_s * at_s),
            descriptors=20 + more_files * (at_s > LONG_S * 2 / 3),
            select_ns=[50_000 * (slower if late else 1)] * 100,
            yardstick_ns=[20_000] * 100,
        )
        looks.append(replace(look, at_s=at_s, report=report))
    return replace(at_rest(result, waited=1), looks=looks, seconds=LONG_S)


def test_short_soak_holds_and_everything_happened(result: Result) -> None:
    assert broken(result) == []
    assert result.outcomes["200"] > 50
    assert result.faults["restart"] >= 1
    assert result.faults["gateway"] == 1
    assert result.before_restart is not None
    assert {(look.name, look.life) for look in result.looks} == {("starlette", 1), ("starlette", 2), ("serve", 1)}
    assert {what.partition(": ")[0] for what in result.hostile} == set(hostile.KINDS)
    assert all(report.events["messages"] > 0 for report in result.rest.values())
    assert sum(result.cached.values()) > 0


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda result: at_rest(result, bookings=1), "no booking is left over"),
        (lambda result: at_rest(result, open_requests=1), "no booking is left over"),
        (lambda result: at_rest(result, load=1), "no booking is left over"),
        (lambda result: at_rest(result, waiting=1), "no booking is left over"),
        (lambda result: replace(result, before_restart=replace(result.before_restart, bookings=1)), "no booking"),
        (lambda result: at_rest(result, endings={"abandoned": 1, "expired": 0}), "every decision is ended"),
        (lambda result: replace(result, outcomes=result.outcomes + Counter({"502": 1})), "clients see no error"),
        (lambda result: replace(result, outcomes=result.outcomes + Counter(torn=10_000)), "clients see no error"),
        (lambda result: at_rest(result, crashes=1), "no gateway has an uncaught exception"),
        (lambda result: at_rest(result, peers=[]), "each gateway receives from the other"),
        (lambda result: at_rest(result, held=dict.fromkeys(result.cached, 1 << 20)), "the gateways' index equals"),
        (lambda result: stretched(result, bytes_per_s=80e6 * 0.02 / 600), "memory of serve"),
        (lambda result: stretched(result, slower=2), "the p99 of selections"),
        (lambda result: stretched(result, more_files=3), "memory and open files of serve"),
        (lambda result: replace(result, hostile=result.hostile + Counter({"slow: torn": 10**6})), "hostile clients"),
    ],
    ids=[
        "booking",
        "open",
        "load",
        "waiting",
        "before",
        "abandoned",
        "502",
        "torn",
        "crash",
        "deaf",
        "cache",
        "memory",
        "slower",
        "files",
        "hostile",
    ],
)
def test_verdict_finds_damage(result: Result, damage: Callable[[Result], Result], what: str) -> None:
    assert [point[: len(what)] for point in broken(damage(result))] == [what]


def test_verdict_lets_a_long_steady_run_pass(result: Result) -> None:
    assert broken(stretched(result, bytes_per_s=80e6 * 0.005 / 600)) == []


def test_page_tells_the_verdict_and_what_broke_it(result: Result, tmp_path: Path) -> None:
    long = stretched(result, bytes_per_s=80e6 * 0.02 / 600)
    write_page(figures(long, judge(long)), tmp_path / "soak.md")
    page = (tmp_path / "soak.md").read_text("utf-8")
    assert [line for line in page.splitlines() if "**does not hold**" in line] == [
        line for line in page.splitlines() if line.startswith("| memory of serve")
    ]
    assert "](images/soak.svg)" in page
    assert (tmp_path / "images" / "soak.svg").read_text("utf-8").startswith("<?xml")
