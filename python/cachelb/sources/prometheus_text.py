"""The few load samples of an engine's Prometheus page, without parsing the rest of it.

One compiled pattern walks over the newlines of the page and stops only at the names below, so the cost is that of a
search, not of a parse. Other lines may hold anything. `docs/maintainers/engines.md` has every name, where it comes
from, and why others are not read.

Engines have a prefix of their own; OpenTelemetry and Ray turn its colon into an underscore, Ray puts `ray_` in front,
and both may write a counter without `_total`. Names of systems that rename metrics (NIM, AIBrix, Dynamo) count where
the engine's own are missing.

None of them publishes the tokens of its waiting requests there, so `queued_tokens` stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from typing import Final, Literal, TypeVar

from cachelb.common.exposition import Samples, split_series
from cachelb.sources.base import LoadReport, Sleep

_T = TypeVar("_T")

_LARGEST = 2.0**53
"""Counts above this are no counts; it also keeps every number exact."""

_MOST_TOKENS = 1 << 31

_RANK_LABELS = (b"engine", b"dp_rank")
_OWNER_LABELS = (b"model_name", b"model", b"server", b"instance", b"pod", b"WorkerId", b"ReplicaId")
"""Labels that separate engines on one page; those of a rank's parts, such as `tp_rank`, repeat its figures."""

