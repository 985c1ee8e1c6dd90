"""Against llm-d's 37 %-capacity benchmark: four real workers, nine rates, four ways to route.

Each worker is Llama-3.1-70B on four H100. The device's two shares are .40 and .80 here, which fit both ends: the loss
between four devices that share a model is not in the profile of one. Absolute TTFT lacks the API in front of the
engines, 0.11 to 0.15 s. The benchmark lacks the configuration of its tracker and the arrivals within a stage.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.models.llmd_scorers import ScoringGateway

from cachelb_lab.sim import FleetSpec, Signals, prepare, simulate
from cachelb_lab.sim.workloads.draft import Plan
from cachelb_lab.sim.workloads.prefix_groups import LLMD_STAGES, shared_prefix

RATES = tuple(float(rate) for rate, _ in LLMD_STAGES[1:])
CONFIGURATIONS = ("precise", "default", "load", "random")
BUSY = tuple(rate for rate in RATES if rate >= 5)
OVERLOADED = tuple(rate for rate in RATES if rate >= 6)


class Stage(NamedTuple):
    """Results of a stage: seconds and tokens per second."""

    ttft_s: float
    output_tok_s: float


Table = dict[tuple[float, str], Stage]


def fleet() -> FleetSpec:
    workers = FleetSpec.parse(
        "4xh100:tp4", model="llama-3.1-70b", block_size=64, kv_tokens=461_376, max_num_batched_tokens=8_192
    )
    return FleetSpec(
        tuple(replace(one, gpu=replace(one.gpu, mfu=0.40, bandwidth_share=0.80)) for one in workers),
    )


def read_reference(traces: Path) -> Table:
    rows = json.loads((traces / "anchors" / "llmd_37_capacity.json").read_text())["per_qps"]
    return {
        (row["qps"], row["policy"].removesuffix("-scheduling")): Stage(row["ttft_mean_s"], row["output_tok_s"])
        for row in rows
    }


def run_stages() -> Table:
    # Long enough for the slowest stage to drain.
    workload = shared_prefix(Plan(seed=1, block_size=64), stages=LLMD_STAGES, drain_s=330.0)
    prepared = prepare(workload)
    table: Table = {}
    for name in CONFIGURATIONS:
        given: dict[str, Any] = {"prepared": prepared, "seed": 1, "sample_interval_s": float("inf")}
        signals = Signals(scrape_interval_s=0.05, kv_events=name == "precise")
        if name in ("precise", "default", "load"):
            given["gateway"] = ScoringGateway(workload, 4, name, seed=1)  # type: ignore[arg-type]
        result = simulate(workload, fleet(), name if name == "random" else "round-robin", signals=signals, **given)
        assert result.finished.all()
        first = 0
        for rate, seconds in LLMD_STAGES:
            rows = slice(first, first + round(rate * seconds))
            first = rows.stop
            assert (result.finish_s[rows].max() < result.arrival_s[first:]).all()
            span = result.finish_s[rows].max() - result.arrival_s[rows].min()
            ttft = (result.first_token_s - result.arrival_s)[rows].mean()
            table[float(rate), name] = Stage(float(ttft), float(workload.output_tokens[rows].sum() / span))
    return table


@pytest.fixture(scope="module")
def reference(traces: Path) -> Table:
    return read_reference(traces)


@pytest.fixture(scope="module")
def simulated() -> Table:
    return run_stages()


def errors(simulated: Table, reference: Table, what: str, rates: tuple[float, ...], *names: str) -> dict[Any, float]:
    """Simulated / real - 1."""
    return {
        (rate, name): getattr(simulated[rate, name], what) / getattr(reference[rate, name], what) - 1
        for rate in rates
        for name in names
    }


@pytest.mark.parametrize("rate", BUSY)
def test_knowing_prefixes_beats_load_and_chance(rate: float, simulated: Table, reference: Table) -> None:
    for table in (simulated, reference):
        with_prefix = max(table[rate, name].ttft_s for name in ("precise", "default"))
        assert with_prefix < min(table[rate, name].ttft_s for name in ("load", "random"))


@pytest.mark.parametrize("name", ["load", "random"])
def test_without_prefixes_queues_grow_from_the_same_rate(name: str, simulated: Table, reference: Table) -> None:
    def knee(table: Table) -> int:
        return next(at for at, rate in enumerate(RATES) if table[rate, name].ttft_s > 2.0)

    assert RATES[knee(reference)] == 4
    assert abs(knee(simulated) - knee(reference)) <= 1


def test_throughput_is_within_a_quarter(simulated: Table, reference: Table) -> None:
    off = errors(simulated, reference, "output_tok_s", RATES, "precise", "load", "random")
    assert {key: error for key, error in off.items() if abs(error) > 0.25} == {}


def test_waiting_under_overload_is_within_a_quarter(simulated: Table, reference: Table) -> None:
    off = errors(simulated, reference, "ttft_s", OVERLOADED, "load", "random")
    assert {key: error for key, error in off.items() if abs(error) > 0.25} == {}


def test_precise_answers_at_once_at_every_rate(simulated: Table, reference: Table) -> None:
    # The difference is the API in front of the engines.
    for rate in RATES:
        assert simulated[rate, "precise"].ttft_s <= 0.35
        assert 0.08 < reference[rate, "precise"].ttft_s - simulated[rate, "precise"].ttft_s < 0.16


def test_the_real_trackers_loss_at_high_rates_is_not_reproduced(simulated: Table, reference: Table) -> None:
    # As published, the weights never send a request away from the one worker that was sent its prefix before.
    assert reference[20.0, "default"].ttft_s > 30 * reference[20.0, "precise"].ttft_s
    assert simulated[20.0, "default"].ttft_s == pytest.approx(simulated[20.0, "precise"].ttft_s, rel=0.5)
