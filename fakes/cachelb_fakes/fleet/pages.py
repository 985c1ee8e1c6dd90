"""The pages beside the completions: metrics, models, and the load report in a response header."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from cachelb_fakes.fleet.apis.dialect import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachelb.cache_groups import CacheLayout
    from cachelb_fakes.events import EventPublisher
    from cachelb_fakes.fleet.engine import Engine
    from cachelb_fakes.fleet.options import WorkerOptions


VERSION_PAGE: Final = {"version": "0.32.0"}
"""The version of vLLM whose pages these are."""


def metrics_page(engine: Engine) -> str:
    """Write the metrics of an engine as Prometheus text, under the names its kind uses."""
    return _sglang_metrics(engine) if engine.options.engine == "sglang" else _vllm_metrics(engine)


def _vllm_metrics(engine: Engine) -> str:
    options = engine.options
    labels = f'engine="0",model_name="{_label(_first_model(options))}"'
    config = f'block_size="{options.block_size}",engine="0",num_gpu_blocks="{options.kv_blocks}"'
    config += ',enable_prefix_caching="True",prefix_caching_hash_algo="sha256"'
    if options.cache_groups is not None:
        config += _groups_config(options.cache_groups)
    return _text(
        [
            ("vllm:num_requests_running", "gauge", labels, engine.running),
            ("vllm:num_requests_waiting", "gauge", labels, engine.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", labels, engine.kv_usage),
            ("vllm:prefix_cache_queries_total", "counter", labels, engine.prompt_tokens),
            ("vllm:prefix_cache_hits_total", "counter", labels, engine.cached_tokens),
            ("vllm:prompt_tokens_total", "counter", labels, engine.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", labels, engine.output_tokens),
            ("vllm:cache_config_info", "gauge", config, 1.0),
            ("process_start_time_seconds", "gauge", "", engine.start_s),
        ]
    )


def _groups_config(layout: CacheLayout) -> str:
    """Write how a hybrid engine retains blocks; its groups are not on the page."""
    mode = "align" if any(group.kind == "mamba" for group in layout.groups) else "none"
    unknown = "".join(f',{name}="None"' for name in ("hash_block_size", "cache_hit_alignment_tokens", "sliding_window"))
    return f',prefix_cache_retention_interval="{layout.retention_interval}",mamba_cache_mode="{mode}"{unknown}'


def _sglang_metrics(engine: Engine) -> str:
    options = engine.options
    labels = f'engine_type="unified",model_name="{_label(_first_model(options))}",pp_rank="0",tp_rank="0"'
    return _text(
        [
            ("sglang:num_running_reqs", "gauge", labels, engine.running),
            ("sglang:num_queue_reqs", "gauge", labels, engine.waiting),
            ("sglang:token_usage", "gauge", labels, engine.kv_usage),
            ("sglang:max_total_num_tokens", "gauge", labels, options.kv_tokens),
            ("sglang:page_size", "gauge", labels, options.block_size),
            ("sglang:gen_throughput", "gauge", labels, engine.running * options.decode_tps),
            ("sglang:prompt_tokens_total", "counter", labels, engine.prompt_tokens),
            ("sglang:generation_tokens_total", "counter", labels, engine.output_tokens),
            ("process_start_time_seconds", "gauge", "", engine.start_s),
        ]
    )


def _text(rows: Iterable[tuple[str, str, str, float]]) -> str:
    return "".join(
        f"# HELP {name} Value of a fake engine.\n# TYPE {name} {kind}\n{name}{{{labels}}} {float(value)}\n"
        for name, kind, labels, value in rows
    )


def _label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _first_model(options: WorkerOptions) -> str:
    return (options.models or (DEFAULT_MODEL,))[0]


def models_page(options: WorkerOptions) -> dict[str, Any]:
    """Write the list of models."""
    base = _first_model(options)
    entries = [
        {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": options.engine,
            "root": name,
            "parent": None if name == base else base,
            "max_model_len": options.kv_tokens,
        }
        for name in options.models or (DEFAULT_MODEL,)
    ]
    return {"object": "list", "data": entries}


def event_sources_page(events: EventPublisher) -> dict[str, Any]:
    """Write where KV cache events are published, as vLLM's `/kv_event_sources` does.

    An engine names the addresses it listens at, which may be those of any host.
    """
    addresses = (events.endpoint.address, events.endpoint.replay)
    listening, replay = (address and address.replace("127.0.0.1", "*") for address in addresses)
    source = {"endpoint": listening, "replay_endpoint": replay, "topic": "", "buffer_steps": 10_000}
    source |= {"enable_kv_cache_events": True, "publisher": "zmq"}
    return {"0": source}


def load_report(engine: Engine, form: str) -> str | None:
    """Write the ORCA load report that vLLM sends in the header ``endpoint-load-metrics``; None for an unknown form."""
    values = {"kv_cache_usage_perc": engine.kv_usage, "num_requests_waiting": float(engine.waiting)}
    match form.lower():
        case "json":
            return f"JSON {json.dumps({'named_metrics': values})}"
        case "text":
            return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
        case _:
            return None