_MOST_ENGINES = 4096
_MOST_SAMPLES = 1 << 15
_LONGEST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of a page, summed over its ranks; None where the page has none.

    Attributes:
        prompt_tokens: Prompt tokens computed (where the engine separates them from cached ones, else all).
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
    r"""The load samples of one page.

    Attributes:
        engine: "vllm", "sglang" or "tensorrt-llm"; None if no name on the page is of one of them.
        load: The worker as a whole: requests and blocks summed over its engines, `kv_usage` their mean, and awake as
            long as one of them is.
        ranks: As `load`, per data-parallel rank, where the page has ranks.
        totals: Counters, from which two pages make a rate.
        dropped: Samples with a known name whose labels or value make no sense.
        fault: Why nothing could be read: "empty page", "no metrics page" or "no known metrics"; None otherwise.
        start_s: When the process started, in seconds of Unix time.

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
    fault: str | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """How to read one metric: the field it adds to, and what to do with several samples of one rank."""

    field: str = ""
    add: bool = False  # else the largest: tensor-parallel ranks repeat the same figure
    label: bytes = b""  # its value leads to the field
    by_value: Mapping[str, str] | None = None  # without, the value is a part of the field's name


def _by(label: bytes, **fields: str) -> _Sample:
    """Read a metric whose label names the field."""
    return _Sample(label=label, by_value=fields)


_INFO: Final = "info"
_SLEEP: Final = "sleep:"
_FALLS_ASLEEP: Final = "falls asleep"
_SLEEPS: Final[tuple[Sleep, ...]] = ("awake", "paused", "asleep")
_PROMPT = {b"prompt_tokens_total": _Sample("prompt", add=True), b"generation_tokens_total": _Sample("output", add=True)}
_PROGRAMS: Final = {b"vllm": "vllm", b"sglang": "sglang", b"trtllm": "tensorrt-llm", b"nv_trt_llm": "tensorrt-llm"}
_METRICS: Final[dict[bytes, dict[bytes, _Sample]]] = {
    b"vllm": {
        b"num_requests_running": _Sample("running"),
        # Every place where a request waits: leaving one out would make live requests look finished.
        b"num_requests_waiting": _Sample("waiting"),
        b"num_requests_swapped": _Sample("waiting_swapped"),
        b"kv_cache_usage_perc": _Sample("kv_usage"),
        b"gpu_cache_usage_perc": _Sample("kv_usage_before"),
        b"cache_config_info": _Sample(_INFO),
        b"engine_sleep_state": _Sample(_SLEEP, label=b"sleep_state"),
        b"sleep_mode_operations_in_flight": _by(
            b"operation", sleep=_FALLS_ASLEEP, release_kv_cache_memory=_FALLS_ASLEEP
        ),
        b"prompt_tokens_by_source_total": _by(b"source", local_compute="prompt_computed"),
        b"request_prefill_kv_computed_tokens_sum": _Sample("prefill_tokens", add=True),
        b"request_prefill_time_seconds_sum": _Sample("prefill_seconds", add=True),
        **_PROMPT,
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
        b"realtime_tokens_total": _by(b"mode", prefill_compute="prompt_computed"),
        **_PROMPT,
    },
    b"process": {b"start_time_seconds": _Sample("start")},
    b"trtllm": {
        b"num_requests_running": _Sample("running"),
        b"num_requests_waiting": _Sample("waiting"),
        b"kv_cache_utilization": _Sample("kv_usage"),
        b"kv_cache_tokens_per_block": _Sample("block_size"),
        b"kv_cache_max_blocks": _Sample("num_pages"),
        b"kv_cache_used_blocks": _Sample("used_pages"),
        b"kv_cache_config_info": _Sample(_INFO),
        b"prompt_cached_tokens_total": _Sample("prompt_cached", add=True),
        b"request_prefill_time_seconds_sum": _Sample("prefill_seconds", add=True),
        **_PROMPT,
    },
    b"nv_trt_llm": {
        b"request_metrics": _by(b"request_type", scheduled="running", waiting="waiting"),
        b"kv_cache_block_metrics": _by(
            b"kv_cache_block_type", fraction="kv_usage", tokens_per="block_size", max="num_pages", used="used_pages"
        ),
    },
}
_OTHERS: Final[dict[bytes, _Sample]] = {
    # NIM publishes names of vLLM without their prefix, whatever its engine is.
    **{name: how for name, how in _METRICS[b"vllm"].items() if b"num_" in name or b"usage" in name},
    **_PROMPT,
    b"aibrix:queue_size": _Sample("waiting"),
    b"aibrix:gpu_cache_usage_perc": _Sample("kv_usage"),
    b"aibrix:token_usage": _Sample("kv_usage"),
    b"aibrix:generation_throughput": _Sample("gen_tps"),
    **{b"aibrix:" + name: how for name, how in _PROMPT.items()},
    b"dynamo_component_inflight_requests": _Sample("running", add=True),
    b"dynamo_component_kvstats_gpu_cache_usage_percent": _Sample("kv_usage"),
    b"dynamo_component_kvstats_total_blocks": _Sample("num_pages"),
    b"dynamo_frontend_inflight_requests": _Sample("running", add=True),
    b"dynamo_frontend_model_kv_cache_block_size": _Sample("block_size"),
}
_PLAIN: Final = "_plain"
"""Ends the field of a counter without `_total`; a page of Ray has it with and without."""


def _spellings(names: Iterable[bytes]) -> bytes:
    stems = {name.removesuffix(b"_total"): name for name in names}
    return b"|".join(stem + b"(?:_total)?+" * (stem != name) for stem, name in sorted(stems.items(), reverse=True))


_NAMES = b"|".join(prefix + rb"[:_](?:" + _spellings(names) + b")" for prefix, names in _METRICS.items())
_SAMPLES = Samples(rb"(?:ray_)?+(?:" + _NAMES + b")|" + _spellings(_OTHERS))
_LINE = rb"# (?:HELP|TYPE|EOF)|[ \t]*+[A-Za-z_:][\w:.]*+[ \t]*+(?:\{.*\}[ \t]*+|[ \t])[+-]?(?:\d|NaN|Inf)"
_METRICS_LINE = re.compile(b"^(?:" + _LINE + b")", re.MULTILINE)
_PREFIX = re.compile(rb"(?:ray_)?(" + b"|".join(sorted(_METRICS, reverse=True)) + rb")[:_](.*)", re.DOTALL)

_Key = tuple[bytes, int | None]
"""Values of the labels that name an owner, with null bytes between them, and the rank."""


@dataclass(slots=True)
class _Rank:
    """The samples of one data-parallel rank, and the labels of its configuration."""

    values: dict[str, float] = field(default_factory=dict)
    info: dict[bytes, bytes] = field(default_factory=dict)


_Ranks = dict[_Key, _Rank]


def read_metrics_page(page: bytes) -> MetricsPage:
    r"""Read the load samples of an engine's metrics page.

    Any bytes are accepted; what is no sample of a known name is passed over.

    Args:
        page: The page in Prometheus or OpenMetrics text format.

    Returns:
        The samples of the page.

    Example:
        >>> from cachelb.sources import read_metrics_page
        >>> page = read_metrics_page(b'vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n')
        >>> page.engine, page.load.running, page.load.waiting, page.load.kv_usage
        ('vllm', 2, 1, None)
    """
    own: _Ranks = {}
    others: _Ranks = {}
    engine: bytes | None = None
    start_s = None
    samples = _SAMPLES.of(page)
    dropped = max(len(samples) - _MOST_SAMPLES, 0)
    for text, number in samples[:_MOST_SAMPLES]:
        series = _series(text) if len(text) <= _LONGEST_KEPT else _series.__wrapped__(text)
        if series.field == "start":
            start_s = _number(number)
            continue
        engine = engine or series.engine
        if series.engine not in (engine, None):  # a page that republishes other engines: the first is the worker itself
            continue
        value = _number(number)
        ranks = others if series.engine is None else own
        rank = ranks.get(series.key)
        if value is None or (rank is None and len(ranks) == _MOST_ENGINES):
            dropped += 1
            continue
        if series.field is None:
            continue
        if rank is None:
            rank = ranks[series.key] = _Rank()
        if series.field == _INFO:
            rank.info.update(series.labels)
            continue
        before = rank.values.get(series.field, 0.0)
        rank.values[series.field] = before + value if series.add else max(before, value)
    totals = _totals(own) if own else _totals(others)
    fault = None if engine is not None or others else _fault(page)
    falls_asleep = any(rank.values.get(_FALLS_ASLEEP) for rank in own.values())
    load, named = _read(own)
    if falls_asleep:  # the state changes when the engine has done it
        load, named = _paused(load), {number: _paused(each) for number, each in named.items()}
    return MetricsPage(
        engine=None if engine is None else _PROGRAMS[engine],
        load=_filled(load, _read(others)[0]) if others else load,
        ranks=named,
        totals=totals,
        dropped=dropped,
        fault=fault,
        start_s=start_s,
    )


def _fault(page: bytes) -> str:
    """Return why a page without a known name could not be read."""
    if not page.strip():
        return "empty page"
    return "no known metrics" if _METRICS_LINE.search(page) else "no metrics page"


@dataclass(frozen=True, slots=True)
class _Series:
    """The target of the samples of one series; without a field they are ignored."""

    engine: bytes | None
    field: str | None
    add: bool
    key: _Key
    labels: Mapping[bytes, bytes]


@lru_cache(maxsize=8192)  # a page has the same series every time, and reading labels is most of the work
def _series(text: bytes) -> _Series:
    """Work out what a name with its labels stands for."""
    name, labels = split_series(text)
    found = _PREFIX.fullmatch(name)
    engine, metric = (None, name) if found is None else (found[1], found[2])
    names = _OTHERS if engine is None else _METRICS[engine]
    how = names.get(metric)
    plain = "" if how else _PLAIN
    how = how or names[metric + b"_total"]
    target: str | None = how.field
    if how.label:
        value = labels.get(how.label, b"").decode("ascii", "replace")
        target = how.by_value.get(value) if how.by_value is not None else how.field + value if value else None
    # Totals stand under an empty priority, next to one sample per priority.
    if labels.get(b"priority"):
        target = None
    owner = b"\0".join(labels.get(label, b"").replace(b"\0", b"") for label in _OWNER_LABELS)
    return _Series(
        engine, target and target + plain, how.add, (owner if owner.strip(b"\0") else b"", _rank_of(labels)), labels
    )


def _number(text: bytes) -> float | None:
    """Return a sample's value, or None if it is no finite number from 0 up."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _LARGEST and b"_" not in text else None


