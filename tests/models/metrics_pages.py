"""Metrics pages as engines publish them: their names, labels and order, with figures of the test's choice."""

from __future__ import annotations

from collections.abc import Mapping

VLLM_HISTOGRAMS = ("time_to_first_token_seconds", "request_prompt_tokens", "iteration_tokens_total")
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


def gauges(engine: str, labels: list[str], values: Mapping[str, float | str]) -> str:
    """Metrics with one value for all labels."""
    return "".join(gauge(engine + name, *((label, value) for label in labels)) for name, value in values.items())


def process_metrics() -> str:
    collected = counter(
        "python_gc_objects_collected_total", ('{generation="0"}', 18342.0), ('{generation="1"}', 2210.0)
    )
    return collected + gauge("process_resident_memory_bytes", ("", 6.7e8))


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
    page += gauge(f"vllm:{usage_name}", *zip(ranks, usage, strict=True))
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
    queues = {"grammar_queue": grammar, "prefill_bootstrap_queue": 0.0, "decode_transfer_queue": transfer}
    requests = {"running": running, "queue": queued, **queues}
    for name, value in requests.items():
        parts = [(label, value) for label in single] if with_priorities else []
        page += gauge(f"sglang:num_{name}_reqs", *((label, value) for label in whole), *parts)
    page += gauges("sglang:", whole, {"gen_throughput": throughput, "token_usage": usage})
    page += gauges("sglang:", whole, {"full_token_usage": 0.99, "fwd_occupancy": "NaN"})
    streaming, plain = ('{is_streaming="true",model_name="m"}', '{is_streaming="false",model_name="m"}')
    page += counter("sglang:prompt_tokens_total", (streaming, 900.0), (plain, 100.0))
    page += counter("sglang:generation_tokens_total", (streaming, 30.0), (plain, 12.0))
    modes = {"prefill_compute": 700.0, "prefill_cache": 300.0, "decode": 42.0}
    tokens = ((f'{label[:-1]},mode="{mode}"}}', value) for label in whole for mode, value in modes.items())
    page += counter("sglang:realtime_tokens_total", *tokens)
    page += histogram("sglang:time_to_first_token_seconds", '{model_name="m"}', 3.5, 11)
    sizes = {"max_total_num_tokens": max_tokens, "page_size": page_size, "num_pages": num_pages}
    page += gauges("sglang:", whole, {name: value for name, value in sizes.items() if value is not None})
    if config is not None:
        page += gauge("sglang:cache_config_info", (f"{{{config}}}", 1.0))
    return page.encode()


def trtllm_page(*, running: float = 5.0, waiting: float = 6.0, usage: float = 0.125) -> bytes:
    """A page of TensorRT-LLM."""
    label = '{engine_type="trtllm",model_name="m"}'
    page = process_metrics()
    page += histogram("trtllm_e2e_request_latency_seconds", label, 3.5, 11)
    for name, count in {"prompt": 1_000.0, "generation": 70.0}.items():
        page += counter(f"trtllm_{name}_tokens_total", (label, count))
    load = {"num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_utilization": usage}
    room = {"kv_cache_max_blocks": 2_048.0, "kv_cache_free_blocks": 2_000.0, "kv_cache_tokens_per_block": 32.0}
    return (page + gauges("trtllm_", [label], {**load, **room, "kv_cache_hit_rate": 0.5})).encode()
