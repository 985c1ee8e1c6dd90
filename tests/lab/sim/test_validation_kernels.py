"""Against measured kernels of Llama-3-8B: what the cost model charges is no more than engines add to them.

`anchors/llama3_8b_kernel_times_ms.csv` has times of 32 layers. The model's shares are of whole engines, so it should be
near the kernels where memory is what they wait for, and above them where arithmetic is.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cachelb_lab.sim.gpus import GPUS, MODELS
from cachelb_lab.sim.timing import ATTENTION_SHARE

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
    """Time of one kernel in the cost model."""
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
@pytest.mark.parametrize(
    ("op", "sizes", "context", "low", "high"),
    [
        # Small batches read the weights.
        ("gemm", range(1, 65), None, 0.83, 1.07),
        # A100 at 16,384 repeats the figure of 8,192.
        ("gemm", range(512, 8_193), None, 1.1, 1.6),
        # Reading the cache: below 32 sequences launches dominate, or the second-level cache holds everything.
        ("decode", range(32, 65), 2_048, 0.73, 1.07),
        ("prefill", range(2_048, 16_385), None, 1.0, 2.1),
    ],
)
def test_charges_are_those_of_kernels_or_more(
    *, op: str, sizes: range, context: int | None, low: float, high: float, gpu: str, kernels: Kernels
) -> None:
    found = ratios(kernels, gpu, op, sizes, context)
    assert len(found) >= 2
    assert all(low < ratio < high for ratio in found)
