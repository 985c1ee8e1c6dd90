"""The few load samples of an engine's Prometheus page, without parsing the rest of it.

One compiled pattern walks over the newlines of the page and stops only at the names below, so the cost is that of a
search, not of a parse. Lines nobody asks for may be anything at all. Names, and where they come from:

- vLLM: `num_requests_running`; `num_requests_waiting`, which has the deferred ones in it, and `num_requests_swapped` of
  the former engine; `kv_cache_usage_perc`, formerly `gpu_cache_usage_perc`; block size and number of blocks are labels
  of `cache_config_info`.
- SGLang: `num_running_reqs`; `num_queue_reqs` and the queues of grammars and of separated prefill and decode;
  `token_usage`; `gen_throughput`; `page_size`, `num_pages` and `max_total_num_tokens`, before 0.5.11 labels of
  `cache_config_info`.
- TensorRT-LLM: `num_requests_running`, `num_requests_waiting`, `kv_cache_utilization`, `kv_cache_tokens_per_block`,
  `kv_cache_max_blocks`.

None of them publishes the tokens of its waiting requests there, so `queued_tokens` stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

from cachelb.exposition import Samples, split_series
from cachelb.sources.base import LoadReport

_T = TypeVar("_T")

_LARGEST = 2.0**53
"""Counts above this are no counts; it also keeps every number exact."""

_MOST_TOKENS = 1 << 31

_RANK_LABELS = (b"engine", b"dp_rank")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of a page, summed over its ranks; None where the page has none.

    Attributes:
        prompt_tokens: Prompt tokens computed (where the engine tells computed from cached, else all).
        output_tokens: Tokens generated.
        prefill_tokens: Prompt tokens computed by the requests that have finished.
        prefill_seconds: Seconds from scheduling to first token of the requests that have finished.
        gen_tps: The engine's own figure of its output rate, a gauge.
    """

    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefill_tokens: float | None = None
    prefill_seconds: float | None = None
    gen_tps: float | None = None


@dataclass(frozen=True, slots=True)
class MetricsPage:
    r"""What one page says.

    Attributes:
        engine: "vllm", "sglang" or "tensorrt-llm"; None if the page has no name that is known here.
        load: The worker as a whole: requests and blocks summed over its ranks, `kv_usage` their mean.
        ranks: The same per data-parallel rank, where the page tells ranks apart.
        totals: Counters, from which two pages make a rate.
        dropped: Samples with a known name whose labels or value make no sense.

    Example:
        >>> from cachelb.sources import read_metrics_page
        >>> page = read_metrics_page(b'vllm:num_requests_running{model_name="m"} 3\n')
        >>> page.engine, page.load.running
        ('vllm', 3)
    """

    engine: str | None
    load: LoadReport
    ranks: Mapping[int, LoadReport]
    totals: Totals
    dropped: int


@dataclass(frozen=True, slots=True)
class _Sample:
    """How to read one metric: the field it adds to, and what to do with several samples of one rank."""

    field: str
    add: bool = False  # else the largest: tensor-parallel ranks repeat the same figure
    only: tuple[bytes, bytes] | None = None  # this label must have this value


_INFO = "info"
_METRICS: dict[bytes, dict[bytes, _Sample]] = {
    b"vllm": {
        b"num_requests_running": _Sample("running"),
        # Every place where a request waits: leaving one out would make live requests look finished.
        b"num_requests_waiting": _Sample("waiting"),
        b"num_requests_swapped": _Sample("waiting_swapped"),
        b"kv_cache_usage_perc": _Sample("kv_usage"),
        b"gpu_cache_usage_perc": _Sample("kv_usage_before"),
        b"cache_config_info": _Sample(_INFO),
        b"prompt_tokens_by_source_total": _Sample("prompt_computed", only=(b"source", b"local_compute")),
        b"prompt_tokens_total": _Sample("prompt", add=True),
        b"generation_tokens_total": _Sample("output", add=True),
        b"request_prefill_kv_computed_tokens_sum": _Sample("prefill_tokens", add=True),
        b"request_prefill_time_seconds_sum": _Sample("prefill_seconds", add=True),
    },
    b"sglang": {
        b"num_running_reqs": _Sample("running"),
        b"num_queue_reqs": _Sample("waiting"),
        b"num_grammar_queue_reqs": _Sample("waiting_grammar"),
        b"num_prefill_prealloc_queue_reqs": _Sample("waiting_prealloc"),
        b"num_prefill_bootstrap_queue_reqs": _Sample("waiting_bootstrap"),
        b"num_prefill_inflight_queue_reqs": _Sample("waiting_inflight"),
        b"num_decode_prealloc_queue_reqs": _Sample("waiting_decode"),
        b"num_decode_transfer_queue_reqs": _Sample("waiting_transfer"),
        b"token_usage": _Sample("kv_usage"),
        b"gen_throughput": _Sample("gen_tps"),
        b"max_total_num_tokens": _Sample("max_tokens"),
        b"page_size": _Sample("block_size"),
        b"num_pages": _Sample("num_pages"),
        b"cache_config_info": _Sample(_INFO),
        b"realtime_tokens_total": _Sample("prompt_computed", only=(b"mode", b"prefill_compute")),
        b"prompt_tokens_total": _Sample("prompt", add=True),
        b"generation_tokens_total": _Sample("output", add=True),
    },
    b"trtllm": {
        b"num_requests_running": _Sample("running"),
        b"num_requests_waiting": _Sample("waiting"),
        b"kv_cache_utilization": _Sample("kv_usage"),
        b"kv_cache_tokens_per_block": _Sample("block_size"),
        b"kv_cache_max_blocks": _Sample("num_pages"),
        b"prompt_tokens_total": _Sample("prompt", add=True),
        b"generation_tokens_total": _Sample("output", add=True),
    },
}

