"""Fleets: what a description makes, the engine's defaults by device, and what reaches the engine model."""

from __future__ import annotations

import pytest

from cachelb_lab.sim.fleet import FleetSpec, WorkerSpec
from cachelb_lab.sim.gpus import GPUS, MODELS, find_gpu, find_model, kv_tokens
from cachelb_lab.sim.simulation import Signals, simulate
from cachelb_lab.sim.timing import Polynomial, Roofline, Table, exchange_seconds
from cachelb_lab.sim.workloads import build

LLAMA = MODELS["llama-3-8b"]


@pytest.mark.parametrize(
    ("gpu", "tokens", "budget", "seqs"),
    [
        ("a30", 45_000, 2_048, 256),
        ("l20", 222_000, 2_048, 256),
        ("a100-80", 458_000, 2_048, 256),
        ("h100-80", 458_000, 8_192, 1_024),
        ("h200", 893_000, 8_192, 1_024),
        ("l40s", 200_000, 2_048, 256),
        ("v100-32", 104_000, 2_048, 256),
        ("rtx-pro-6000", 530_000, 8_192, 1_024),
    ],
)
def test_cache_and_engine_defaults_go_by_memory(gpu: str, tokens: int, budget: int, seqs: int) -> None:
    assert kv_tokens(GPUS[gpu], LLAMA) == pytest.approx(tokens, rel=0.006)
    native = WorkerSpec(GPUS[gpu], LLAMA).native()
    assert (native["max_num_batched_tokens"], native["max_num_seqs"]) == (budget, seqs)


def test_weights_are_those_of_the_models() -> None:
    sizes = {name: round(model.weight_bytes / 1e9, 1) for name, model in MODELS.items()}
    assert sizes == {"llama-3-8b": 16.1, "qwen3-32b": 65.5, "llama-3.1-70b": 141.2}


def test_model_that_does_not_fit_names_what_would() -> None:
    with pytest.raises(ValueError, match=r"llama-3\.1-70b .* does not fit on 1 x h100-80; use :tp2 or more"):
        FleetSpec.parse("1xh100", model="llama-3.1-70b")
    assert FleetSpec.parse("1xh100:tp4", model="llama-3.1-70b").cache_tokens > 450_000


def test_native_form_has_every_setting() -> None:
    (native,) = FleetSpec.parse("a100-80", block_size=64).native()
    assert native["kv_blocks"] == 457_825 // 64
    assert native["timing"] == {
        "kind": "roofline",
        "body_parameters": 6.98e9,
        "head_parameters": 128_256 * 4_096,
        "attention_flops": 4 * 32 * 128 * 32,
        "kv_bytes": 131_072,
        "flops": 312e12 * 0.55,
        "bandwidth": 2_039e9 * 0.75,
        "attention_share": 0.6,
        "prefill_reads_context": True,
        "pass_seconds": 0.002,
        "sequence_seconds": 8e-6,
    }


def test_settings_reach_every_worker() -> None:
    fleet = FleetSpec.parse("2xa30+v100", kv_tokens=6400, commit="step_end", watermark=0.01, timing=Polynomial())
    for native in fleet.native():
        assert native["timing"] == {"kind": "polynomial", "kv_tokens": 6400}
        assert (native["kv_blocks"], native["commit"], native["watermark"]) == (400, "step_end", 0.01)
    assert [native["prefix_caching"] for native in fleet.native()] == [True, True, False]
    assert fleet.cache_tokens == 3 * 6400
    assert fleet.names == ["worker-0", "worker-1", "worker-2"]


def test_mfu_scales_arithmetic_and_nothing_else() -> None:
    (plain,), (fast,) = (FleetSpec.parse("l20", mfu=mfu).native() for mfu in (1.0, 1.25))
    assert fast["timing"].pop("flops") == pytest.approx(1.25 * plain["timing"].pop("flops"))
    assert fast == plain


def test_devices_that_share_a_model_add_up() -> None:
    (one,), (four,) = (FleetSpec.parse(text).native() for text in ("h100", "h100:tp4"))
    assert four["timing"]["flops"] == 4 * one["timing"]["flops"]
    assert four["timing"]["bandwidth"] == 4 * one["timing"]["bandwidth"]
    assert (one["timing"]["pass_seconds"], four["timing"]["pass_seconds"]) == (0.002, 0.004)
    (own,) = FleetSpec.parse("h100:tp4", timing=Roofline(pass_seconds=0.003)).native()
    assert own["timing"]["pass_seconds"] == 0.003


def test_devices_that_wait_for_each_other_reach_less_than_their_sum() -> None:
    prompt = build("prefix-10", seed=1, count=1)

    def ttft_s(text: str, *, all_reduce: bool) -> float:
        timing = Roofline(pass_seconds=0.0, sequence_seconds=0.0, all_reduce=all_reduce)
        fleet = FleetSpec.parse(text, timing=timing, max_num_batched_tokens=100_000)
        return float(simulate(prompt, fleet, signals=Signals(net_delay_s=0.0)).ttft_s[0])

    one = ttft_s("l40s", all_reduce=False)
    assert ttft_s("l40s", all_reduce=True) == one
    for count in (2, 4, 8):
        together = ttft_s(f"l40s:tp{count}", all_reduce=False)
        assert together == pytest.approx(one / count)
        # Two sums per layer, each number of which crosses the link in either half of a ring.
        sums = 2 * LLAMA.layers
        ring = 2 * (count - 1) / count * 2 * LLAMA.hidden / (0.8 * 32e9)
        lost = sums * (10e-6 + ring * int(prompt.prompt_tokens[0]))
        assert ttft_s(f"l40s:tp{count}", all_reduce=True) == pytest.approx(together + lost)
    by_nvlink, by_pcie = (exchange_seconds(find_gpu(gpu), LLAMA, 4) for gpu in ("h100", "l40s"))
    assert by_pcie / by_nvlink == pytest.approx(450 / 32)


def test_names_are_found_in_any_case() -> None:
    assert find_gpu(" A100 ").name == "a100-80"
    assert find_model("LLAMA-3.1-8B") is LLAMA


def test_every_share_lies_in_the_range_that_its_evidence_allows() -> None:
    assert all(gpu.mfu_range[0] <= gpu.mfu <= gpu.mfu_range[1] for gpu in GPUS.values())


# === tables of measured times ===


def test_table_is_given_to_the_engine_model() -> None:
    table = Table(prefill=((1.0, 0.02), (512.0, 0.04)), decode=((0.0, 0.01), (8000.0, 0.02)))
    (native,) = FleetSpec.parse("a30", timing=table).native()
    assert native["timing"] == {
        "kind": "table",
        "prefill": [(1.0, 0.02), (512.0, 0.04)],
        "decode": [(0.0, 0.01), (8000.0, 0.02)],
    }


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        (((1.0, 1.0),), (), "decode needs rows"),
        (((1.0, 0.0),), ((1.0, 1.0),), "prefill needs rows of .* positive seconds"),
        (((2.0, 1.0), (1.0, 1.0)), ((1.0, 1.0),), "prefill needs rows of ascending tokens"),
    ],
)
def test_bad_table_is_named(
    prefill: tuple[tuple[float, float], ...], decode: tuple[tuple[float, float], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Table(prefill, decode)
