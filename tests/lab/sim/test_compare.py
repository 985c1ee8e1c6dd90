"""Comparisons: the same figures whatever runs beside, spreads over seeds, sweeps, and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from cachelb.policies import FleetView, LeastLoaded, RequestView
from cachelb_lab.sim import FleetSpec, Signals, Slo, Sweep, Workload, build, compare, simulate
from cachelb_lab.sim.experiments.comparison import Spread
from cachelb_lab.sim.timing import Polynomial

FLEET = FleetSpec.parse("4xa30")
POLYNOMIAL = FleetSpec.parse("4xa30", timing=Polynomial())


@pytest.fixture(scope="module")
def chats() -> Workload:
    return build("chat", seed=3, count=150)


def seeded(seed: int, *, rate: float | None = None) -> Workload:
    return build("rag", seed=seed, rate=rate, count=120)


class Fewest:
    """A policy of ours that counts how many of it were made."""

    name = "fewest"
    needs: frozenset[str] = frozenset()
    made: ClassVar[list[Fewest]] = []

    def __init__(self) -> None:
        self.made.append(self)

    def choose(self, _request: RequestView, fleet: FleetView) -> int:
        return int(np.argmin(fleet.column("inflight")))


def test_equal_seeds_give_equal_documents_with_one_thread_and_with_two() -> None:
    def once(threads: int) -> str:
        found = compare(
            seeded,
            FLEET,
            ["cache-aware", "random", "kv-aware+events"],
            seeds=(4, 5),
            sweep=Sweep("speed", (1, 2)),
            slo=Slo(1.0, 0.05),
            threads=threads,
        )
        return json.dumps(found.as_dict() | {"wall_clock": None})

    assert once(1) == once(2) == once(2)


def test_cells_hold_what_single_runs_bring(chats: Workload) -> None:
    found = compare(chats, FLEET, ["random", "cache-aware"], seeds=(1, 2), threads=2)
    assert [cell.policy for cell in found.cells] == ["random", "cache-aware"]
    for cell in found.cells:
        assert [run.seed for run in cell.runs] == [1, 2]
        for run in cell.runs:
            alone = simulate(chats, FLEET, cell.policy, seed=run.seed)
            assert run.metrics.ttft_s.mean == float(alone.ttft_s.mean())
            assert run.metrics.reasons == {reason: count for reason, count in run.metrics.reasons.items() if count}
        assert cell.result.seed == 1
        assert cell.runs[1].result is None


def test_seeds_make_other_requests_where_there_is_a_generator() -> None:
    found = compare(seeded, FLEET, ["round-robin", "random"], seeds=(1, 2))
    one, other = found.cells
    assert one.runs[0].metrics.bound_rate != one.runs[1].metrics.bound_rate
    assert [run.metrics.bound_rate for run in one.runs] == [run.metrics.bound_rate for run in other.runs]
    assert found.workload["seed"] == 1


def test_spread_is_over_the_seeds() -> None:
    found = compare(seeded, FLEET, ["random"], seeds=(1, 2, 3))
    means = [run.metrics.ttft_s.mean for run in found.cells[0].runs]
    spread = found.cells[0].spreads["ttft_s.mean"]
    assert (spread.low, spread.high) == (min(means), max(means))
    assert spread.mean == pytest.approx(sum(means) / 3)
    assert spread.std == pytest.approx((sum((one - spread.mean) ** 2 for one in means) / 2) ** 0.5)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 0.0)


def test_document_is_json_with_the_clock_apart(chats: Workload) -> None:
    found = compare(chats, FLEET, ["random"], signals=Signals(event_lag_s=0.5), gateways=2, slo=Slo(1.0))
    document = json.loads(found.to_json())
    assert set(document) == {"schema", "workload", "fleet", "settings", "seeds", "sweep", "cells", "wall_clock"}
    assert document["schema"] == 2
    assert document["workload"]["requests"] == 150
    kinds = document["fleet"].pop("kinds")
    assert document["fleet"] == {"description": "4 x a30", "workers": 4, "cache_tokens": FLEET.cache_tokens}
    assert [(kind["count"], kind["gpu"], kind["model"]) for kind in kinds] == [(4, "a30", "llama-3-8b")]
    assert (kinds[0]["timing"]["kind"], kinds[0]["timing"]["mfu"]) == ("roofline", 1.0)
    assert document["settings"]["signals"]["event_lag_s"] == 0.5
    assert (document["settings"]["gateways"], document["settings"]["slo"]) == (2, {"ttft_s": 1.0})
    assert set(document["cells"][0]) == {"policy", "value", "runs", "spread"}
    assert document["wall_clock"][0]["run_s"] > 0
    assert "run_s" not in json.dumps(document["cells"])


@pytest.mark.parametrize(
    ("sweep", "source"),
    [
        (Sweep("speed", (1, 30)), None),
        (Sweep("rate", (1, 60)), seeded),
        (Sweep("mfu", (1.0, 0.1)), None),
        (Sweep("kv_tokens", (40_000, 3_000)), None),
        (Sweep("net_delay_s", (0.0, 0.5)), None),
    ],
)
def test_swept_setting_reaches_the_run(sweep: Sweep, source: Callable[..., Workload] | None, chats: Workload) -> None:
    found = compare(source or chats, FLEET, ["least-loaded"], sweep=sweep)
    assert [cell.value for cell in found.cells] == list(sweep.values)
    easy, hard = (cell.runs[0].metrics.ttft_s.mean for cell in found.cells)
    assert easy < hard


@pytest.mark.parametrize("sweep", [Sweep("scrape_interval_s", (0.01, 1e6)), Sweep("gateways", (4, 8))])
def test_swept_view_reaches_the_gateways(sweep: Sweep, chats: Workload) -> None:
    found = compare(chats.speed_up(50), FLEET, ["least-loaded"], sweep=sweep, gateways=4)
    one, other = (cell.runs[0].metrics.ttft_s.mean for cell in found.cells)
    assert one != other


def test_swept_option_reaches_the_policy(chats: Workload) -> None:
    found = compare(chats, FLEET, ["session"], sweep=Sweep("mode", ("sticky", "hash")))
    assert [set(cell.runs[0].metrics.reasons) for cell in found.cells] == [{"least-loaded", "session"}, {"hash"}]


def test_policy_of_ones_own_is_made_for_every_run(chats: Workload) -> None:
    Fewest.made.clear()
    found = compare(chats, FLEET, [Fewest, LeastLoaded], seeds=(1, 2), threads=2)
    assert [cell.policy for cell in found.cells] == ["fewest", "least-loaded"]
    assert len(set(map(id, Fewest.made))) >= 2
    assert all(cell.runs[0].metrics.completed == 1 for cell in found.cells)


def test_progress_goes_up_to_the_end(chats: Workload) -> None:
    seen: list[float] = []
    compare(chats, FLEET, ["random", "round-robin"], seeds=(1, 2), threads=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("threads", [1, 2])
def test_error_in_one_run_ends_all_and_leaves_no_thread(threads: int) -> None:
    def broken(seed: int) -> Workload:
        if seed == 2:
            raise ValueError("no such seed")
        return build("rag", seed=seed, count=50)

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="no such seed"):
        compare(broken, FLEET, ["random", "round-robin"], seeds=(1, 2, 3), threads=threads)
    assert set(threading.enumerate()) <= before


def test_interrupt_ends_the_runs(chats: Workload) -> None:
    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(chats, FLEET, ["random", "round-robin"], threads=2, progress=stop)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policies": []}, ValueError, "policies must name at least one"),
        ({"seeds": ()}, ValueError, "seeds must name at least one"),
        ({"threads": 0}, ValueError, "threads must be at least 1, got 0"),
        ({"policies": ["cache-awre"]}, ValueError, "did you mean 'cache-aware'"),
        ({"sweep": Sweep("rate", (1, 2))}, ValueError, "rate can be swept of generated workloads only; sweep speed"),
        ({"sweep": Sweep("speed", (0, 1))}, ValueError, "speed must be positive, got 0"),
        ({"sweep": Sweep("speed", ("fast",))}, TypeError, "speed must be a number, got 'fast'"),
        ({"sweep": Sweep("gateways", (1.5,))}, ValueError, "gateways must be a whole number, got 1.5"),
        ({"sweep": Sweep("kv_tokens", (1,))}, ValueError, "kv_tokens 1 holds no block of 16 tokens"),
        (
            {"sweep": Sweep("cache_treshold", (1,))},
            TypeError,
            "has no option 'cache_treshold'.*Settings of the run are",
        ),
        ({"treshold": 1}, TypeError, "has no option 'treshold'"),
        ({"fleet": POLYNOMIAL, "sweep": Sweep("mfu", (0.8, 1))}, TypeError, "roofline timing only"),
    ],
)
def test_comparison_of_no_sense_is_refused_before_anything_runs(
    chats: Workload, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    def never(_share: float) -> None:
        pytest.fail("something ran")

    settings = {"policies": ["random"], "progress": never, **changes}
    with pytest.raises(error, match=message):
        compare(chats, settings.pop("fleet", FLEET), settings.pop("policies"), **settings)


# === sweeps ===


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("cache_threshold=0.1:0.9:0.2", "cache_threshold", (0.1, 0.3, 0.5, 0.7, 0.9)),
        ("event-lag-s=0:0.5:0.25", "event_lag_s", (0, 0.25, 0.5)),
        ("gateways=1:4:2", "gateways", (1, 3)),
        ("mode=sticky, hash", "mode", ("sticky", "hash")),
        ("speed=1", "speed", (1,)),
    ],
)
def test_sweeps_are_read(text: str, name: str, values: tuple[object, ...]) -> None:
    assert Sweep.parse(text) == Sweep(name, values)  # type: ignore[arg-type] # of any kind
