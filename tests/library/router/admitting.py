"""Requests that come to an admission and wait there."""

from __future__ import annotations

import asyncio
from typing import Any

from cachelb import Admission, Decision, Router

LONG = 60.0
"""Seconds after which a wait that should have ended has failed."""


def make(*workers: str, requests: int | None = 1, tokens: int | None = None, **options: Any) -> Admission[str]:
    """Build an admission that holds for a minute, first come, first served."""
    of_router = {name: options.pop(name) for name in ("policy", "clock", "records") if name in options}
    router = Router(workers or ("a",), seed=1, **of_router)
    options = {"max_wait_s": LONG, "order": "fcfs", **options}
    return Admission(router, max_pending_requests=requests, max_pending_tokens=tokens, **options)


def prompt(number: int, tokens: int = 64) -> range:
    """Return tokens that no other prompt begins with."""
    return range(100_000 * number, 100_000 * number + tokens)


async def come(admission: Admission[str], count: int, **request: Any) -> asyncio.Task[Decision[str]]:
    """Let a request wait, as the `count`th."""

    async def acquire() -> Decision[str]:
        return await admission.acquire(**request)

    task = asyncio.create_task(acquire())
    async with asyncio.timeout(LONG):
        while len(admission) < count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    return task


async def settle() -> None:
    """Let called requests answer."""
    for _ in range(10):
        await asyncio.sleep(0)


async def served(tasks: list[asyncio.Task[Decision[str]]]) -> list[Decision[str]]:
    async with asyncio.timeout(LONG):
        return await asyncio.gather(*tasks)


async def acquire(admission: Admission[str], **request: Any) -> Decision[str]:
    """Await a decision, as a coroutine."""
    return await admission.acquire(**request)