def _rank_of(labels: Mapping[bytes, bytes]) -> int | None:
    """Return the data-parallel rank a sample belongs to."""
    return next((_whole(labels[name]) for name in _RANK_LABELS if name in labels), None)


def _whole(text: bytes | None) -> int | None:
    """Return a label that is a whole number; engines write "None" for what they do not know."""
    if text is None or not text.isdigit():
        return None
    return int(text) if len(text) < len(str(int(_LARGEST))) else None


@lru_cache(maxsize=1024)
def _wider(owner: bytes) -> list[bytes]:
    """Return the owners that have no label but those of another, which is the last."""
    wider = [labels for labels in product(*({b"", label} for label in owner.split(b"\0"))) if any(labels)]
    return [b"", *(b"\0".join(labels) for labels in sorted(wider, key=lambda labels: sum(map(bool, labels))))]


def _read(ranks: _Ranks) -> tuple[LoadReport, dict[int, LoadReport]]:
    """Put the engines of a page together: the worker as a whole, and each of its ranks. Takes them out."""
    loads: dict[_Key, LoadReport] = {}
    for (owner, number), rank in ranks.items():
        if not rank.values:
            continue
        # Configuration is stated without labels that the load has: a rank by older vLLM, a model by all.
        wider = [(less, at) for less in _wider(owner) for at in dict.fromkeys((None, number))]
        info = {label: value for key in wider if key in ranks for label, value in ranks[key].info.items()}
        load = _load(_Rank(rank.values, info))
        if any(value is not None for value in (load.running, load.waiting, load.kv_usage, load.sleep)):
            loads[owner, number] = load
    # A sample without the labels that others have is a total, or of the worker as a whole.
    owned = any(owner for owner, _ in loads)
    narrow = [key for key in loads if key[0] or not owned]
    ranked = any(number is not None for _, number in narrow)
    narrow = [key for key in narrow if key[1] is not None or not ranked]
    if not narrow:
        every = _Rank()
        for rank in ranks.values():
            every.values.update(rank.values)
            every.info.update(rank.info)
        return _load(every), {}
    parts = [loads[key] for key in narrow]
    sizes = {load.block_size for load in parts}
    together = LoadReport(
        running=_whole_sum(load.running for load in parts),
        waiting=_whole_sum(load.waiting for load in parts),
        kv_usage=_mean(load.kv_usage for load in parts),
        kv_blocks=_whole_sum(load.kv_blocks for load in parts) if len(sizes) == 1 else None,
        block_size=next(iter(sizes)) if len(sizes) == 1 else None,
        retention_interval=next(
            (load.retention_interval for load in parts if load.retention_interval is not None), None
        ),
        sleep=next((state for state in _SLEEPS if any(load.sleep == state for load in parts)), None),
    )
    single = len({owner for owner, _ in narrow}) == 1
    named = {number: loads[owner, number] for owner, number in narrow if single and number is not None}
    for key in narrow:
        del ranks[key]
    if any(rank.values for rank in ranks.values()) and len(sizes) == 1:
        whole, wider_named = _read(ranks)
        together = _filled(together, whole)
        named = {at: _filled(load, wider_named[at]) if at in wider_named else load for at, load in named.items()}
    return together, named


