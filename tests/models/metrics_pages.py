"""Metrics pages as engines publish them: their names, labels and order, with figures of the test's choice."""

from __future__ import annotations

VLLM_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
BUCKETS = [0.001 * 1.7**step for step in range(24)]


def gauge(name: str, *samples: tuple[str, float | str]) -> str:
    """One metric with its HELP and TYPE lines; a sample is labels and value."""
    return family(name, "gauge", [f"{name}{labels} {value}" for labels, value in samples])


def counter(name: str, *samples: tuple[str, float | str]) -> str:
    lines = [f"{name}{labels} {value}" for labels, value in samples]
    created = [f"{name.removesuffix('_total')}_created{labels} 1.7637e+09" for labels, _ in samples]
    return family(name, "counter", lines) + family(f"{name.removesuffix('_total')}_created", "gauge", created)


def histogram(name: str, labels: str, total: float, count: int) -> str:
    inner = labels.strip("{}")
    lines = [f'{name}_bucket{{{inner},le="{bound:g}"}} {float(count)}' for bound in BUCKETS]
    lines += [f'{name}_bucket{{{inner},le="+Inf"}} {float(count)}']
    lines += [f"{name}_count{labels} {float(count)}", f"{name}_sum{labels} {total}"]
    return family(name, "histogram", lines)


