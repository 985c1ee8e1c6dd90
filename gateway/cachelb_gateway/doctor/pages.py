"""Checks of a worker's pages: reachability, models, cache configuration, event endpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachelb.common.exposition import Samples, split_series, unescape
from cachelb.events.discovery import parse_page
from cachelb.events.endpoints import Endpoint, default_endpoint
from cachelb_gateway.doctor.client import NOT_FOUND, AskError, WorkerClient
from cachelb_gateway.doctor.settings import Settings
from cachelb_gateway.doctor.verdicts import Check

_LEARNED: Final = Samples(rb"cachelb_worker_learned")
_COPIES: Final = Samples(rb"cachelb_pulls_total")
_LEAST_COPIES: Final = 8
_SAMPLES: Final = Samples(rb"vllm:cache_config_info|sglang:page_size")
_EVENTS: Final = '"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\''
_PORT_FIX: Final = "name the ports with --events-port and --replay-port, or "


@dataclass(slots=True)
class Facts:
    """The known facts of a worker."""

    models: dict[str, str | None] = field(default_factory=dict)  # each with the model it is an adapter of
    model: str | None = None  # to send probes for
    adapter: str | None = None  # `model` if it is an adapter
    max_model_len: int | None = None  # prompt and answer together, in tokens
    block_size: int | None = None
    program: str | None = None  # "vllm" or "sglang", by its metrics
    endpoints: dict[int, Endpoint] = field(default_factory=dict)  # by data-parallel rank
    chat_ids: list[list[int]] = field(default_factory=list)  # the worker's token ids for the doctor's chats

    @property
    def events_fix(self) -> str:
        """Advice to publish events: SGLang does so if it has the option, and refuses the switch of vLLM."""
        switch = "" if self.program == "sglang" else '"enable_kv_cache_events": true, '
        return f"start the engine with --kv-events-config '{{{switch}{_EVENTS}"


async def check_reachable(client: WorkerClient) -> Check:
    """Ask whether the worker is healthy, and for its version."""
    try:
        await client.text("/health")
    except AskError as error:
        return Check("reachable", "fail", str(error), "start the engine, or correct the URL")
    try:
        version = str((await client.json("/version"))["version"])
    except (AskError, KeyError, TypeError):
        return Check("reachable", "ok", "healthy; it does not report its version")
    return Check("reachable", "ok", f"healthy, version {version}")


async def check_model(client: WorkerClient, facts: Facts, settings: Settings) -> Check:
    """Read the served models, and choose the one to probe."""
    try:
        entries = (await client.json("/v1/models"))["data"]
        facts.models = {str(entry["id"]): entry.get("parent") for entry in entries}
        lengths = {str(entry["id"]): entry.get("max_model_len") for entry in entries}
    except AskError as error:
        fix = "pass --api-key" if "key is missing" in str(error) else "the engine must serve the OpenAI API"
        return Check("model", "fail", str(error), fix)
    except (KeyError, TypeError, AttributeError):
        return Check("model", "fail", "/v1/models is no list of models", "the engine must serve the OpenAI API")
    shown = ", ".join(facts.models) or "none"
    if settings.model is not None and settings.model not in facts.models:
        return Check(
            "model", "fail", f"serves {shown}, not {settings.model}", f"choose one of these with --model: {shown}"
        )
    bases = [name for name, parent in facts.models.items() if parent is None]
    facts.model = settings.model or next(iter(bases or facts.models), None)
    if facts.model is None:
        return Check("model", "fail", "no model is served", "start the engine with a model")
    facts.adapter = facts.model if facts.models[facts.model] is not None else None
    length = lengths[facts.model] or lengths.get(facts.models[facts.model] or "")
    facts.max_model_len = length if isinstance(length, int) else None
    return Check("model", "ok", f"{facts.model}, of {len(facts.models)} served")


async def check_cache(client: WorkerClient, facts: Facts, settings: Settings) -> list[Check]:
    """Read from the metrics how the cache is built."""
    try:
        page = await client.text("/metrics")
    except AskError as error:
        fix = "pass --block-size, or let the engine show its metrics"
        return [Check("block-size", "warn", f"unknown: {error}", fix)]
    shown = {name: (labels, value) for name, labels, value in map(_read, reversed(_SAMPLES.of(page.encode())))}
    facts.program = next((name.partition(":")[0] for name in shown), None)
    labels, _ = shown.get("vllm:cache_config_info", ({}, ""))
    size = labels.get("block_size") or shown.get("sglang:page_size", ({}, ""))[1].partition(".")[0]
    facts.block_size = int(size) if size and size.isdigit() and int(size) else None
    checks = [_block_size(facts.block_size, settings.block_size)]
    if "enable_prefix_caching" in labels:
        algorithm = labels.get("prefix_caching_hash_algo", "unknown")
        checks.append(
            Check("prefix-caching", "ok", f"on, hashes by {algorithm}")
            if labels["enable_prefix_caching"] == "True"
            else Check("prefix-caching", "fail", "off", "start the engine with --enable-prefix-caching")
        )
    return checks


def _read(sample: tuple[bytes, bytes]) -> tuple[str, dict[str, str], str]:
    """Read name, labels and value of a sample."""
    name, labels = split_series(sample[0])
    return name.decode(), {label.decode(): unescape(text) for label, text in labels.items()}, sample[1].decode()


def _block_size(engine: int | None, router: int | None) -> Check:
    """Compare the engine's block size with the router's."""
    if engine is None:
        return Check("block-size", "warn", "the metrics do not report it", "pass the engine's --block-size")
    if router is None or engine == router:
        return Check("block-size", "ok", f"{engine} tokens")
    seen = f"{engine} tokens, the router's is {router}"
    fix = f"use block_size={engine} in the router"
    if engine % router == 0 or router % engine == 0:
        return Check("block-size", "warn", f"{seen}: overlaps are rounded down", fix)
    return Check("block-size", "fail", f"{seen}: neither is a multiple of the other, so events are refused", fix)


async def check_router(settings: Settings) -> list[Check]:
    """Read from the metrics of a gateway which settings its workers contradict."""
    if settings.router is None:
        return []
    client = WorkerClient(settings.router, api_key=settings.router_token, timeout_s=settings.timeout_s)
    try:
        page = await client.text("/metrics")
    except AskError as error:
        return [Check("router", "fail", str(error), "give the admin address of the gateway, and its token")]
    if "cachelb_" not in page:
        return [Check("router", "fail", "/metrics is not of a router", "give the admin address of the gateway")]
    learned = map(_read, _LEARNED.of(page.encode()))
    found = [f"{labels.get('fact')} of {labels.get('worker')} is rather {value}" for _, labels, value in learned]
    copies = _copies(page)
    if not found:
        return [Check("router", "ok", "no setting of a worker is contradicted"), *copies]
    fix = "correct these settings; the log of the gateway names them"
    return [Check("router", "warn", "; ".join(found), fix), *copies]


def _copies(page: str) -> list[Check]:
    """Check that copies from peers find blocks: even a short one shows that the engines' blocks match."""
    all_of, missed = Counter[str](), Counter[str]()
    for _, labels, value in map(_read, _COPIES.of(page.encode())):
        counts = (all_of, missed) if labels["outcome"] == "missed" else (all_of,)
        for count in counts:
            count[labels["group"]] += int(float(value))
    if not all_of:
        return []
    in_vain = [f"{name}: {n}" for name, n in all_of.items() if n >= _LEAST_COPIES and missed[name] == n]
    if not in_vain:
        listed = ", ".join(f"{name}: {n - missed[name]} of {n}" for name, n in all_of.items())
        return [Check("copies", "ok", f"copies from peers that found blocks: {listed}")]
    fix = "start all engines of the group with equal PYTHONHASHSEED, --block-size, tensor parallelism and KV layout"
    return [Check("copies", "warn", f"copies from peers, none of which found blocks: {', '.join(in_vain)}", fix)]