_FIELDS: Final = tuple(each.name for each in fields(LoadReport))


def _paused(load: LoadReport) -> LoadReport:
    return replace(load, sleep="paused") if load.sleep in ("awake", None) else load


def _filled(load: LoadReport, other: LoadReport) -> LoadReport:
    """Return a report with what only another one has."""
    return LoadReport(*(_first(getattr(load, name), getattr(other, name)) for name in _FIELDS))


def _totals(ranks: _Ranks) -> Totals:
    """Add up the counters of a page."""
    prompt, cached = _total(ranks, "prompt"), _total(ranks, "prompt_cached")
    computed = None if prompt is None or cached is None else max(prompt - cached, 0.0)
    return Totals(
        prompt_tokens=_first(_total(ranks, "prompt_computed"), computed, prompt),
        output_tokens=_total(ranks, "output"),
        prefill_tokens=_first(_total(ranks, "prefill_tokens"), computed),
        prefill_seconds=_total(ranks, "prefill_seconds"),
        gen_tps=_total(ranks, "gen_tps"),
    )


def _load(rank: _Rank) -> LoadReport:
    """Turn the samples of one rank into a report."""
    values = rank.values
    waiting = [round(value) for name, value in values.items() if name.startswith("waiting")]
    pages, used = values.get("num_pages"), values.get("used_pages")
    usage = _first(
        values.get("kv_usage"), values.get("kv_usage_before"), used / pages if pages and used is not None else None
    )
    stated = _stated(rank.info, b"hash_block_size", b"block_size", b"page_size")
    block_size = _first(_positive(values.get("block_size")), stated)
    return LoadReport(
        running=_positive(values.get("running"), least=0),
        waiting=sum(waiting) if "waiting" in values else None,
        kv_usage=None if usage is None else min(usage, 1.0),
        kv_blocks=_kv_blocks(rank, block_size),
        block_size=block_size,
        retention_interval=_retention_interval(rank.info.get(b"prefix_cache_retention_interval")),
        sleep=_sleep(values),
    )