def family(name: str, kind: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {name} What {name} counts.", f"# TYPE {name} {kind}", *lines]) + "\n"


def process_metrics() -> str:
    return (
        counter("python_gc_objects_collected_total", ('{generation="0"}', 18342.0), ('{generation="1"}', 2210.0))
        + gauge("python_info", ('{implementation="CPython",major="3",minor="12",version="3.12.3"}', 1.0))
        + gauge("process_resident_memory_bytes", ("", 6.7e8))
        + counter("http_requests_total", ('{handler="/v1/completions",method="POST",status="2xx"}', 12.0))
    )


def vllm_page(
    *,
    running: tuple[float, ...] = (3.0,),
    waiting: tuple[float, ...] = (1.0,),
    usage: tuple[float, ...] = (0.25,),
    usage_name: str = "kv_cache_usage_perc",
    config: str = 'block_size="16",enable_prefix_caching="True",num_gpu_blocks="4096",sliding_window="None"',
    prompt: float = 10_000.0,
    computed: float | None = 6_000.0,
    output: float = 2_000.0,
    prefill: tuple[float, float] | None = None,
    model: str = "m",
    info_has_rank: bool = True,
) -> bytes:
    """A page of vLLM with one engine per item of `running`."""
    ranks = [f'{{engine="{rank}",model_name="{model}"}}' for rank in range(len(running))]
    page = process_metrics()
    page += gauge("vllm:num_requests_running", *zip(ranks, running, strict=True))
    page += gauge("vllm:num_requests_waiting", *zip(ranks, waiting, strict=True))
    page += gauge(
        "vllm:num_requests_waiting_by_reason",
        *((f'{rank[:-1]},reason="{reason}"}}', 7.0) for rank in ranks for reason in ("capacity", "deferred")),
    )
    page += gauge("vllm:engine_sleep_state", *((f'{rank[:-1]},sleep_state="awake"}}', 1.0) for rank in ranks))
    page += gauge(f"vllm:{usage_name}", *zip(ranks, usage, strict=True))
    page += counter("vllm:prefix_cache_queries_total", *((rank, 10_000.0) for rank in ranks))
    page += counter("vllm:prefix_cache_hits_total", *((rank, 4_000.0) for rank in ranks))
    page += counter("vllm:num_preemptions_total", *((rank, 0.0) for rank in ranks))
    page += counter("vllm:prompt_tokens_total", *((rank, prompt) for rank in ranks))
    if computed is not None:
        sources = {"local_compute": computed, "local_cache_hit": prompt - computed, "external_kv_transfer": 0.0}
        page += counter(
            "vllm:prompt_tokens_by_source_total",
            *((f'{rank[:-1]},source="{source}"}}', tokens) for rank in ranks for source, tokens in sources.items()),
        )
    page += counter("vllm:generation_tokens_total", *((rank, output) for rank in ranks))
    for name in VLLM_HISTOGRAMS:
        for rank in ranks:
            page += histogram(f"vllm:{name}", rank, 12.5, 40)
    if prefill is not None:
        for rank in ranks:
            page += histogram("vllm:request_prefill_kv_computed_tokens", rank, prefill[0], 40)
            page += histogram("vllm:request_prefill_time_seconds", rank, prefill[1], 40)
    infos = [f'{{{config},engine="{rank}"}}' for rank in range(len(running))] if info_has_rank else [f"{{{config}}}"]
    page += gauge("vllm:cache_config_info", *((info, 1.0) for info in infos))
    return page.encode()


def sglang_page(
    *,
    running: float = 4.0,
    queued: float = 2.0,
    grammar: float = 0.0,
    transfer: float = 0.0,
    usage: float = 0.5,
    throughput: float = 812.5,
    max_tokens: float = 1_041_408.0,
    page_size: float | None = 64.0,
    num_pages: float | None = 16_272.0,
    tensor_ranks: int = 1,
    data_ranks: int = 0,
    with_priorities: bool = False,
    config: str | None = None,
) -> bytes:
    """A page of SGLang."""
    page = process_metrics()
    labels = [
        f'engine_type="unified",model_name="m",pp_rank="0",tp_rank="{tensor}"'
        + (f',dp_rank="{data}"' if data_ranks else "")
        for data in range(max(data_ranks, 1))
        for tensor in range(tensor_ranks)
    ]
    whole = [f'{{{each},priority=""}}' if with_priorities else f"{{{each}}}" for each in labels]
    single = [f'{{{each},priority="{priority}"}}' for each in labels for priority in ("-1", "0")]
    for name, value in (
        ("num_running_reqs", running),
        ("num_queue_reqs", queued),
        ("num_grammar_queue_reqs", grammar),
        ("num_prefill_bootstrap_queue_reqs", 0.0),
        ("num_prefill_inflight_queue_reqs", 0.0),
        ("num_decode_prealloc_queue_reqs", 0.0),
        ("num_decode_transfer_queue_reqs", transfer),
    ):
        parts = [(label, value) for label in single] if with_priorities else []
        page += gauge(f"sglang:{name}", *((label, value) for label in whole), *parts)
    page += gauge("sglang:gen_throughput", *((label, throughput) for label in whole))
    page += gauge("sglang:token_usage", *((label, usage) for label in whole))
    page += gauge("sglang:full_token_usage", *((label, 0.99) for label in whole))
    page += gauge("sglang:fwd_occupancy", *((label, "NaN") for label in whole))
    page += counter(
        "sglang:prompt_tokens_total",
        ('{is_streaming="true",model_name="m"}', 900.0),
        ('{is_streaming="false",model_name="m"}', 100.0),
    )
    page += counter(
        "sglang:generation_tokens_total",
        ('{is_streaming="true",model_name="m"}', 30.0),
        ('{is_streaming="false",model_name="m"}', 12.0),
    )
    page += counter(
        "sglang:realtime_tokens_total",
        *(
            (f'{label[:-1]},mode="{mode}"}}', value)
            for label in whole
            for mode, value in (("prefill_compute", 700.0), ("prefill_cache", 300.0), ("decode", 42.0))
        ),
    )
    page += histogram("sglang:time_to_first_token_seconds", '{model_name="m"}', 3.5, 11)
    page += gauge("sglang:max_total_num_tokens", *((label, max_tokens) for label in whole))
    if page_size is not None:
        page += gauge("sglang:page_size", *((label, page_size) for label in whole))
    if num_pages is not None:
        page += gauge("sglang:num_pages", *((label, num_pages) for label in whole))
    if config is not None:
        page += gauge("sglang:cache_config_info", (f"{{{config}}}", 1.0))
    return page.encode()


def trtllm_page(*, running: float = 5.0, waiting: float = 6.0, usage: float = 0.125) -> bytes:
    """A page of TensorRT-LLM."""
    label = '{engine_type="trtllm",model_name="m"}'
    page = process_metrics()
    page += histogram("trtllm_e2e_request_latency_seconds", label, 3.5, 11)
    page += counter("trtllm_prompt_tokens_total", (label, 1_000.0))
    page += counter("trtllm_generation_tokens_total", (label, 70.0))
    page += gauge("trtllm_kv_cache_hit_rate", (label, 0.5))
    page += gauge("trtllm_kv_cache_utilization", (label, usage))
    page += gauge("trtllm_num_requests_running", (label, running))
    page += gauge("trtllm_num_requests_waiting", (label, waiting))
    page += counter("trtllm_num_requests_completed_total", (label, 99.0))
    page += gauge("trtllm_kv_cache_max_blocks", (label, 2_048.0))
    page += gauge("trtllm_kv_cache_free_blocks", (label, 2_000.0))
    page += gauge("trtllm_kv_cache_tokens_per_block", (label, 32.0))
    return page.encode()