_PROGRAMS = {b"vllm": "vllm", b"sglang": "sglang", b"trtllm": "tensorrt-llm"}

# OpenTelemetry and Ray turn the colon into an underscore.
_NAMES = b"|".join(
    engine + rb"[:_](?:" + b"|".join(sorted(names, reverse=True)) + b")" for engine, names in _METRICS.items()
)
_SAMPLES = Samples(_NAMES)


@dataclass(slots=True)
class _Rank:
    """The samples of one data-parallel rank, and the labels of its configuration."""

    values: dict[str, float] = field(default_factory=dict)
    info: dict[bytes, bytes] = field(default_factory=dict)


def read_metrics_page(page: bytes) -> MetricsPage:
    r"""Read the load samples of an engine's metrics page.

    Any bytes are accepted; what is no sample of a known name is passed over.

    Args:
        page: The page in Prometheus or OpenMetrics text format.

    Returns:
        What the page says.

    Example:
        >>> from cachelb.sources import read_metrics_page
        >>> page = read_metrics_page(b'vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n')
        >>> page.engine, page.load.running, page.load.waiting, page.load.kv_usage
        ('vllm', 2, 1, None)
    """
    ranks: dict[int | None, _Rank] = {}
    engine: bytes | None = None
    dropped = 0
    for text, number in _SAMPLES.of(page):
        series = _series(text)
        engine = engine or series.engine
        if series.engine != engine:  # a page that republishes other engines: the first one is the worker itself
            continue
        value = _number(number)
        if value is None:
            dropped += 1
            continue
        if series.field is None:
            continue
        rank = ranks.get(series.rank)
        if rank is None:
            rank = ranks[series.rank] = _Rank()
        if series.field == _INFO:
            rank.info.update(series.labels)
            continue
        before = rank.values.get(series.field, 0.0)
        rank.values[series.field] = before + value if series.add else max(before, value)
    return _page(engine, ranks, dropped)


@dataclass(frozen=True, slots=True)
class _Series:
    """What to do with the samples of one series; without a field, nothing."""

    engine: bytes
    field: str | None
    add: bool
    rank: int | None
    labels: Mapping[bytes, bytes]


@lru_cache(maxsize=8192)  # a page has the same series every time, and reading labels is most of the work
def _series(text: bytes) -> _Series:
    """Work out what a name with its labels stands for."""
    name, labels = split_series(text)
    engine, metric = name.split(b":", 1) if b":" in name else name.split(b"_", 1)
    how = _METRICS[engine][metric]
    # Totals stand under an empty priority, next to one sample per priority.
    is_part = bool(labels.get(b"priority")) or (how.only is not None and labels.get(how.only[0]) != how.only[1])
    return _Series(
        engine=engine, field=None if is_part else how.field, add=how.add, rank=_rank_of(labels), labels=labels
    )