async def check_events(client: WorkerClient, facts: Facts, settings: Settings, key: str) -> Check:
    """Find out where events are published."""
    if settings.events_port is not None:
        try:
            facts.endpoints = {0: default_endpoint(key, settings.events_port, settings.replay_port)}
        except ValueError:
            return Check("events", "fail", "its URL names no host", "give the URL with the host that publishes")
        return Check("events", "ok", f"looked for at {facts.endpoints[0].address}")
    try:
        page = await client.json("/kv_event_sources")
    except AskError as error:
        seen = "it does not report its address" if error.status == NOT_FOUND else str(error)
        return Check("events", "fail", seen, _PORT_FIX + facts.events_fix)
    return _read_sources(page, facts, key)


def _read_sources(page: Any, facts: Facts, key: str) -> Check:  # noqa: ANN401 - any JSON
    """Take the addresses of the ranks from the page."""
    sources = _published(page)
    if sources is None:
        return Check("events", "fail", "/kv_event_sources is not understood", _PORT_FIX + facts.events_fix)
    if not sources:
        return Check("events", "fail", "off", facts.events_fix)
    try:
        endpoints = parse_page(json.dumps(sources).encode(), key)
    except (TypeError, ValueError) as error:
        return Check("events", "fail", f"at no address that can be used: {error}", _PORT_FIX + facts.events_fix)
    if len(endpoints) < len(sources) or 0 not in endpoints:
        seen = "the engine connects to a subscriber instead of listening"
        return Check("events", "fail", seen, 'use an endpoint such as "tcp://*:5557" in --kv-events-config')
    facts.endpoints = endpoints
    where = ", ".join(endpoint.address for endpoint in endpoints.values())
    return Check("events", "ok", f"published at {where}")


def _published(page: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON
    """Return the enabled sources, None if this is not a list of sources."""
    if not isinstance(page, dict) or not all(isinstance(source, dict) for source in page.values()):
        return None
    return {
        rank: source
        for rank, source in page.items()
        if source.get("enable_kv_cache_events", True) and source.get("publisher") != "null"
    }