def _sleep(values: Mapping[str, float]) -> Sleep | None:
    """Read whether an engine sleeps. Every state but the first discards its cache; in none of them it is paused."""
    states = {name: value for name, value in values.items() if name.startswith(_SLEEP)}
    if not states:
        return None
    if states.pop(_SLEEP + "awake", 0.0):
        return "awake"
    return "asleep" if any(states.values()) else "paused"


def _retention_interval(label: bytes | None) -> int | Literal["all"] | None:
    """Read where vLLM keeps what hybrid models resume with."""
    if label == b"None":
        return "all"
    interval = _whole(label)
    return interval if interval is None or interval < _MOST_TOKENS else None


def _kv_blocks(rank: _Rank, block_size: int | None) -> int | None:
    """Return how many blocks of `block_size` tokens the cache has.

    vLLM's `num_gpu_blocks` counts blocks of `block_size`, which for hybrid models hardly relate to tokens; where it
    publishes the size in tokens, prefixes can fill that.
    """
    values, info = rank.values, rank.info
    tokens = _first(_stated(info, b"kv_cache_size_tokens"), _positive(values.get("max_tokens")))
    if tokens is not None and block_size is not None:
        return tokens // block_size or None
    blocks = _first(_positive(values.get("num_pages")), _stated(info, b"num_gpu_blocks", b"num_pages"))
    own_size = _stated(info, b"block_size")
    if blocks is not None and own_size is not None and block_size is not None:
        return blocks * own_size // block_size or None
    return blocks


def _stated(info: Mapping[bytes, bytes], *labels: bytes) -> int | None:
    """Return the first of the labels that is a whole number above 0."""
    return next((number for label in labels if (number := _whole(info.get(label)))), None)


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


def _total(ranks: _Ranks, name: str) -> float | None:
    """Add up a counter over ranks; None if no rank has it."""
    for spelled in (name, name + _PLAIN):
        if known := [rank.values[spelled] for rank in ranks.values() if spelled in rank.values]:
            return sum(known)
    return None