def _number(text: bytes) -> float | None:
    """Return a sample's value, or None if it is no finite number from 0 up."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _LARGEST else None


def _rank_of(labels: Mapping[bytes, bytes]) -> int | None:
    """Return the data-parallel rank a sample belongs to."""
    for name in _RANK_LABELS:
        if name in labels:
            return _whole(labels[name])
    return None


def _whole(text: bytes | None) -> int | None:
    """Return a label that is a whole number; engines write "None" for what they do not know."""
    if text is None or not text.isdigit():
        return None
    return int(text) if len(text) < len(str(int(_LARGEST))) else None


def _page(engine: bytes | None, ranks: Mapping[int | None, _Rank], dropped: int) -> MetricsPage:
    """Put the ranks together."""
    common = ranks.get(None, _Rank())
    named: dict[int, LoadReport] = {}
    for number, rank in ranks.items():
        if number is not None:
            # Older vLLM states its configuration without a rank, once for all.
            load = _load(_Rank(rank.values, common.info | rank.info))
            if load.running is not None or load.waiting is not None or load.kv_usage is not None:
                named[number] = load
    whole = list(named.values()) or [_load(common)]
    sizes = {load.block_size for load in whole}
    together = LoadReport(
        running=_whole_sum(load.running for load in whole),
        waiting=_whole_sum(load.waiting for load in whole),
        kv_usage=_mean(load.kv_usage for load in whole),
        kv_blocks=_whole_sum(load.kv_blocks for load in whole) if len(sizes) == 1 else None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
        retention_interval=whole[0].retention_interval,
    )
    return MetricsPage(
        engine=None if engine is None else _PROGRAMS[engine],
        load=together,
        ranks=named,
        totals=Totals(
            prompt_tokens=_first(_total(ranks, "prompt_computed"), _total(ranks, "prompt")),
            output_tokens=_total(ranks, "output"),
            prefill_tokens=_total(ranks, "prefill_tokens"),
            prefill_seconds=_total(ranks, "prefill_seconds"),
            gen_tps=_total(ranks, "gen_tps"),
        ),
        dropped=dropped,
    )


def _load(rank: _Rank) -> LoadReport:
    """Turn the samples of one rank into a report."""
    values = rank.values
    waiting = [round(value) for name, value in values.items() if name.startswith("waiting")]
    usage = _first(values.get("kv_usage"), values.get("kv_usage_before"))
    block_size = _first(
        _positive(values.get("block_size")),
        _whole(rank.info.get(b"hash_block_size")) or None,
        _whole(rank.info.get(b"block_size")) or None,
        _whole(rank.info.get(b"page_size")) or None,
    )
    return LoadReport(
        running=_positive(values.get("running"), least=0),
        waiting=sum(waiting) if "waiting" in values else None,
        kv_usage=None if usage is None else min(usage, 1.0),
        kv_blocks=_kv_blocks(rank, block_size),
        block_size=block_size,
        retention_interval=_retention_interval(rank.info.get(b"prefix_cache_retention_interval")),
    )


def _retention_interval(label: bytes | None) -> int | Literal["all"] | None:
    """Read where vLLM keeps what hybrid models resume with."""
    if label == b"None":
        return "all"
    interval = _whole(label)
    return interval if interval is None or interval < _MOST_TOKENS else None


def _kv_blocks(rank: _Rank, block_size: int | None) -> int | None:
    """Return how many blocks of `block_size` tokens the cache has.

    vLLM's `num_gpu_blocks` counts blocks of `block_size`, which for hybrid models says little about tokens; where it
    publishes the size in tokens, that is what prefixes can fill.
    """
    values, info = rank.values, rank.info
    tokens = _first(_whole(info.get(b"kv_cache_size_tokens")) or None, _positive(values.get("max_tokens")))
    if tokens is not None and block_size is not None:
        return tokens // block_size or None
    blocks = _first(
        _positive(values.get("num_pages")),
        _whole(info.get(b"num_gpu_blocks")) or None,
        _whole(info.get(b"num_pages")) or None,
    )
    own_size = _whole(info.get(b"block_size")) or None
    if blocks is not None and own_size is not None and block_size is not None:
        return blocks * own_size // block_size or None
    return blocks


def _positive(value: float | None, *, least: int = 1) -> int | None:
    """Return a gauge as a whole number, or None below `least`."""
    return None if value is None or round(value) < least else round(value)


def _first(*values: _T | None) -> _T | None:
    """Return the first value that is known."""
    return next((value for value in values if value is not None), None)


def _whole_sum(values: Iterable[int | None]) -> int | None:
    """Add up what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Average what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(ranks: Mapping[int | None, _Rank], name: str) -> float | None:
    """Add up a counter over ranks; None if no rank has it."""
    known = [rank.values[name] for rank in ranks.values() if name in rank.values]
    return sum(known) if known else None
