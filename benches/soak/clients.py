"""The clients: conversations that arrive at random times, some of which leave early, and their outcomes."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.soak.processes import Gateway

MOST_OPEN = 800
"""Requests open at once; requests beyond that are not sent, but counted. When something else takes the machine
for a minute, requests that came meanwhile would keep the gateways from ever catching up."""
OUTPUT_TOKENS = 24
_VOCABULARY = 128_000
_TEMPLATES, _TEMPLATE_TOKENS = 20, 512
_CONVERSATIONS, _TURNS, _TURN_TOKENS = 300, 8, 64
_GRACE_S = 120.0
_JSON = {"Content-Type": "application/json"}

Leaving = Literal["", "at once", "mid-stream"]


@dataclass
class Seen:
    """Outcomes at the clients.

    Attributes:
        outcomes: Requests by how they ended: a status, "torn", "left at once", "left mid-stream", "disconnected".
        first_s: Seconds to the first byte of each answer from when its request was due, by that moment.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    first_s: list[tuple[float, float]] = field(default_factory=list)


class Clients:
    """Sends requests to the gateways that take some.

    Args:
        gateways: The gateways.
        seed: Seed of all draws.
    """

    def __init__(self, gateways: Sequence[Gateway], *, seed: int = 1) -> None:
        self.gateways = gateways
        self.aborted = 0.0
        self.open: Counter[str] = Counter()
        self.seen = Seen()
        self._random = random.Random(seed)
        self._templates = [self._tokens(_TEMPLATE_TOKENS) for _ in range(_TEMPLATES)]
        self._conversations = [self._begin(self._random.randrange(_TURNS)) for _ in range(_CONVERSATIONS)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def offer(self, rate: float, seconds: float) -> None:
        """Send requests for some time; the last ones may still be open afterwards.

        Args:
            rate: Requests per second, at random times.
            seconds: For how long.
        """
        end_s = time.monotonic() + seconds
        next_s = time.monotonic()
        while (next_s := next_s + self._random.expovariate(rate)) < end_s:
            await asyncio.sleep(next_s - time.monotonic())
            taking = [gateway for gateway in self.gateways if gateway.taken]
            if len(self._tasks) >= MOST_OPEN or not taking:
                self.seen.outcomes["not sent"] += 1
                continue
            task = asyncio.create_task(self._request(self._random.choice(taking), next_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until no request is open."""
        async with asyncio.timeout(_GRACE_S):
            while self._tasks:
                await asyncio.wait(self._tasks)

    async def left(self, gateway: Gateway) -> None:
        """Wait until no request is open at a gateway.

        Args:
            gateway: Which; no new ones may be sent to it.
        """
        async with asyncio.timeout(_GRACE_S):
            while self.open[gateway.spec.kind]:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def wake(self, worker: str) -> None:
        """Send a worker a prompt past all gateways.

        Args:
            worker: Its address.
        """
        body = json.dumps({"prompt": self._tokens(_TURN_TOKENS), "max_tokens": 1}).encode()
        await self._play(worker, body, "", time.monotonic())

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, gateway: Gateway, due_s: float) -> None:
        body = {"prompt": self._prompt(), "max_tokens": OUTPUT_TOKENS, "stream": True}
        leaves: Leaving = ""
        if self._random.random() < self.aborted:
            leaves = "at once" if self._random.random() < 0.5 else "mid-stream"
        elif self._random.random() < 0.1:
            body["stream"] = False
        body["stream_options"] = {"include_usage": True} if body["stream"] else None
        self.open[gateway.spec.kind] += 1
        try:
            self.seen.outcomes[await self._play(gateway.url, json.dumps(body).encode(), leaves, due_s)] += 1
        finally:
            self.open[gateway.spec.kind] -= 1

    async def _play(self, url: str, body: bytes, leaves: Leaving, due_s: float) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        patience_s = self._random.uniform(0.0, 0.02) if leaves == "at once" else None
        try:
            asked = self._session.post(f"{url}/v1/completions", data=body, headers=_JSON)
            async with asyncio.timeout(patience_s), asked as answer:
                first = await answer.content.readany()
                self.seen.first_s.append((due_s, time.monotonic() - due_s))
                if leaves == "mid-stream" and answer.ok:
                    answer.close()
                    return "left mid-stream"
                whole = first + await answer.read()
                is_whole = "x-cachelb-worker" in answer.headers and whole.endswith((b"[DONE]\n\n", b"}"))
                outcome = str(answer.status) if is_whole or not answer.ok else "malformed"
        except TimeoutError:
            outcome = "left at once"
        except aiohttp.ClientPayloadError:
            outcome = "torn"
        except aiohttp.ClientError as error:
            outcome = f"disconnected: {type(error).__name__}"
        return outcome

    def _prompt(self) -> list[int]:
        """Continue a conversation by one turn, or begin another in its place."""
        at = self._random.randrange(_CONVERSATIONS)
        prompt = self._conversations[at]
        if len(prompt) >= _TEMPLATE_TOKENS + _TURNS * _TURN_TOKENS:
            prompt = self._begin(0)
        prompt = self._conversations[at] = prompt + self._tokens(_TURN_TOKENS)
        return prompt

    def _begin(self, turns: int) -> list[int]:
        return self._random.choice(self._templates) + self._tokens(turns * _TURN_TOKENS)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(_VOCABULARY) for _ in range(count)]
