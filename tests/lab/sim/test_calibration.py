"""Fitting how fast an engine is beside the cost model: known scales are found again, with noise and with an outlier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelb_lab.sim import FleetSpec, Measurement, Signals, WorkerSpec, fit_scale, simulate
from cachelb_lab.sim.timing import Polynomial, Roofline, Scaled, Table
from cachelb_lab.sim.workloads.workload import make

(WORKER,) = FleetSpec.parse("a30")
SILENT = Signals(net_delay_s=0.0, scrape_interval_s=float("inf"))
TABLE = Table(((1.0, 0.02), (4_000.0, 1.0)), ((1.0, 0.01), (10_000.0, 0.05)))
SHAPES = [(500 + 211 * nth, 30 + 17 * (nth * 7 % 20)) for nth in range(20)]


def served(worker: WorkerSpec, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Measurement]:
    """Return what a worker takes for requests one after the other, each twice: the second finds half of its prompt."""
    shapes = [(prompt, output + again) for prompt, output in shapes for again in (0, 1)]
    counts = [prompt // worker.block_size for prompt, _ in shapes]
    rows = [
        [1_000 * (at if depth >= count // 2 else at - at % 2) + depth for depth in range(count)]
        for at, count in enumerate(counts)
    ]
    workload = make(
        "served",
        block_size=worker.block_size,
        arrival_s=np.arange(len(shapes)) * 1e4,
        prompt_tokens=[prompt for prompt, _ in shapes],
        output_tokens=[output for _, output in shapes],
        hashes=np.array([1 + each for row in rows for each in row], dtype=np.uint64),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
    )
    result = simulate(workload, FleetSpec((worker,)), "round-robin", signals=SILENT, sample_interval_s=1e6)
    assert set(result.cached_tokens[::2]) == {0}
    assert (result.cached_tokens[1::2] > 0).all()
    times = zip(shapes, result.cached_tokens, result.ttft_s, result.e2e_s, strict=True)
    return [
        Measurement(prompt, int(cached), output, float(ttft_s), float(e2e_s))
        for (prompt, output), cached, ttft_s, e2e_s in times
    ]


@settings(deadline=None)
@given(
    scales=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)),
    timing=st.sampled_from([Roofline(), Roofline(all_reduce=True), Polynomial(), TABLE]),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1_000),
    outlier=st.sampled_from([None, 0.05, 20.0]),
)
def test_known_scales_are_found_again(
    scales: tuple[float, float], timing: Any, tensor_parallel: int, seed: int, outlier: float | None
) -> None:
    worker = replace(WORKER, timing=timing, tensor_parallel=tensor_parallel)
    measured = served(replace(worker, timing=Scaled(timing, *scales)))
    exact = fit_scale(measured, worker)
    assert (exact.prefill, exact.decode) == pytest.approx(scales, rel=1e-6)
    assert exact.timing == timing

    drawn = random.Random(seed)
    noisy = []
    for row in measured:
        ttft_s = row.ttft_s * drawn.gauss(1.0, 0.02)
        rest_s = (row.total_s - row.ttft_s) * drawn.gauss(1.0, 0.02)
        noisy.append(replace(row, ttft_s=ttft_s, total_s=ttft_s + rest_s))
    if outlier is not None:
        row = noisy[seed % len(noisy)]
        ttft_s = row.ttft_s * outlier
        noisy[seed % len(noisy)] = replace(row, ttft_s=ttft_s, total_s=ttft_s + (row.total_s - row.ttft_s) * outlier)
    found = fit_scale(noisy, worker)
    assert (found.prefill, found.decode) == pytest.approx(scales, rel=0.03)


def test_a_scale_that_was_fitted_before_is_replaced() -> None:
    measured = served(replace(WORKER, timing=Scaled(Roofline(), 1.5, 0.7)))
    again = fit_scale(measured, replace(WORKER, timing=Scaled(Roofline(), 9.0, 9.0)))
    assert (again.prefill, again.decode) == pytest.approx((1.5, 0.7))


GOOD = Measurement(1_000, 0, 10, 0.1, 0.5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([GOOD] * 2, ValueError, "measured must be 3 requests or more"),
        ([GOOD] * 2 + [replace(GOOD, output_tokens=1)], ValueError, "got 3 and 2 such answers"),
        ([GOOD] * 3 + [replace(GOOD, prompt_tokens=200_000)], ValueError, "cannot hold Measurement"),
        ([(1_000, 0, 10, 0.1, 0.5)] * 3, TypeError, "measured must be of Measurement, got tuple"),
    ],
)
def test_measurements_that_say_too_little_are_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_scale(given, WORKER)


def test_a_scale_of_a_scale_is_refused() -> None:
    with pytest.raises(TypeError, match="timing must be a Roofline, a Polynomial or a Table, got Scaled"):
        Scaled(Scaled(Roofline()))  # type: ignore[arg-type]
