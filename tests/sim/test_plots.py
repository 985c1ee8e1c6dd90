"""Pictures of runs: the numbers behind them, and files that need nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from cachelb.sim import FleetSpec, SimResult, build, simulate
from cachelb.sim.metrics import hit_rate
from cachelb.sim.plots import curves, write_html, write_images


@pytest.fixture(scope="module")
def runs() -> list[SimResult]:
    """Two policies, one of them with two seeds."""
    workload, fleet = build("chat", seed=5, count=900), FleetSpec.parse("3xa30")
    wanted = [("cache-aware", 1), ("cache-aware", 2), ("round-robin", 1)]
    return [simulate(workload, fleet, policy, seed=seed) for policy, seed in wanted]


def test_distribution_is_that_of_all_seeds(runs: list[SimResult]) -> None:
    aware, round_robin = curves.ttft_distributions(runs)
    assert (aware.name, round_robin.name) == ("cache-aware", "round-robin")
    together = np.concatenate([runs[0].ttft_s, runs[1].ttft_s])
    assert len(aware.x) <= curves.CURVE_POINTS
    for x, y in zip(aware.x[::40], aware.y[::40], strict=True):
        assert (together <= x).mean() == pytest.approx(y, abs=2 / len(together))
    assert (aware.x[-1], aware.y[-1]) == (together.max(), 1.0)


def test_hit_rates_span_the_seeds(runs: list[SimResult]) -> None:
    aware, round_robin = curves.hit_rates(runs)
    both = [hit_rate(run) for run in runs[:2]]
    assert [aware.policy, round_robin.policy] == ["cache-aware", "round-robin"]
    assert aware.mean == pytest.approx(sum(both) / 2)
    assert (aware.mean - aware.below, aware.mean + aware.above) == pytest.approx((min(both), max(both)))
    assert (round_robin.below, round_robin.above) == (0, 0)


def test_shares_are_those_of_the_workers(runs: list[SimResult]) -> None:
    shares = curves.shares(runs[0])
    assert shares.sum() == pytest.approx(1)
    assert shares[1] == (runs[0].worker == 1).mean()


def test_load_over_time_keeps_its_peak(runs: list[SimResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CURVE_POINTS", 7)
    drawn = curves.loads(runs[0])
    peak = (runs[0].samples[:, :, 0] + runs[0].samples[:, :, 1]).max(axis=0)
    assert [len(curve.x) for curve in drawn] == [7, 7, 7]
    assert [curve.y.max() for curve in drawn] == peak.tolist()


def test_slowest_requests_can_be_looked_at(runs: list[SimResult]) -> None:
    rows = curves.inspected(runs[0], 100)
    ttft = runs[0].first_token_s - runs[0].arrival_s
    assert len(rows) == 100
    assert set(np.argsort(-ttft, kind="stable")[:50]) <= set(rows)
    assert len(curves.inspected(runs[0])) == 900
    slowest = int(ttft.argmax())
    worker = runs[0].workers[runs[0].worker[slowest]]
    assert re.match(rf"request {slowest}: {worker} \([a-z-]+\), .* first token after ", curves.story(runs[0], slowest))


def test_page_holds_all_it_needs(runs: list[SimResult], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(path, runs, title="A <title>", table="policy & figures", bounds={"one pool": 0.9})
    page = path.read_text(encoding="utf-8")
    assert "A &lt;title&gt;" in page
    assert "policy &amp; figures" in page
    assert page.count("<h2>") == 3 + 2 + 2
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page)
    assert "one pool" in page
    assert "request by request" in page
    assert len(page) < 12_000_000


def test_equal_runs_give_equal_images(runs: list[SimResult], tmp_path: Path) -> None:
    first = write_images(tmp_path / "a", runs, bounds={"one pool": 0.9})
    second = write_images(tmp_path / "b", runs, bounds={"one pool": 0.9})
    assert [path.name for path in first] == [
        "ttft.svg",
        "hit-rate.svg",
        "shares.svg",
        "load-cache-aware.svg",
        "load-round-robin.svg",
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert write_images(tmp_path, runs, kind="png")[0].read_bytes().startswith(b"\x89PNG")


def test_wrong_calls_say_what_is_wrong(runs: list[SimResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run to draw"):
        write_html(tmp_path / "x.html", [])
    with pytest.raises(ValueError, match="kind must be 'svg', 'png' or 'pdf', got 'gif'"):
        write_images(tmp_path, runs, kind="gif")


@pytest.mark.parametrize("missing", ["plotly.graph_objects", "matplotlib"])
def test_missing_extra_is_named(
    missing: str, runs: list[SimResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    write = write_html if missing.startswith("plotly") else write_images
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cachelb\[plots\]'"):
        write(tmp_path / "x", runs)
