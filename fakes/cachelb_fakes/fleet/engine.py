"""The engine behind a worker: slots, a prefix cache, and the time that computing takes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cachelb_fakes.fleet.faults import FaultPlan, Pull
from cachelb_fakes.fleet.prefix_cache import HostMemory, Kept, PrefixCache

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from cachelb._core import Namespace
    from cachelb_fakes.fleet.apis.responses import StoredResponse
    from cachelb_fakes.fleet.counts import Counts, Watchers
    from cachelb_fakes.fleet.options import WorkerOptions

_MAX_TRANSFERS: Final = 4096


@dataclass(slots=True)
class Job:
    """One request in the engine."""

    tokens: npt.NDArray[np.uint32]
    max_tokens: int
    namespace: Namespace | None  # adapter and salt
    salt: str | None = None  # the salt alone
    cached_tokens: int = 0  # prompt tokens found in the cache, once it was looked up
    inside: bool = False  # holds a slot
    kept: Kept | None = None  # its blocks, where they are in use until it ends
    source: str | None = None  # the address to copy blocks from
    pulled_blocks: int = 0  # leading blocks that are here once they are copied


class Engine:
    """One engine process. Runs in the fleet's thread only.

    `counts` are the worker's and outlive the engine.
    """

    def __init__(
        self,
        engine_id: str,
        options: WorkerOptions,
        counts: Counts,
        watchers: Watchers,
        publish: Callable[[list[dict[str, Any]]], object] | None = None,
    ) -> None:
        self.engine_id = engine_id
        self.options = options
        self.running = self.waiting = self.blocks_in_use = 0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.start_s = time.time()
        self.responses: dict[str, StoredResponse] = {}  # by id; vLLM never removes one
        self._counts = counts
        self._watchers = watchers
        self._slots = asyncio.Semaphore(options.max_running)
        self._prefill = asyncio.Lock()
        peers = options.peers
        self.host_memory = None if peers is None else HostMemory(peers.blocks, publish)
        self.pull_faults: FaultPlan[Pull] = FaultPlan()
        self.cache = PrefixCache(
            engine_id if peers is None else peers.hash_seed,
            block_size=options.block_size,
            max_blocks=options.kv_blocks,
            publish=publish,
            layout=options.cache_groups,
        )
        self._transfers: dict[str, int] = {}

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that running requests use."""
        return min(1.0, self.blocks_in_use / self.options.kv_blocks)

    async def enter(self, job: Job) -> None:
        """Wait for a slot, first come first served."""
        if self._slots.locked():
            self.waiting += 1
            self._counts.waiting += 1
            self._watchers.notify()
            try:
                await self._slots.acquire()
            finally:
                self.waiting -= 1
                self._counts.waiting -= 1
        else:
            await self._slots.acquire()
        job.inside = True
        self.running += 1
        self.blocks_in_use += self._blocks(job)
        counts = self._counts
        counts.running += 1
        counts.peak_running = max(counts.peak_running, counts.running)
        self._watchers.notify()

    def leave(self, job: Job) -> None:
        """Give the slot back. Idempotent."""
        if not job.inside:
            return
        job.inside = False
        self.running -= 1
        self.blocks_in_use -= self._blocks(job)
        self._counts.running -= 1
        if job.kept is not None:
            self.cache.release(job.kept)
            job.kept = None
        self._slots.release()

    async def prefill(self, job: Job, remote: Engine | None = None, source: Engine | None = None) -> None:
        """Look the prompt up in the cache and compute the rest, one prompt at a time.

        `remote` is the engine that computed the prompt already, for a request that decodes only; `source` the one that
        is up at the address that the job names.
        """
        options = self.options
        if remote is not None:
            # All but the last token, which every engine computes itself to have something to sample from.
            job.cached_tokens = max(0, len(job.tokens) - 1)
            self._counts.remote_prefills += 1
            self._keep(job)
            return
        if job.source is not None:
            await self._pull(job, source)
        if options.time_scale:
            async with self._prefill:
                self._look_up(job)
                uncached = len(job.tokens) - job.cached_tokens
                await asyncio.sleep(uncached / options.prefill_tps * options.time_scale)
                self._keep(job)
        else:
            self._look_up(job)
            self._keep(job)

    async def _pull(self, job: Job, source: Engine | None) -> None:
        """Copy the blocks that this engine lacks from another one; others are computed meanwhile."""
        peers = self.options.peers
        if peers is None or source is self:
            return
        self._look_up(job)
        block, names = self.options.block_size, self._names(job)
        start = job.cached_tokens // block
        fault = None if source is None else source.pull_faults.take()
        if source is None or source.host_memory is None or (fault is not None and fault.kind == "stall"):
            self._counts.missed_pulls += 1
            await asyncio.sleep(peers.timeout_s * self.options.time_scale)
            return
        if fault is not None and fault.kind == "evict":
            source.host_memory.clear()
        end = source.host_memory.run_end(names, start)
        if fault is not None and fault.kind in {"miss", "short"}:
            end = min(end, start + fault.blocks)
        if end == start:
            self._counts.missed_pulls += 1
            return
        copied_ms = peers.startup_ms + (end - start) * block * peers.ms_per_token
        await asyncio.sleep(copied_ms / 1e3 * self.options.time_scale)
        job.pulled_blocks = end
        self._counts.pulled_tokens += (end - start) * block

    async def decode(self, tokens: int) -> None:
        """Generate tokens."""
        await asyncio.sleep(tokens / self.options.decode_tps * self.options.time_scale)
        self.output_tokens += tokens
        self._counts.output_tokens += tokens

    def keep_answer(self, job: Job, answer: list[int]) -> None:
        """Keep the blocks that an answer fills, as engines with several cache groups do here."""
        if job.kept is not None:
            self.cache.extend(job.kept, answer)

    def start_transfer(self, request_id: str, job: Job) -> dict[str, Any]:
        """Keep a computed prompt for the worker that will decode it; return its ``kv_transfer_params``."""
        if len(self._transfers) >= _MAX_TRANSFERS:
            del self._transfers[next(iter(self._transfers))]
        blocks = -(-len(job.tokens) // self.options.block_size)
        self._transfers[request_id] = blocks
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(blocks)),
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }

    def take_transfer(self, request_id: object) -> bool:
        """Remove a prompt kept by `start_transfer`; return whether it was there."""
        return isinstance(request_id, str) and self._transfers.pop(request_id, None) is not None

    def _blocks(self, job: Job) -> int:
        return -(-(len(job.tokens) + job.max_tokens) // self.options.block_size)

    def _names(self, job: Job) -> list[int]:
        """Name the blocks of a prompt that can be found: all but that of the last token."""
        names: list[int] = self.cache.names(job.tokens, job.namespace).tolist()
        return names[: (len(job.tokens) - 1) // self.options.block_size]

    def _look_up(self, job: Job) -> None:
        job.cached_tokens = self.cache.look_up(job.tokens, job.namespace)
        if self.host_memory is not None:
            block = self.options.block_size
            held = max(job.cached_tokens // block, job.pulled_blocks)
            job.cached_tokens = self.host_memory.run_end(self._names(job), held) * block

    def _keep(self, job: Job) -> None:
        job.kept = self.cache.keep(job.tokens, job.namespace, job.salt)
        if self.host_memory is not None:
            self.host_memory.keep(self.cache.names(job.tokens, job.namespace).tolist())
        self.prompt_tokens += len(job.tokens)
        self.cached_tokens += job.cached_tokens
        self._counts.prompt_tokens += len(job.tokens)
        self._counts.cached_tokens += job.cached_tokens
