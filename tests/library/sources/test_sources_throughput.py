"""Rates from successive pages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.metrics_pages import sglang_page, vllm_page

from cachelb.sources import LoadReport, MetricsPage, read_metrics_page
from cachelb.sources.prometheus_text import Totals
from cachelb.sources.throughput import Throughput


def page(*, running: float, output: float, computed: float = 0.0) -> MetricsPage:
    return read_metrics_page(
        vllm_page(running=(running,), waiting=(0.0,), output=output, computed=computed, prompt=computed)
    )


def test_idle_time_is_left_out_of_the_rate() -> None:
    rates = Throughput()
    rates.observe(page(running=1, output=0, computed=0), now_s=0.0)
    rates.observe(page(running=0, output=1_000, computed=500), now_s=1.0)
    busy = rates.observe(page(running=0, output=1_000, computed=500), now_s=1_000.0)
    assert busy == (500.0, 1_000.0)


def test_rate_waits_for_half_a_second_of_work() -> None:
    rates = Throughput()
    rates.observe(page(running=1, output=0), now_s=0.0)
    assert rates.observe(page(running=1, output=40), now_s=0.4)[1] is None
    assert rates.observe(page(running=1, output=60), now_s=0.6)[1] == pytest.approx(100.0)


def test_recent_work_outweighs_what_was_long_ago() -> None:
    rates = Throughput()
    output = 0.0
    for second in range(200):
        output += 100.0 if second < 100 else 400.0
        rate = rates.observe(page(running=1, output=output), now_s=float(second))[1]
    assert rate == pytest.approx(400.0, rel=0.001)


def test_restart_of_the_engine_does_not_count() -> None:
    rates = Throughput()
    rates.observe(page(running=1, output=0), now_s=0.0)
    rates.observe(page(running=1, output=1_000), now_s=1.0)
    assert rates.observe(page(running=1, output=5), now_s=2.0)[1] == pytest.approx(1_000.0)
    rates.observe(page(running=1, output=1_005), now_s=3.0)
    assert rates.observe(page(running=1, output=2_005), now_s=4.0)[1] == pytest.approx(1_000.0)


def test_prefill_time_of_finished_requests_beats_wall_time() -> None:
    rates = Throughput()
    rates.observe(read_metrics_page(vllm_page(prefill=(0.0, 0.0), computed=0.0)), now_s=0.0)
    later = read_metrics_page(vllm_page(prefill=(8_000.0, 2.0), computed=8_000.0))
    assert rates.observe(later, now_s=100.0)[0] == 4_000.0


def test_prefill_time_of_tensorrt_llm_counts_computed_tokens_only() -> None:
    page = b"trtllm_prompt_tokens_total %d\ntrtllm_prompt_cached_tokens_total %d\n"
    page += b"trtllm_request_prefill_time_seconds_sum %d\n"
    rates = Throughput()
    rates.observe(read_metrics_page(page % (0, 0, 0)), now_s=0.0)
    assert rates.observe(read_metrics_page(page % (9_000, 1_000, 2)), now_s=100.0)[0] == 4_000.0


def test_sglangs_own_rate_counts_only_while_requests_run() -> None:
    rates = Throughput()
    idle = read_metrics_page(sglang_page(running=0, queued=0, throughput=5.0))
    assert rates.observe(idle, now_s=0.0)[1] is None
    assert rates.observe(read_metrics_page(sglang_page(running=2, throughput=800.0)), now_s=1.0)[1] == 800.0
    assert rates.observe(idle, now_s=2.0)[1] == 800.0


COUNTERS = st.one_of(st.none(), st.floats(0.0, 2.0**56))
PAGES = st.builds(
    MetricsPage,
    engine=st.just("vllm"),
    load=st.builds(LoadReport, running=st.sampled_from([None, 0, 1])),
    ranks=st.just({}),
    totals=st.builds(
        Totals,
        prompt_tokens=COUNTERS,
        output_tokens=COUNTERS,
        prefill_tokens=COUNTERS,
        prefill_seconds=COUNTERS,
        gen_tps=COUNTERS,
    ),
    dropped=st.just(0),
)


@given(st.lists(st.tuples(PAGES, st.floats(0.0, 1e9)), max_size=6))
def test_rate_is_unknown_or_a_finite_number_above_zero(pages: list[tuple[MetricsPage, float]]) -> None:
    rates = Throughput()
    now_s = 0.0
    for each, seconds in pages:
        now_s += seconds
        for rate in rates.observe(each, now_s=now_s):
            assert rate is None or 0.0 < rate < math.inf
