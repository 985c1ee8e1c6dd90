"""Metrics pages as engines and the systems around them publish them, and random ones against an obvious model."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.metrics_pages import process_metrics

from cachelb.sources import LoadReport, read_metrics_page

# One page per system: names and labels by its source code, figures of the test's choice.
RAY = """
# TYPE ray_vllm_num_requests_running gauge
ray_vllm_num_requests_running{engine="0",model_name="m",ReplicaId="r1",WorkerId="w1",Component="core_worker"} 3
ray_vllm_num_requests_running{engine="0",model_name="m",ReplicaId="r2",WorkerId="w2",Component="core_worker"} 4
ray_vllm_num_requests_waiting{engine="0",model_name="m",ReplicaId="r1",WorkerId="w1"} 0
ray_vllm_num_requests_waiting{engine="0",model_name="m",ReplicaId="r2",WorkerId="w2"} 5
ray_vllm_kv_cache_usage_perc{engine="0",model_name="m",ReplicaId="r1",WorkerId="w1"} 0.5
ray_vllm_kv_cache_usage_perc{engine="0",model_name="m",ReplicaId="r2",WorkerId="w2"} 0.25
ray_vllm_prompt_tokens{engine="0",model_name="m",ReplicaId="r1",WorkerId="w1"} 70
ray_vllm_prompt_tokens_total{engine="0",model_name="m",ReplicaId="r1",WorkerId="w1"} 70
ray_vllm_prompt_tokens{engine="0",model_name="m",ReplicaId="r2",WorkerId="w2"} 30
ray_vllm_prompt_tokens_total{engine="0",model_name="m",ReplicaId="r2",WorkerId="w2"} 30
ray_vllm_cache_config_info{engine="0",block_size="16",num_gpu_blocks="100",ReplicaId="r1",WorkerId="w1"} 1
ray_vllm_cache_config_info{engine="0",block_size="16",num_gpu_blocks="50",ReplicaId="r2",WorkerId="w2"} 1
"""
OTEL = """
vllm_num_requests_running{engine="0",job="vllm",instance="h:8000"} 3 1763700000000
vllm_num_requests_waiting{engine="0",job="vllm",instance="h:8000"} 1 1763700000000
vllm_prompt_tokens{engine="0",job="vllm",instance="h:8000"} 100 1763700000000
"""
NIM = """
num_requests_running{model_name="m"} 2.0
num_requests_waiting{model_name="m"} 1.0
num_request_max{model_name="m"} 2048.0
gpu_cache_usage_perc{model_name="m"} 0.25
prompt_tokens_total{model_name="m"} 603.0
generation_tokens_total{model_name="m"} 997.0
"""
AIBRIX = """
aibrix:queue_size{model_name="m"} 4.0
aibrix:gpu_cache_usage_perc{model_name="m"} 0.5
aibrix:prompt_tokens_total{model_name="m"} 10.0
vllm:num_requests_running{model_name="m"} 6.0
"""
AIBRIX_SGLANG = 'aibrix:queue_size 2\naibrix:token_usage 0.5\nsglang:num_running_reqs{tp_rank="0"} 3\n'
DYNAMO = """
dynamo_component_inflight_requests{dynamo_endpoint="generate",dynamo_component="backend"} 7
dynamo_component_kvstats_total_blocks{dp_rank="0"} 0
dynamo_component_kvstats_gpu_cache_usage_percent{dp_rank="0"} 0.0
vllm:num_requests_running{engine="0",model_name="m",dynamo_component="backend",worker_id="12"} 3
vllm:num_requests_waiting{engine="0",model_name="m",dynamo_component="backend",worker_id="12"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m",dynamo_component="backend",worker_id="12"} 0.5
vllm:cache_config_info{block_size="32",num_gpu_blocks="64",engine="0",worker_id="12"} 1
"""
DYNAMO_ALONE = """
dynamo_component_inflight_requests{dynamo_endpoint="generate"} 7
dynamo_component_kvstats_total_blocks{dp_rank="0"} 512
dynamo_component_kvstats_gpu_cache_usage_percent{dp_rank="0"} 0.25
"""
TRITON = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 75
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 100
"""
TRITON_FRACTION = (
    TRITON + 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.5\n'
)
TWO_MODELS = TRITON + TRITON.replace('"tensorrt_llm"', '"other"')
STACK = """
vllm:num_requests_running{server="http://a"} 2
vllm:num_requests_running{server="http://b"} 3
vllm:num_requests_waiting{server="http://a"} 1
vllm:num_requests_waiting{server="http://b"} 0
vllm:current_qps{server="http://a"} 9
"""
TRTLLM = """
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 5.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 6.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 200.0
trtllm_kv_cache_used_blocks{engine_type="trtllm",model_name="m"} 50.0
trtllm_kv_cache_config_info{engine_type="trtllm",model_name="m",page_size="64",enable_block_reuse="True"} 1.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 1000.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 400.0
trtllm_request_prefill_time_seconds_sum{engine_type="trtllm",model_name="m"} 0.5
"""
SGLANG_HOST_RECEIVE = """
sglang:num_running_reqs{engine_type="decode",tp_rank="0",pp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="decode",tp_rank="0",pp_rank="0"} 1.0
sglang:num_decode_transfer_queue_reqs{engine_type="decode",tp_rank="0",pp_rank="0"} 4.0
sglang:num_decode_host_receive_queue_reqs{engine_type="decode",tp_rank="0",pp_rank="0"} 2.0
sglang:token_usage{engine_type="decode",tp_rank="0",pp_rank="0"} 0.5
"""
OPENMETRICS = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0 1763700000.123
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0 # {trace_id="a b} 7"} 1.0 1763700000.123
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7637e+09
# TYPE vllm:cache_config info
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="10"} 1.0
# EOF
"""
BLANKS = '  vllm:num_requests_running {engine="0"}  3 \r\n\tvllm:num_requests_waiting\t1\t17\r\n'


@pytest.mark.parametrize(
    ("page", "engine", "load"),
    [
        pytest.param(
            RAY,
            "vllm",
            {"running": 7, "waiting": 5, "kv_usage": 0.375, "kv_blocks": 150, "block_size": 16},
            id="two replicas on a page of Ray",
        ),
        pytest.param(OTEL, "vllm", {"running": 3, "waiting": 1}, id="OpenTelemetry"),
        pytest.param(NIM, None, {"running": 2, "waiting": 1, "kv_usage": 0.25}, id="NIM"),
        pytest.param(
            process_metrics() + NIM + 'vllm:num_requests_running{engine="0"} 9\n',
            "vllm",
            {"running": 9, "waiting": 1, "kv_usage": 0.25},
            id="NIM beside vLLM",
        ),
        pytest.param(AIBRIX, "vllm", {"running": 6, "waiting": 4, "kv_usage": 0.5}, id="AIBrix"),
        pytest.param(AIBRIX_SGLANG, "sglang", {"running": 3, "waiting": 2, "kv_usage": 0.5}, id="AIBrix of SGLang"),
        pytest.param(
            DYNAMO,
            "vllm",
            {"running": 3, "waiting": 2, "kv_usage": 0.5, "kv_blocks": 64, "block_size": 32},
            id="Dynamo",
        ),
        pytest.param(DYNAMO_ALONE, None, {"running": 7, "kv_usage": 0.25, "kv_blocks": 512}, id="Dynamo alone"),
        pytest.param(
            TRITON,
            "tensorrt-llm",
            {"running": 5, "waiting": 1, "kv_usage": 0.25, "kv_blocks": 100, "block_size": 64},
            id="Triton",
        ),
        pytest.param(TRITON_FRACTION, "tensorrt-llm", {"kv_usage": 0.5}, id="Triton with a fraction"),
        pytest.param(TWO_MODELS, "tensorrt-llm", {"running": 10, "waiting": 2, "kv_blocks": 200}, id="two models"),
        pytest.param(STACK, "vllm", {"running": 5, "waiting": 1}, id="router of production-stack"),
        pytest.param(
            TRTLLM,
            "tensorrt-llm",
            {"running": 5, "waiting": 6, "kv_usage": 0.25, "kv_blocks": 200, "block_size": 64},
            id="TensorRT-LLM before its first statistics",
        ),
        pytest.param(
            SGLANG_HOST_RECEIVE, "sglang", {"running": 3, "waiting": 5}, id="received in host memory is transferred"
        ),
        pytest.param(
            OPENMETRICS, "vllm", {"running": 3, "waiting": 1, "kv_blocks": 10, "block_size": 16}, id="OpenMetrics"
        ),
        pytest.param(BLANKS, "vllm", {"running": 3, "waiting": 1}, id="blanks"),
    ],
)
def test_page_of_each_system_gives_the_load(page: str, engine: str | None, load: dict[str, Any]) -> None:
    read = read_metrics_page(page.encode())
    assert (read.engine, read.dropped, read.fault) == (engine, 0, None)
    assert {name: getattr(read.load, name) for name in load} == load


@pytest.mark.parametrize(
    ("page", "totals"),
    [
        pytest.param(RAY, {"prompt_tokens": 100.0}, id="with and without _total"),
        pytest.param(OTEL, {"prompt_tokens": 100.0}, id="without _total"),
        pytest.param(NIM, {"prompt_tokens": 603.0, "output_tokens": 997.0}, id="without a prefix"),
        pytest.param(
            TRTLLM, {"prompt_tokens": 600.0, "prefill_tokens": 600.0, "prefill_seconds": 0.5}, id="cached tokens"
        ),
        pytest.param(OPENMETRICS, {"prompt_tokens": 1000.0}, id="an exemplar"),
    ],
)
def test_counters_of_each_system_are_counted_once(page: str, totals: dict[str, float]) -> None:
    read = read_metrics_page(page.encode()).totals
    assert {name: getattr(read, name) for name in totals} == totals


FALLING = b'\nvllm:sleep_mode_operations_in_flight{operation="%s"} %d'


def asleep(*states: tuple[str, str, int], name: str = "vllm:engine_sleep_state", labels: str = "") -> bytes:
    lines = (f'{name}{{{labels}engine="{rank}",sleep_state="{state}"}} {value}' for rank, state, value in states)
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("page", "sleep"),
    [
        pytest.param(b"vllm:num_requests_running 1", None, id="older vLLM"),
        pytest.param(asleep(("0", "awake", 1), ("0", "discard_all", 0)), "awake", id="awake"),
        pytest.param(asleep(("0", "awake", 0), ("0", "discard_all", 0)), "paused", id="level 0"),
        pytest.param(asleep(("0", "awake", 0), ("0", "weights_offloaded", 1)), "asleep", id="level 1"),
        pytest.param(asleep(("0", "discard_all", 1), ("0", "awake", 0)), "asleep", id="level 2"),
        pytest.param(asleep(("0", "awake", 0), ("0", "some_new_level", 1)), "asleep", id="a level to come"),
        pytest.param(asleep(("0", "awake", 1), ("0", "weights_offloaded", 1)), "awake", id="both"),
        pytest.param(asleep(("0", "awake", 0), ("1", "awake", 1)), "awake", id="one of two engines"),
        pytest.param(asleep(("0", "discard_all", 1), ("1", "awake", 0)), "paused", id="asleep and paused"),
        pytest.param(asleep(("0", "awake", 0), name="ray_vllm_engine_sleep_state"), "paused", id="Ray"),
        pytest.param(
            asleep(("0", "awake", 0), labels='model_name="m",') + b'\nvllm:num_requests_running{engine="0"} 0',
            "paused",
            id="other labels than the load",
        ),
        pytest.param(asleep(("0", "awake", 1)) + FALLING % (b"sleep", 1), "paused", id="falls asleep"),
        pytest.param(asleep(("0", "awake", 1)) + FALLING % (b"sleep", 0), "awake", id="fell asleep once"),
        pytest.param(asleep(("0", "awake", 1)) + FALLING % (b"wake", 1), "awake", id="wakes"),
        pytest.param(asleep(("0", "discard_all", 1)) + FALLING % (b"sleep", 1), "asleep", id="sleeps deeper"),
        pytest.param(b"vllm:engine_sleep_state 1", None, id="no state"),
        pytest.param(b'vllm:engine_sleep_state{sleep_state="awake"} NaN', None, id="no number"),
    ],
)
def test_sleep_is_read_of_every_page(page: bytes, sleep: str | None) -> None:
    assert read_metrics_page(page).load.sleep == sleep


def test_each_rank_sleeps_by_itself() -> None:
    page = asleep(("0", "awake", 1), ("1", "awake", 0), ("1", "weights_offloaded", 1), ("2", "awake", 0))
    page += b'\nvllm:num_requests_running{engine="0"} 4\n'
    ranks = read_metrics_page(page).ranks
    assert {rank: load.sleep for rank, load in ranks.items()} == {0: "awake", 1: "asleep", 2: "paused"}
    assert read_metrics_page(page).load == LoadReport(running=4, sleep="awake")
    lines = b"\n".join(
        b'vllm:num_requests_running{engine="%d",model_name="m"} %d' % (rank, 4 - rank) for rank in (0, 1)
    )
    labels_differ = lines + b"\n" + asleep(("0", "awake", 1), ("1", "awake", 0), ("1", "discard_all", 1))
    read = read_metrics_page(labels_differ)
    assert {rank: load.sleep for rank, load in read.ranks.items()} == {0: "awake", 1: "asleep"}
    assert (read.load.running, read.load.sleep) == (7, "awake")


def test_a_page_of_endless_engines_and_labels_is_bounded() -> None:
    lines = b"\n".join(b'vllm:num_requests_running{engine="%d"} 1' % rank for rank in range(5000))
    page = read_metrics_page(lines)
    assert (page.load.running, len(page.ranks), page.dropped) == (4096, 4096, 904)
    many = lines * 20
    assert read_metrics_page(many).dropped > 20 * 5000 - (1 << 15)
    long = b'vllm:num_requests_running{a="' + b"x" * 1_000_000 + b'"} 2'
    assert read_metrics_page(long).load.running == 2


FIELDS = {"num_requests_running": "running", "num_requests_waiting": "waiting", "kv_cache_usage_perc": "kv_usage"}


@given(
    owners=st.sampled_from(
        [[""], ['model_name="a"'], ['model_name="a"', 'model_name="b"'], ['ReplicaId="r"', 'pod="p"']]
    ),
    ranks=st.sampled_from([[None], [0], [0, 1, 5]]),
    parts=st.integers(1, 3),
    name=st.sampled_from(["vllm:", "vllm_", "ray_vllm_", "ray_vllm:"]),
    seed=st.integers(0, 2**32),
)
def test_random_pages_agree_with_the_sum_over_their_engines(
    owners: list[str], ranks: list[int | None], parts: int, name: str, seed: int
) -> None:
    draws = random.Random(seed)
    sums: dict[str, list[float]] = {}
    lines = []
    for owner in owners:
        for rank in ranks:
            for metric, field in FIELDS.items():
                figures = [draws.randint(0, 4) / (4 if field == "kv_usage" else 1) for _ in range(parts)]
                sums.setdefault(field, []).append(max(figures))
                for part, figure in enumerate(figures):
                    labels = [owner, f'tp_rank="{part}"'] + ([] if rank is None else [f'engine="{rank}"'])
                    labels = [label for label in labels if label]
                    draws.shuffle(labels)
                    lines.append(f"{name}{metric}{{{','.join(labels)}}} {figure}{draws.choice(['', ' 1763700000'])}")
    lines += [f"# HELP {name}num_requests_running x", 'python_info{version="3"} 1', "vllm:num_requests_runnin 4"]
    draws.shuffle(lines)
    page = read_metrics_page("\n".join(lines).encode())
    assert (page.load.running, page.load.waiting) == (sum(sums["running"]), sum(sums["waiting"]))
    assert page.load.kv_usage == pytest.approx(sum(sums["kv_usage"]) / len(sums["kv_usage"]))
    assert sorted(page.ranks) == ([] if len(owners) > 1 or ranks == [None] else ranks)
