"""Against the log of a real vLLM 0.19.0: 300 ShareGPT requests at 10 a second on one RTX 4090, overloaded on purpose.

TTFT is queueing here, about 65 s, with some 190 preemptions: any fault of the scheduler adds up. The engine is set as
in the log. Two scalars of the device were fitted to these figures, so they test the scheduler, not the device.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from cachelb_lab.sim import FleetSpec, Signals, SimResult, simulate
from cachelb_lab.sim.workloads.files.traces import read_mooncake

Seconds = npt.NDArray[np.float64]

MARKS = (50, 90, 99)


class Log(NamedTuple):
    """When requests of the real run began to wait, had their first token and their last; how many tokens they have."""

    queued: Seconds
    first: Seconds
    last: Seconds
    tokens: Seconds


def read_log(traces: Path) -> Log:
    with lzma.open(traces / "llmservingsim" / "RTX4090_llama31-8b_vllm_requests.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    keys = ("queued_ts", "first_token_ts", "last_token_ts", "output_toks")
    queued, first, last, tokens = np.array([[row[key] for key in keys] for row in rows]).T
    return Log(queued, first, last, tokens)


def run_again(log: Log, traces: Path) -> SimResult:
    lengths = traces / "llmservingsim" / "sharegpt300_lengths_hash16.jsonl.xz"
    requests = read_mooncake(lengths, id_tokens=16, full_blocks_only=True)
    fleet = FleetSpec.parse("rtx4090", max_num_batched_tokens=2_048, max_num_seqs=256)
    assert fleet.workers[0].kv_blocks == 2_588
    return simulate(
        replace(requests, arrival_s=log.queued - log.queued[0]), fleet, "round-robin", signals=Signals(net_delay_s=0.0)
    )


@pytest.fixture(scope="module")
def log(traces: Path) -> Log:
    return read_log(traces)


@pytest.fixture(scope="module")
def run(log: Log, traces: Path) -> SimResult:
    return run_again(log, traces)


def statistics(values: Seconds) -> list[float]:
    return [float(values.mean()), *np.percentile(values, MARKS).tolist()]


def test_every_statistic_is_within_two_percent(log: Log, run: SimResult) -> None:
    assert run.finished.all()
    assert statistics(run.ttft_s) == pytest.approx(statistics(log.first - log.queued), rel=0.02)
    assert statistics(run.tpot_s) == pytest.approx(statistics((log.last - log.first) / (log.tokens - 1)), rel=0.02)
    assert statistics(run.e2e_s) == pytest.approx(statistics(log.last - log.queued), rel=0.02)
    assert run.end_s == pytest.approx(log.last.max() - log.queued[0], rel=0.01)


def test_so_is_request_after_request(log: Log, run: SimResult) -> None:
    ttft = log.first - log.queued
    assert np.abs(run.ttft_s - ttft).mean() < 0.01 * ttft.mean()
    tpot = (log.last - log.first) / (log.tokens - 1)
    assert np.abs(run.tpot_s / tpot - 1).mean() < 0.03


def test_the_cache_fills_up_and_requests_are_preempted(run: SimResult) -> None:
    assert run.samples[:, 0, 3].max() > 0.999
    assert 150 < run.preemptions.sum() < 250
