"""Against measured kernels of Llama-3-8B: what the cost model charges is no more than engines add to them.

`anchors/llama3_8b_kernel_times_ms.csv` has times of 32 layers. The model's shares are of whole engines, so it should be
near the kernels where memory is what they wait for, and above them where arithmetic is.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cachelb.sim.gpus import GPUS, MODELS
from cachelb.sim.timing import ATTENTION_SHARE

MODEL = MODELS["llama-3-8b"]
NAMES = {"a100_sxm": "a100-80", "h100_sxm": "h100-80", "l40s": "l40s"}

Kernels = dict[tuple[str, str, int, int], float]


def read_kernels(traces: Path) -> Kernels:
    with (traces / "anchors" / "llama3_8b_kernel_times_ms.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        (row["gpu"], row["op"].partition("_")[0], int(row["m_or_batch_or_isl"]), int(row["ctx"] or 0)): float(row["ms"])
        for row in rows
    }


@pytest.fixture(scope="module")
def kernels(traces: Path) -> Kernels:
    return read_kernels(traces)


def charged_ms(gpu: str, op: str, size: int, context: int) -> float:
    """What the cost model says of one kernel."""
    device = GPUS[NAMES[gpu]]
    flops, bandwidth = device.peak_flops * device.mfu, device.bandwidth * device.bandwidth_share
    seconds = {
        "gemm": max(2 * MODEL.body_parameters / bandwidth, 2 * MODEL.body_parameters * size / flops),
        "prefill": MODEL.attention_flops * size * size / 2 / (ATTENTION_SHARE * flops),
        "decode": MODEL.kv_bytes * size * context / bandwidth,
    }
    return seconds[op] * 1e3


def ratios(kernels: Kernels, gpu: str, op: str, keep: range, context: int | None = None) -> list[float]:
    return [
        charged_ms(*key) / ms
        for key, ms in kernels.items()
        if key[:2] == (gpu, op) and key[2] in keep and context in (None, key[3])
    ]


@pytest.mark.parametrize("gpu", NAMES)
def test_small_batches_cost_what_reading_the_weights_does(gpu: str, kernels: Kernels) -> None:
    assert ratios(kernels, gpu, "gemm", range(1, 65)) == pytest.approx([0.95] * 4, abs=0.12)


@pytest.mark.parametrize("gpu", NAMES)
def test_large_batches_cost_more_than_their_kernels_alone(gpu: str, kernels: Kernels) -> None:
    # A100 at 16,384 repeats the figure of 8,192.
    assert all(1.1 < ratio < 1.6 for ratio in ratios(kernels, gpu, "gemm", range(512, 8_193)))


@pytest.mark.parametrize("gpu", NAMES)
def test_decode_attention_costs_what_reading_the_cache_does(gpu: str, kernels: Kernels) -> None:
    # Below 32 sequences launches dominate, or the second-level cache holds everything.
    assert ratios(kernels, gpu, "decode", range(32, 65), 2_048) == pytest.approx([0.9] * 2, abs=0.17)


@pytest.mark.parametrize("gpu", NAMES)
def test_long_prefill_attention_is_charged_up_to_twice(gpu: str, kernels: Kernels) -> None:
    assert all(1.0 < ratio < 2.1 for ratio in ratios(kernels, gpu, "prefill", range(2_048, 16_385)))
