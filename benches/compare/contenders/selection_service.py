"""The nearest alternative as a library: Dynamo's `SelectionService`, fed over ZeroMQ as in production."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from benches.structures.prompts import BLOCK

from cachelb_fakes import EventPublisher
from cachelb_fakes.events import stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.structures.prompts import Prompt

_FEED_S = 1.0


async def connected(addresses: Sequence[str]) -> Any:  # noqa: ANN401 - not installed where types are checked
    """Make a service that subscribes to the events of one worker at each address."""
    from dynamo._core import SelectionService

    service = SelectionService(indexer_threads=1)
    for worker, address in enumerate(addresses):
        await service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": "m",
                "block_size": BLOCK,
                "endpoint": f"http://w{worker}:8000",
                "kv_events_endpoints": {0: address},
            }
        )
    return service


class Service:
    """Reserves and frees, in an event loop of its own. Worker `i % workers` holds prompt `i`."""

    def __init__(self, workers: int, held: Sequence[Prompt]) -> None:
        """Connect the workers and publish their blocks."""
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.ExitStack()
        publishers = [self._stack.enter_context(EventPublisher()) for _ in range(workers)]
        addresses = [publisher.endpoint.address for publisher in publishers]
        self._service = self._loop.run_until_complete(connected(addresses))
        # Subscriptions take a moment to reach the publishers, and events to be applied.
        time.sleep(_FEED_S)
        for i, prompt in enumerate(held):
            names = [(i << 32) + at + 1 for at in range(len(prompt.tokens) // BLOCK)]
            publishers[i % workers].publish(stored(names, prompt.tokens[: len(names) * BLOCK]))
        time.sleep(_FEED_S)

    def select(self, prompt: Prompt) -> None:
        """Select, book and free."""
        self._loop.run_until_complete(self._select(prompt))

    async def _select(self, prompt: Prompt) -> None:
        request: dict[str, Any] = {"model_name": "m", "token_ids": prompt.tokens}
        picked = await self._service.select_and_reserve(request)
        await self._service.prefill_complete(picked["selection_id"])
        await self._service.free_reservation(picked["selection_id"])

    def close(self) -> None:
        """End it, and its publishers."""
        self._service.shutdown()
        self._stack.close()
        self._loop.close()
