"""Published benchmarks, simulated with one set of constants, beside the published figures."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb_lab.sim.experiments.calibration import Measurement, fit_scale
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.gpus import ModelProfile
from cachelb_lab.sim.memory import PeerSpec, PoolSpec
from cachelb_lab.sim.result import SimResult
from cachelb_lab.sim.simulation import Signals, prepare, simulate
from cachelb_lab.sim.timing import Roofline
from cachelb_lab.sim.workloads import Workload
from cachelb_lab.sim.workloads.draft import Draft, Plan
from cachelb_lab.sim.workloads.prefix_groups import shared_prefix

CONSTANTS = Roofline(attention_share=1.0, all_reduce=True)
"""The time of a pass in every result."""

MEAN_RATE, EACH_RATE, TTFT_P90, ALONE = 0.10, 0.15, 0.25, 0.10
"""Limits of relative differences: of rates in the mean and from the knee on, of TTFT p90, of requests alone."""

DISTINCT, SLACK = 0.05, 0.02
"""From which published difference arms have an order; by how much ours may stay behind the best other."""

OURS = "ours"
"""Name of the arm that was not published."""

_SEED = 1
_ANSWER_TOKENS = 64
_WHOLE = 100
_RATES = ("requests/s", "output tokens/s")
_TTFT_P90 = "TTFT p90, s"
_FIGURES = {
    **dict.fromkeys(_RATES),
    "TTFT mean, s": None,
    "TTFT p50, s": 50,
    _TTFT_P90: 90,
    "TTFT p99, s": 99,
    "latency p50, s": 50,
}
"""Percentiles, where a figure is one."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """A limit, what it is compared with, and whether it holds."""

    limit: str
    found: str
    holds: bool

    def __str__(self) -> str:
        return f"{'holds' if self.holds else '**misses**'}: {self.limit} ({self.found})"


@dataclass(frozen=True)
class Outcome:
    """The table of one scenario, heads first, and its verdicts."""

    name: str
    rows: list[list[str]]
    verdicts: list[Verdict]

    def markdown(self) -> str:
        """Return heading, table and verdicts."""
        heads, *rows = self.rows
        table = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        return "\n".join([f"### {self.name}", "", *lines, "", *(f"- {verdict}" for verdict in self.verdicts), ""])


def published() -> list[dict[str, Any]]:
    """Return the published results of this folder, as their files have them."""
    return [tomllib.loads(file.read_text("utf-8")) for file in sorted(Path(__file__).parent.glob("*.toml"))]


def rerun(result: Mapping[str, Any], *, quick: bool = False) -> Iterator[Outcome]:
    """Simulate a published result: requests alone, if it has those, and each scenario.

    Args:
        result: One of `published`.
        quick: Take no more than the stages that a scenario names for that.

    Yields:
        The outcome of each.
    """
    fleet = _fleet(result["fleet"])
    if alone := result.get("alone"):
        fleet = _fitted(fleet, alone)
        yield _alone(fleet, alone)
    for scenario in result["scenarios"]:
        stages = [stage for stage in scenario["stages"] if not quick or stage[0] in scenario.get("quick", [])]
        if stages:
            yield _scenario(FleetSpec(fleet.workers[: scenario.get("workers")]), scenario, stages)


def _fleet(given: Mapping[str, Any]) -> FleetSpec:
    """Build the workers; a model that is not one of ours is given by its sizes."""
    settings = dict(given)
    text, sizes, tier = settings.pop("text"), settings.pop("sizes", None), settings.pop("tier", None)
    fleet = FleetSpec.parse(text, timing=CONSTANTS, tier=tier and PoolSpec(**tier), **settings)
    if sizes is None:
        return fleet
    return FleetSpec(tuple(replace(worker, model=ModelProfile(**sizes)) for worker in fleet))


def _fitted(fleet: FleetSpec, alone: Mapping[str, Any]) -> FleetSpec:
    """Fit the time of prompts and of pulls to requests alone."""
    rest_s = alone["token_ms"] / 1e3 * (_ANSWER_TOKENS - 1)
    first_s = [(ms - alone["path_ms"]) / 1e3 for ms in alone["recompute_ms"]]
    measured = [
        Measurement(tokens, 0, _ANSWER_TOKENS, ttft_s=seconds, total_s=seconds + rest_s)
        for tokens, seconds in zip(alone["tokens"], first_s, strict=True)
    ]
    timing = fit_scale(measured, fleet.workers[0])
    slope, begin = np.polyfit(alone["tokens"], alone["pull_ms"], 1, w=1 / np.array(alone["pull_ms"]))

    def workers(startup_ms: float) -> FleetSpec:
        peers = PeerSpec(float(slope), startup_ms)
        return FleetSpec(tuple(replace(worker, timing=timing, peers=peers) for worker in fleet))

    # The time of a pull beside the transfer, which the line through the published ones contains.
    beside = np.median(_times_ms(workers(0.0), alone)[1] - slope * np.array(alone["tokens"]))
    return workers(max(0.0, float(begin - beside)))


def _times_ms(fleet: FleetSpec, alone: Mapping[str, Any]) -> Numbers:
    """Compute each length on one worker, then pull it to another."""
    draft = Draft("alone", Plan(block_size=fleet.workers[0].block_size))
    prefixes = [draft.piece(tokens) for tokens in alone["tokens"]]
    for at, prefix in enumerate(prefixes * 2):
        draft.request([prefix, draft.piece(1)], 1, arrival_s=10.0 * at)
    pinned = np.repeat([0, 1], len(prefixes))
    signals = Signals(net_delay_s=alone["path_ms"] / 2e3)
    run = simulate(draft.finish(), fleet, "random+events", signals=signals, pinned=pinned, pull_min_tokens=1)
    return run.ttft_s.reshape(2, -1) * 1e3


def _alone(fleet: FleetSpec, alone: Mapping[str, Any]) -> Outcome:
    """Compare requests alone."""
    ours, theirs = _times_ms(fleet, alone), np.array([alone["recompute_ms"], alone["pull_ms"]])
    rows = [["prompt, tokens", "recompute, ms", "pull, ms"]]
    for nth, tokens in enumerate(alone["tokens"]):
        rows.append([f"{tokens:,}", *map(_pair, theirs[:, nth], ours[:, nth])])
    verdicts = [_within(f"{rows[0][nth + 1]}, each", ours[nth] / theirs[nth], ALONE) for nth in range(2)]
    return Outcome("Single requests", rows, verdicts)


def _scenario(fleet: FleetSpec, scenario: Mapping[str, Any], stages: Sequence[Sequence[float]]) -> Outcome:
    """Run every arm over the same requests."""
    workload, parts = _workload(scenario, stages, fleet.workers[0].block_size)
    prepared, signals = prepare(workload), Signals(net_delay_s=scenario["path_s"] / 2)
    at = [scenario["stages"].index(stage) for stage in stages]
    busy = np.array([stage[0] >= scenario["knee"] for stage in stages])
    names = [name for name in _FIGURES if any(name in arm for arm in scenario["arms"])]
    rows, verdicts, rates = [["arm", "offered", *names]], [], []
    for arm in scenario["arms"]:
        run = simulate(workload, fleet, arm["policy"], seed=_SEED, signals=signals, prepared=prepared)
        ours = np.array([[_figure(run, part, name) for part in parts] for name in names])
        theirs = np.array([np.array(arm[name])[at] if name in arm else np.full(len(at), np.nan) for name in names])
        for nth, stage in enumerate(stages):
            rows.append([arm["name"], f"{stage[0]:g}", *map(_pair, theirs[:, nth], ours[:, nth])])
        rates.append((arm["name"], theirs[0], ours[0]))
        for name, ratio in zip(names, ours / theirs, strict=True):
            title = f"{arm['name']}, {name}"
            if name in _RATES and name in arm:
                verdicts.append(_within(f"{title}, in the mean", ratio.mean(keepdims=True), MEAN_RATE))
                verdicts.append(_within(f"{title}, each from {scenario['knee']} on", ratio[busy], EACH_RATE))
            elif name == _TTFT_P90 and name in arm:
                verdicts.append(_within(f"{title}, each from {scenario['knee']} on", ratio[busy], TTFT_P90))
    return Outcome(scenario["name"], rows, [*verdicts, *_compared(rates)])


def _workload(
    scenario: Mapping[str, Any], stages: Sequence[Sequence[float]], block_size: int
) -> tuple[Workload, list[slice]]:
    """Return the requests, and which of them each stage has."""
    if sizes := scenario.get("conversations"):
        ((together, _),) = stages
        workload = _conversations(int(together), block_size, **sizes)
        return workload, [slice(0, len(workload))]
    warm_up = [scenario["warm_up"]] if "warm_up" in scenario else []
    staged = [(rate, seconds) for rate, seconds in [*warm_up, *stages]]
    ends = np.cumsum([0, *(round(rate * seconds) for rate, seconds in staged)]).tolist()
    workload = shared_prefix(Plan(seed=_SEED, block_size=block_size), stages=staged, **scenario["prompts"])
    return workload, list(map(slice, ends, ends[1:]))[len(warm_up) :]


def _conversations(
    together: int, block_size: int, *, count: int, turns: int, document: int, question: int, answer: int, pool: int = 0
) -> Workload:
    """Return conversations about a document each, its own or one of a pool; a new one begins where one has ended."""
    draft, last = Draft("conversations", Plan(seed=_SEED, block_size=block_size)), [-1] * together
    known = [draft.piece(document) for _ in range(pool)]
    for number in range(count):
        history = [known[draft.prefixes.integers(pool)] if known else draft.piece(document)]
        for _ in range(turns):
            parent, reply = last[number % together], draft.piece(answer)
            if question:
                history.append(draft.piece(question))
            begin = 0.001 * number if parent < 0 else float("nan")
            last[number % together] = draft.request(history, reply, arrival_s=begin, parent=parent)
            history.append(reply)
    return draft.finish()


def _figure(run: SimResult, part: slice, name: str) -> float:
    """Return a figure of some requests."""
    begin, first, end = (column[part] for column in (run.arrival_s, run.first_token_s, run.finish_s))
    if name in _RATES:
        served = run.workload.output_tokens[part] if name == _RATES[1] else np.ones(len(end))
        return float(served.sum() / (end.max() - begin.min()))
    figure, times = _FIGURES[name], (end if name.startswith("latency") else first) - begin
    return float(times.mean() if figure is None else np.percentile(times, figure))


def _compared(rates: Sequence[tuple[str, Numbers, Numbers]]) -> Iterator[Verdict]:
    """Compare the order of the published arms, and ours with the best of them."""
    kept = [arm for arm in rates if not np.isnan(arm[1]).any()]
    apart = [
        (np.sign(one[2] - other[2]) == np.sign(one[1] - other[1]))[abs(one[1] / other[1] - 1) > DISTINCT]
        for one, other in combinations(kept, 2)
    ]
    right = np.concatenate(apart) if apart else np.ones(0, dtype=bool)
    yield Verdict(f"order of arms that differ by {DISTINCT:.0%}", f"{right.sum()} of {len(right)}", bool(right.all()))
    best = np.max([ours for _, _, ours in kept], axis=0)
    for name, _, ours in rates:
        if name == OURS:
            least = float((ours / best).min())
            yield Verdict(f"ours at least the best arm - {SLACK:.0%}", f"{least:.3f}", least >= 1 - SLACK)


def _within(what: str, ratios: Numbers, limit: float) -> Verdict:
    """Check ratios of simulated to published figures."""
    low, high = float(ratios.min()), float(ratios.max())
    found = f"{low:.2f}" if len(ratios) == 1 else f"{low:.2f} to {high:.2f}"
    return Verdict(f"{what}, within {limit:.0%}", found, bool(max(high - 1, 1 - low) <= limit))


def _pair(theirs: float, ours: float) -> str:
    """Write the published figure, the simulated one and their ratio."""
    digits = 3 if ours < 1 else 2 if ours < _WHOLE else 0
    mine = f"{ours:,.{digits}f}"
    return mine if np.isnan(theirs) else f"{theirs:,.{digits}f} / {mine} ({ours / theirs:.2f})"
