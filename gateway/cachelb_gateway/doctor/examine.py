"""Examining a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cachelb._core import worker_name
from cachelb_gateway.doctor.client import WorkerClient
from cachelb_gateway.doctor.fleet import check_fleet
from cachelb_gateway.doctor.pages import Facts, check_cache, check_events, check_model, check_reachable, check_router
from cachelb_gateway.doctor.parity import check_template, read_chats
from cachelb_gateway.doctor.probe import Prober
from cachelb_gateway.doctor.settings import Settings
from cachelb_gateway.doctor.stream import Stream, not_checked
from cachelb_gateway.doctor.verdicts import Check, Diagnosis, WorkerReport, of_ranks

_AT_ONCE: Final = 8


async def examine(urls: Sequence[str], settings: Settings | None = None) -> Diagnosis:
    """Check live engines: what they serve, their caches, their events, and whether predictions come true.

    Each worker, and each data-parallel rank of one, gets four short completions of random token ids, with one token of
    output. Nothing else is changed.

    Args:
        urls: URLs of the workers.
        settings: How; None for the defaults.

    Returns:
        The verdicts. A worker that does not answer is one, not an exception.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
        ValueError: A URL is invalid, or given twice.

    Example:
        >>> import asyncio
        >>> from cachelb_gateway.doctor import Settings, examine
        >>> diagnosis = asyncio.run(examine(["http://127.0.0.1:9"], Settings(timeout_s=1)))
        >>> diagnosis.is_healthy, diagnosis.workers[0].checks[0].fix
        (False, 'start the engine, or correct the URL')
    """
    settings = settings or Settings()
    names = [worker_name(url) for url in urls]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is named twice; name each engine once")
    clients = [WorkerClient(url, api_key=settings.api_key, timeout_s=settings.timeout_s) for url in urls]
    slots = asyncio.Semaphore(_AT_ONCE)
    fleet = {url: Facts() for url in urls}

    async def examined(url: str, client: WorkerClient) -> WorkerReport:
        async with slots:
            return WorkerReport(worker_name(url), await _examine_one(url, client, fleet[url], settings))

    reports = await asyncio.gather(*(examined(url, client) for url, client in zip(urls, clients, strict=True)))
    checks = check_fleet({worker_name(url): facts for url, facts in fleet.items() if facts.models})
    return Diagnosis(reports, checks + await check_router(settings))


async def _examine_one(url: str, client: WorkerClient, facts: Facts, settings: Settings) -> list[Check]:
    """Make the checks of one worker; a check that others build on ends them if it fails."""
    reachable = await check_reachable(client)
    if reachable.verdict == "fail":
        return [reachable]
    model = await check_model(client, facts, settings)
    if model.verdict == "fail":
        return [reachable, model]
    checks = [reachable, model]
    checks += await check_cache(client, facts, settings)
    checks.append(await check_events(client, facts, settings, url))
    checks += await _probe(url, client, facts, settings)
    await read_chats(client, facts)
    return [*checks, await check_template(client, facts, settings.tokenizer)]


async def _probe(url: str, client: WorkerClient, facts: Facts, settings: Settings) -> list[Check]:
    """Send the probes, with the worker's events if it has them."""
    if not facts.endpoints:
        return [*not_checked(), *await Prober(client, facts, settings, None).run()]
    with Stream(url, facts, settings) as stream:
        if not await stream.ready():
            return [*stream.unreachable(), *await Prober(client, facts, settings, None).run()]
        ranks: list[int | None] = [*sorted(facts.endpoints)] if len(facts.endpoints) > 1 else [None]
        probed = [await Prober(client, facts, settings, stream, rank).run() for rank in ranks]
        together = [of_ranks(dict(zip(ranks, checks, strict=True))) for checks in zip(*probed, strict=True)]
        await stream.watch()
        return [*stream.checks(), *together]
