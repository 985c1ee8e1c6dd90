"""Values read from engines' metrics pages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.metrics_pages import process_metrics, sglang_page, trtllm_page, vllm_page

from cachelb.sources import LoadReport, read_metrics_page


def test_vllm_page_gives_load_capacity_and_counters() -> None:
    page = read_metrics_page(vllm_page())
    assert page.engine == "vllm"
    assert page.load == LoadReport(running=3, waiting=1, kv_usage=0.25, kv_blocks=4096, block_size=16)
    assert page.ranks == {0: page.load}
    assert (page.totals.prompt_tokens, page.totals.output_tokens) == (6_000.0, 2_000.0)
    assert page.dropped == 0


def test_older_vllm_page_has_the_former_usage_name_and_only_the_prompt_counter() -> None:
    page = read_metrics_page(vllm_page(usage_name="gpu_cache_usage_perc", computed=None, info_has_rank=False))
    assert page.load == LoadReport(running=3, waiting=1, kv_usage=0.25, kv_blocks=4096, block_size=16)
    assert page.totals.prompt_tokens == 10_000.0


def test_vllm_data_parallel_ranks_are_added_up_and_kept_apart() -> None:
    page = read_metrics_page(vllm_page(running=(3.0, 5.0), waiting=(0.0, 2.0), usage=(0.25, 0.75)))
    assert page.load == LoadReport(running=8, waiting=2, kv_usage=0.5, kv_blocks=8192, block_size=16)
    assert page.ranks == {
        0: LoadReport(running=3, waiting=0, kv_usage=0.25, kv_blocks=4096, block_size=16),
        1: LoadReport(running=5, waiting=2, kv_usage=0.75, kv_blocks=4096, block_size=16),
    }
    assert page.totals.output_tokens == 4_000.0


def test_sglang_page_gives_load_capacity_and_counters() -> None:
    page = read_metrics_page(sglang_page())
    assert page.engine == "sglang"
    assert page.load == LoadReport(running=4, waiting=2, kv_usage=0.5, kv_blocks=16_272, block_size=64)
    assert (page.totals.prompt_tokens, page.totals.output_tokens, page.totals.gen_tps) == (700.0, 42.0, 812.5)
    assert page.dropped == 0


def test_sglang_data_parallel_ranks_are_added_up() -> None:
    page = read_metrics_page(sglang_page(tensor_ranks=2, data_ranks=3))
    assert (page.load.running, page.load.waiting, page.load.kv_usage, sorted(page.ranks)) == (12, 6, 0.5, [0, 1, 2])
    assert page.totals.prompt_tokens == 2_100.0


UNKNOWN = 'block_size="None",hash_block_size="None",num_gpu_blocks="None"'
HYBRID = 'block_size="528",hash_block_size="16",kv_cache_size_tokens="463459",num_gpu_blocks="320"'
TWO_RANKS = vllm_page(running=(1.0, 1.0), waiting=(0.0, 0.0), usage=(0.0, 0.0))
SWAPPED = vllm_page(waiting=(1.0,)) + b'vllm:num_requests_swapped{engine="0",model_name="m"} 2.0\n'
FALLING_RANKS = b'sglang:token_usage{tp_rank="0"} 0.5\nsglang:token_usage{tp_rank="1"} 0.25\n'
BOTH_NAMES = vllm_page(usage=(0.0,)) + b'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.75\n'


@pytest.mark.parametrize(
    ("page", "load"),
    [
        pytest.param(SWAPPED, {"waiting": 3}, id="requests swapped out wait too"),
        pytest.param(BOTH_NAMES, {"kv_usage": 0.0}, id="the newer name of usage wins"),
        pytest.param(vllm_page(config=HYBRID), {"block_size": 16, "kv_blocks": 463_459 // 16}, id="hash block size"),
        pytest.param(vllm_page(config=UNKNOWN), {"block_size": None, "kv_blocks": None}, id="not known yet"),
        pytest.param(
            TWO_RANKS.replace(b'block_size="16"', b'block_size="32"', 1),
            {"block_size": None, "kv_blocks": None},
            id="ranks with unlike block sizes",
        ),
        pytest.param(sglang_page(queued=2.0, grammar=3.0, transfer=4.0), {"waiting": 9}, id="every queue waits"),
        pytest.param(
            sglang_page(tensor_ranks=4), {"running": 4, "waiting": 2, "kv_blocks": 16_272}, id="tensor-parallel ranks"
        ),
        pytest.param(sglang_page(with_priorities=True), {"running": 4}, id="a total is not added to its parts"),
        pytest.param(sglang_page(num_pages=None), {"block_size": 64, "kv_blocks": 1_041_408 // 64}, id="from tokens"),
        pytest.param(
            sglang_page(config='num_pages="512",page_size="64"', page_size=None, num_pages=None),
            {"block_size": 64, "kv_blocks": 1_041_408 // 64},
            id="labels of the info",
        ),
        pytest.param(
            sglang_page(config=None, page_size=None, num_pages=None),
            {"block_size": None, "kv_blocks": None},
            id="no page size",
        ),
        pytest.param(b"vllm:kv_cache_usage_perc 1.02", {"kv_usage": 1.0}, id="above one is full"),
        pytest.param(FALLING_RANKS, {"kv_usage": 0.5}, id="the largest of tensor-parallel ranks"),
        pytest.param(vllm_page() + sglang_page(), {"running": 3}, id="a second engine is not the worker's"),
    ],
)
def test_page_of_many_forms_gives_the_load(page: bytes, load: dict[str, float | None]) -> None:
    found = read_metrics_page(page)
    assert {name: getattr(found.load, name) for name in load} == load
    assert found.dropped == 0


def test_tensorrt_llm_page_gives_load_and_capacity() -> None:
    page = read_metrics_page(trtllm_page())
    assert page.engine == "tensorrt-llm"
    assert page.load == LoadReport(running=5, waiting=6, kv_usage=0.125, kv_blocks=2_048, block_size=32)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"vllm:num_requests_running 2", id="no labels"),
        pytest.param(b"vllm_num_requests_running 2", id="underscore for the colon"),
        pytest.param(b"vllm:num_requests_running{} 2.0 1763700000000", id="empty labels and a timestamp"),
        pytest.param(b"vllm:num_requests_running 2e0\r", id="exponent and carriage return"),
        pytest.param(b'vllm:num_requests_running{engine="0",} \t 2', id="trailing comma and tabs"),
        pytest.param(b'vllm:num_requests_running{model_name="a \\"b\\" } c\\\\"} 2', id="escaped quotes and a brace"),
        pytest.param('vllm:num_requests_running{model_name="mödel"} 2'.encode(), id="not ASCII"),
        pytest.param(b'vllm:num_requests_running{model_name="\xff"} 2', id="not UTF-8"),
    ],
)
def test_sample_is_read_in_every_spelling(line: bytes) -> None:
    page = read_metrics_page(b"# HELP x y\n" + line + b"\nx 1")
    assert (page.load.running, page.dropped) == (2, 0)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-1", b"two", b"1e300", b'{engine="0" 1', b"", b"0x2"])
def test_value_that_makes_no_sense_is_dropped_and_counted(value: bytes) -> None:
    page = read_metrics_page(b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 1\n")
    assert (page.load.running, page.load.waiting, page.dropped) == (None, 1, 1)


def test_names_that_only_begin_alike_are_others() -> None:
    page = read_metrics_page(b"vllm:num_requests_waiting_by_reason 9\n# vllm:num_requests_waiting 9\n x 1\n")
    assert (page.engine, page.load) == (None, LoadReport())


def test_page_of_something_else_has_no_engine() -> None:
    pages = {b"<html>not found</html>": "no metrics page", b" \n": "empty page", b"# EOF": "no known metrics"}
    pages[process_metrics().encode()] = pages[b'\nfoo{a="}"} NaN 17\n'] = "no known metrics"
    for text, fault in pages.items():
        page = read_metrics_page(text)
        assert (page.engine, page.fault, page.load) == (None, fault, LoadReport())
    assert read_metrics_page(b"vllm:num_requests_running NaN").fault is None


NAMES = st.sampled_from([
    b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc", b"vllm:cache_config_info",
    b"vllm:prompt_tokens_total", b"sglang:num_queue_reqs", b"sglang:token_usage", b"sglang:page_size",
    b"sglang:max_total_num_tokens", b"trtllm_kv_cache_max_blocks", b"trtllm_num_requests_running", b"other",
])  # fmt: skip
LABELS = st.sampled_from([
    b"", b"{}", b'{engine="0"}', b'{engine="7"}', b'{engine="x"}', b'{dp_rank="99999999999999999999"}', b'{engine="0"',
    b'{priority="1"}', b'{block_size="0",num_gpu_blocks="5"}', b'{block_size="16",num_gpu_blocks="-5"}',
    b'{block_size="7",hash_block_size="16",num_gpu_blocks="9"}', b'{source="local_compute"}', b'{a="\\"}"}',
])  # fmt: skip
VALUES = st.one_of(
    st.floats().map(lambda value: repr(value).encode()),
    st.integers().map(lambda value: str(value).encode()),
    st.binary(max_size=8),
)
LINES = st.one_of(st.binary(max_size=40), st.tuples(NAMES, LABELS, st.just(b" "), VALUES).map(b"".join))


@given(st.lists(LINES, max_size=12).map(b"\n".join))
def test_any_page_is_read_without_an_error_and_gives_no_impossible_number(text: bytes) -> None:
    page = read_metrics_page(text)
    for load in (page.load, *page.ranks.values()):
        for count in (load.running, load.waiting, load.kv_blocks, load.block_size):
            assert count is None or (type(count) is int and count >= 0)
        assert load.kv_usage is None or 0.0 <= load.kv_usage <= 1.0
        assert load.block_size != 0
    for total in (page.totals.prompt_tokens, page.totals.output_tokens, page.totals.gen_tps):
        assert total is None or (math.isfinite(total) and total >= 0.0)
    assert page.dropped >= 0


@pytest.mark.parametrize("filler", [b"{", b'"', b"\\", b'{a="', b"\n", b' {a="\\'])
def test_page_made_to_make_the_search_backtrack_is_read_to_its_end(filler: bytes) -> None:
    page = read_metrics_page(b"vllm:num_requests_running" + filler * 100_000 + b"\nvllm:num_requests_waiting 1\n")
    assert page.load.waiting in (1, None)
