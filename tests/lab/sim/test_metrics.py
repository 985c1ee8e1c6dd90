"""Every figure against a slow, obvious computation, on made-up results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachelb_lab.sim import SimResult, Slo, Status
from cachelb_lab.sim.figures.lru_bound import HitCount
from cachelb_lab.sim.figures.metrics import Cost, Imbalance, Quantiles, measure
from cachelb_lab.sim.figures.worst import worst_requests
from cachelb_lab.sim.result import WallClock
from cachelb_lab.sim.workloads.workload import make

WORKERS = 3
REASONS = ["prefix", "cold", "spill"]
BOUND, INFINITE = HitCount(10, 4, 160, 64), HitCount(10, 8, 160, 128)
SLO = Slo(ttft_s=1.0, tpot_s=0.5)
NAN = float("nan")
Made = tuple[Status, float, float, float, int, int, int, int, int]
"""Status, arrival, first token, end, prompt, output, predicted, cached, worker."""


def result_of(
    rows: Sequence[Made],
    samples: Sequence[Sequence[Sequence[float]]] = (),
    busy_s: Sequence[float] = (1.0, 2.0, 3.0),
) -> SimResult:
    status, arrival_s, first_s, end_s, prompt, output, predicted, cached, worker = (
        zip(*rows, strict=True) if rows else [()] * 9
    )
    workload = make(
        "made up",
        block_size=1_000_000,
        prompt_tokens=prompt,
        output_tokens=output,
        hashes=np.empty(0, dtype=np.uint64),
        offsets=np.zeros(len(rows) + 1),
        arrival_s=np.zeros(len(rows)),
    )
    ends = [time for time in end_s if not math.isnan(time)]
    return SimResult(
        policy="ours",
        seed=1,
        workload=workload,
        fleet="3 x ours",
        workers=[f"worker-{n}" for n in range(WORKERS)],
        status=np.array(status, dtype=np.uint8),
        arrival_s=np.array(arrival_s, dtype=np.float64),
        first_token_s=np.array(first_s, dtype=np.float64),
        finish_s=np.array(end_s, dtype=np.float64),
        worker=np.array(worker, dtype=np.int32),
        prefill_worker=np.full(len(rows), -1, dtype=np.int32),
        reason=np.array([row % len(REASONS) for row in range(len(rows))], dtype=np.uint8),
        predicted_tokens=np.array(predicted, dtype=np.uint32),
        cached_tokens=np.array(cached, dtype=np.uint32),
        pulled_tokens=np.zeros(len(cached), dtype=np.uint32),
        preemptions=np.zeros(len(rows), dtype=np.uint32),
        retries=np.ones(len(rows), dtype=np.uint32),
        reasons=REASONS,
        sample_s=np.arange(len(samples), dtype=np.float64),
        samples=np.array(samples, dtype=np.float32).reshape(len(samples), WORKERS, 4),
        busy_s=np.array(busy_s, dtype=np.float64),
        evicted_blocks=np.array([1, 2, 3], dtype=np.uint64),
        worker_preemptions=np.array([4, 0, 1], dtype=np.uint64),
        event_messages=np.zeros(WORKERS, dtype=np.uint64),
        lost_messages=np.zeros(WORKERS, dtype=np.uint64),
        replays=np.zeros(WORKERS, dtype=np.uint64),
        resyncs=np.zeros(WORKERS, dtype=np.uint64),
        itl_s=np.array([0.1, 0.2, 0.3, 0.4]),
        end_s=max(ends, default=0.0),
        wall_clock=WallClock(run_s=2.0, select_ns=np.array([1000, 2000, 3000], dtype=np.uint32)),
    )


@st.composite
def rows(draw: st.DrawFn) -> Made:
    status = draw(st.sampled_from(Status))
    arrival_s = draw(st.integers(0, 40)) / 4
    prompt, output = draw(st.integers(1, 900)), draw(st.integers(1, 20))
    cached, predicted = draw(st.integers(0, prompt)), draw(st.integers(0, prompt))
    first_s = arrival_s + draw(st.integers(1, 12)) / 8
    end_s = first_s + (draw(st.integers(0, 40)) / 8 if output > 1 else 0.0)
    worker = draw(st.integers(0, WORKERS - 1))
    match status:
        case Status.FINISHED:
            pass
        case Status.REJECTED | Status.TOO_LONG:
            first_s, worker, cached = NAN, -1, 0
        case _ if draw(st.booleans()):
            first_s, cached = NAN, 0
        case Status.UNFINISHED:
            end_s = NAN
        case _:
            pass
    return status, arrival_s, first_s, end_s, prompt, output, predicted, cached, worker


SAMPLES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9999), st.sampled_from([0.0, 0.25, 1.0])),
        min_size=WORKERS,
        max_size=WORKERS,
    ),
    max_size=5,
)


def quantile(values: list[float], q: float) -> float:
    values = sorted(values)
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def check_quantiles(found: Quantiles, values: list[float]) -> None:
    if not values:
        assert all(math.isnan(value) for value in (found.mean, found.p50, found.p90, found.p99))
        return
    assert found.mean == pytest.approx(sum(values) / len(values))
    for q, value in {0.5: found.p50, 0.9: found.p90, 0.99: found.p99}.items():
        assert value == pytest.approx(quantile(values, q)), q


def check_imbalance(found: Imbalance, values: list[float]) -> None:
    mean = sum(values) / len(values)
    if not mean:
        assert found == Imbalance(0.0, 1.0)
        return
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert found.cov == pytest.approx(math.sqrt(variance) / mean)
    assert found.max_over_mean == pytest.approx(max(values) / mean)


@given(st.lists(rows(), max_size=12))
def test_counts_add_up(made: list[Made]) -> None:
    found = measure(result_of(made), bound=BOUND, infinite=INFINITE)
    assert found.offered == len(made)
    for status, count in {
        Status.FINISHED: found.finished,
        Status.REJECTED: found.rejected,
        Status.FAILED: found.failed,
        Status.TOO_LONG: found.too_long,
        Status.UNFINISHED: found.unfinished,
        Status.ABORTED: found.aborted,
    }.items():
        assert count == sum(row[0] is status for row in made), status
    assert found.completed == pytest.approx(found.finished / len(made) if made else 0.0)
    assert found.retries == len(made)
    assert (found.preemptions, found.evicted_blocks) == (5, 6)
    placed = [REASONS[nth % len(REASONS)] for nth, row in enumerate(made) if row[-1] >= 0]
    assert found.reasons == {reason: placed.count(reason) for reason in placed}
    assert list(found.reasons.values()) == sorted(found.reasons.values(), reverse=True)


@given(st.lists(rows(), max_size=12))
def test_latencies_are_those_of_requests_served_whole(made: list[Made]) -> None:
    found = measure(result_of(made), bound=BOUND, infinite=INFINITE)
    whole = [row for row in made if row[0] is Status.FINISHED]
    check_quantiles(found.ttft_s, [first - arrival for _, arrival, first, *_ in whole])
    check_quantiles(found.e2e_s, [end - arrival for _, arrival, _, end, *_ in whole])
    check_quantiles(
        found.tpot_s, [(end - first) / (output - 1) for _, _, first, end, _, output, *_ in whole if output > 1]
    )
    assert found.itl_s == Quantiles(0.1, 0.2, 0.3, 0.4)


@given(st.lists(st.tuples(rows(), st.sampled_from(["", "a", "b"])), max_size=12))
def test_a_session_takes_from_its_first_arrival_to_its_last_end(made: list[tuple[Made, str]]) -> None:
    result = result_of([row for row, _ in made])
    assert not len(result.session_s), "nothing is known of sessions"
    workload = replace(result.workload, session=[name for _, name in made])
    found = measure(replace(result, workload=workload), bound=BOUND, infinite=INFINITE)
    sessions = [[row for row, name in made if name == each] for each in sorted({name for _, name in made} - {""})]
    whole = [rows for rows in sessions if all(row[0] is Status.FINISHED for row in rows)]
    check_quantiles(found.session_s, [max(row[3] for row in rows) - min(row[1] for row in rows) for rows in whole])


@given(st.lists(rows(), max_size=12))
def test_hits_and_predictions_count_requests_with_a_first_token(made: list[Made]) -> None:
    found = measure(result_of(made), bound=BOUND, infinite=INFINITE)
    begun = [row for row in made if not math.isnan(row[2])]
    prompts, cached = sum(row[4] for row in begun), sum(row[7] for row in begun)
    assert found.hit_rate == pytest.approx(cached / prompts if prompts else 0.0)
    assert (found.bound_rate, found.infinite_rate) == (0.4, 0.8)
    assert found.of_bound == pytest.approx(found.hit_rate / 0.4)
    wrong = [row[6] - row[7] for row in begun]
    count = max(1, len(wrong))
    assert found.prediction.bias_tokens == pytest.approx(sum(wrong) / count)
    assert found.prediction.error_tokens == pytest.approx(sum(map(abs, wrong)) / count)
    assert found.prediction.too_high == pytest.approx(sum(one > 0 for one in wrong) / count)
    assert found.prediction.too_low == pytest.approx(sum(one < 0 for one in wrong) / count)


@example(
    [(Status.FINISHED, at_s, at_s + 1, at_s + 2, 100, 5, 0, 0, 0) for at_s in (0.0, 10.0)]
)  # the first at its edge
@given(st.lists(rows(), max_size=12))
def test_throughput_and_goodput_count_the_steady_part(made: list[Made]) -> None:
    result = result_of(made)
    found = measure(result, slo=SLO, bound=BOUND, infinite=INFINITE)
    arrivals = [row[1] for row in made] or [0.0]
    begin, end = min(arrivals) + 0.1 * (max(arrivals) - min(arrivals)), max(arrivals)
    if len(set(arrivals)) == 1:
        begin, end = arrivals[0], max(arrivals[0], result.end_s)
    read = written = good = attained = 0.0
    for status, arrival, first, last, prompt, output, *_ in made:
        read += prompt * (begin <= first <= end)
        if status is not Status.FINISHED:
            continue
        written += begin <= first <= end
        if last > first:
            written += (output - 1) * max(0.0, min(last, end) - max(first, begin)) / (last - first)
        elif begin <= last <= end:
            written += output - 1
        if first - arrival <= 1.0 and (output == 1 or (last - first) / (output - 1) <= 0.5):
            attained += 1
            good += begin <= last <= end
    span = end - begin
    assert found.input_tokens_per_s == pytest.approx(read / span if span else 0.0)
    assert found.output_tokens_per_s == pytest.approx(written / span if span else 0.0)
    assert found.goodput_per_s == pytest.approx(good / span if span else 0.0)
    assert found.attained == pytest.approx(attained / len(made) if made else 0.0)


@given(st.lists(rows(), max_size=12), SAMPLES, st.lists(st.integers(0, 9), min_size=WORKERS, max_size=WORKERS))
def test_load_is_averaged_over_time_and_compared_between_workers(
    made: list[Made],
    samples: list[list[tuple[float, ...]]],
    busy_s: list[float],
) -> None:
    found = measure(result_of(made, samples, busy_s), bound=BOUND, infinite=INFINITE)
    check_imbalance(found.busy, busy_s)
    check_imbalance(found.requests, [sum(row[-1] == worker for row in made) for worker in range(WORKERS)])
    count = max(1, len(samples))
    means = [[sum(one[worker][what] for one in samples) / count for worker in range(WORKERS)] for what in range(4)]
    check_imbalance(found.queued, means[2])
    assert found.running == pytest.approx(sum(means[0]))
    assert found.waiting == pytest.approx(sum(means[1]))
    used = [worker[3] for one in samples for worker in one]
    check_quantiles(found.kv_use, used)
    assert found.kv_use_max == max(used, default=0.0)


def test_without_limits_there_is_no_goodput() -> None:
    found = measure(result_of([]), bound=BOUND, infinite=INFINITE)
    assert (found.goodput_per_s, found.attained) == (None, None)


def test_pool_without_hits_is_no_yardstick() -> None:
    assert measure(result_of([]), bound=HitCount(0, 0, 0, 0), infinite=INFINITE).of_bound is None


def test_json_has_no_nan() -> None:
    document = measure(result_of([]), bound=BOUND, infinite=INFINITE).as_dict()
    assert document["ttft_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert document["completed"] == 0.0


def test_cost_is_of_the_readings_of_the_real_clock() -> None:
    cost = Cost.of(result_of([(Status.FINISHED, 0.0, 1.0, 1.0, 1, 1, 0, 0, 0)]))
    assert cost == Cost(run_s=2.0, requests_per_s=0.5, decisions_per_s=500_000, select_p50_us=2.0, select_p99_us=2.98)


# === limits ===


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=1", Slo(1.0)),
        ("tpot=20ms", Slo(tpot_s=0.02)),
        ("ttft=500ms, tpot=0.1s", Slo(0.5, 0.1)),
    ],
)
def test_limits_are_read(text: str, expected: Slo) -> None:
    assert Slo.parse(text) == expected


# === the slowest requests ===


def test_slowest_requests_come_first_and_those_without_a_first_token_before() -> None:
    result = result_of(
        [
            (Status.FINISHED, 0.0, 2.0, 3.0, 100, 5, 0, 0, 0),
            (Status.FINISHED, 0.0, 1.0, 3.0, 100, 5, 0, 0, 1),
            (Status.REJECTED, 5.0, NAN, 5.0, 100, 5, 0, 0, -1),
            (Status.UNFINISHED, NAN, NAN, NAN, 100, 5, 0, 0, -1),
        ]
    )
    worst = worst_requests(result, 9)
    assert [one.row for one in worst] == [2, 0, 1]
    assert (worst[0].status, worst[0].worker, worst[0].ttft_s) == ("rejected", None, None)
    assert worst[0].why[:2] == ("no worker could be picked", "tried again 1x")
    assert [one.row for one in worst_requests(result, 1)] == [2]


def test_slow_request_says_what_was_before_it_and_what_was_not_cached() -> None:
    result = result_of(
        [
            (Status.FINISHED, 0.0, 2.0, 3.0, 900, 5, 0, 100, 0),
            (Status.FINISHED, 1.0, 9.0, 9.5, 500, 5, 400, 10, 0),
            (Status.FINISHED, 0.5, 1.0, 1.5, 500, 5, 0, 0, 1),
        ]
    )
    slowest = worst_requests(result, 1)[0]
    assert (slowest.queued_before_tokens, slowest.least_queued_before_tokens) == (800, 0)
    assert slowest.why == (
        "tried again 1x",
        "800 tokens before it at its worker, 0 at the freest",
        "390 tokens were taken to be cached and were not",
        "computes 490 of 500 prompt tokens",
    )
