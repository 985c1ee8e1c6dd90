"""A fleet of fake engines."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cachelb.common.arguments import whole
from cachelb_fakes.fleet.faults import Failing, Fault, FaultRates
from cachelb_fakes.fleet.options import EngineKind, PeerTier, WorkerOptions
from cachelb_fakes.fleet.replica import Replica, Shared
from cachelb_fakes.fleet.worker import FakeWorker
from cachelb_fakes.loop_thread import LoopThread
from cachelb_fakes.sockets import TcpAddress, UnixAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.cache_groups import CacheLayout
    from cachelb.events import Endpoint

_MOST_WORKERS = 4096


class FakeFleet(Failing):
    """Engine replicas that speak HTTP on loopback as vLLM and SGLang do, to test gateways with.

    Each worker serves ``/v1/completions``, ``/v1/chat/completions``, ``/v1/messages``, ``/v1/responses``,
    ``/v1/embeddings``, ``/v1/messages/count_tokens``, ``/tokenize``, ``/v1/models``, ``/version``, ``/health`` and
    ``/metrics``, has a prefix cache of its own, and fails on demand. A conversation is the same prompt through every
    API, and a response can be continued where it was made. A token is four bytes of UTF-8.
    The cache keeps the prompts' full blocks, least recently used first out; the last token of a prompt is always
    computed, as engines do. The answer is made up from the prompt and always ``max_tokens`` long.
    With ``tools`` it calls the first, or the one that ``tool_choice`` names. It is a text where the client has sent the
    result of a call since the last answer, unless ``tool_choice`` forces a call, and where ``tool_choice`` is "none".
    A request for prefill (``kv_transfer_params.do_remote_decode``) and the decode request made from its answer work as
    with vLLM's NixlConnector; a decode request that brings ``prompt_token_ids`` along is not tokenized again.

    Use it as a context manager, synchronous or not. The servers run in one thread with its own event loop; on exit
    no thread, socket or file is left.

    Args:
        workers: Workers to begin with.
        uds: Listen on unix sockets, ``unix:///path``, instead of TCP ports.
        first_port: TCP port of the first worker; the next ones follow. 0 for any that are free.
        seed: Seed of random faults: the n-th request to a worker meets the same fault in every run.
        engine: "vllm" or "sglang": whose metrics `/metrics` shows.
        models: Names that are served; the first is the base model, the others adapters whose cache is separate.
            None accepts every name as the base model.
        block_size: Tokens per block.
        kv_blocks: Blocks a worker's KV cache holds; a request that needs more is answered with 400.
        cache_groups: Cache groups of a hybrid model, such as one with sliding windows; ``block_size`` is then their
            greatest common divisor. Such an engine keeps blocks of prompts and answers, and finds and publishes them,
            group by group as vLLM does. None for full attention in every layer.
        peers: Host memory of each worker, from which others copy the blocks that a request names a source for:
            `remote_kv_source` and `kv_hint` of ``kv_transfer_params``, `kv_hints`, or the header of llm-d's sidecar.
        max_running: Requests a worker runs at once; more wait, first come first served. KV memory in use is reported
            and limits nothing.
        prefill_tps: Prompt tokens a worker computes per second, one prompt at a time.
        decode_tps: Output tokens a request gets per second.
        time_scale: Simulated time as a part of real time. 0 is no sleeping at all: a stream is sent before
            its client can give up, unless it stalls.
        default_max_tokens: Tokens of an answer if the request sets no limit.
        stream_interval: Tokens per event of a stream after the first, as vLLM's option of this name; more make
            streams cheaper.
        remember: Requests a worker remembers for `FakeWorker.requests`.
        kv_events: Publish the changes of the prefix caches as vLLM does: `kv_endpoint` tells where, `FakeWorker.events`
            is the publisher. Needs pyzmq and msgpack.
        kv_replay: Replay published batches, over a socket of its own.
        report_cached_tokens: Report cached tokens in the usage, as `--enable-prompt-tokens-details` does.

    Raises:
        TypeError: ``models`` is one string, or ``cache_groups`` no `CacheLayout`.
        ValueError: An argument is out of range.

    Example:
        >>> import json, urllib.request
        >>> from cachelb_fakes import FakeFleet
        >>> body = json.dumps({"prompt": "word" * 64, "max_tokens": 2}).encode()
        >>> with FakeFleet(2) as fleet:
        ...     url, json_type = f"{fleet.urls[0]}/v1/completions", {"Content-Type": "application/json"}
        ...     for _ in range(2):
        ...         with urllib.request.urlopen(urllib.request.Request(url, body, json_type)) as answer:
        ...             usage = json.load(answer)["usage"]
        ...         print(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
        ...     [worker.counts.finished for worker in fleet.workers]
        64 0
        64 48
        [2, 0]
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        uds: bool = False,
        first_port: int = 0,
        seed: int = 0,
        engine: EngineKind = "vllm",
        models: Sequence[str] | None = None,
        block_size: int = 16,
        kv_blocks: int = 4096,
        cache_groups: CacheLayout | None = None,
        peers: PeerTier | None = None,
        max_running: int = 256,
        prefill_tps: float = 20_000.0,
        decode_tps: float = 100.0,
        time_scale: float = 0.0,
        default_max_tokens: int = 16,
        stream_interval: int = 1,
        remember: int = 64,
        kv_events: bool = False,
        kv_replay: bool = True,
        report_cached_tokens: bool = True,
    ) -> None:
        given = locals()
        whole("workers", workers, 0, _MOST_WORKERS)
        self._first_workers = workers
        self._uds = uds
        self._first_port = whole("first_port", first_port, 0, 65_535)
        self._seed = seed
        self._options = WorkerOptions(**{each.name: given[each.name] for each in dataclasses.fields(WorkerOptions)})
        self._shared = Shared()
        self._workers: list[FakeWorker] = []
        self._replicas: dict[FakeWorker, Replica] = {}
        self._added = 0
        self._thread: LoopThread | None = None
        self._folder: Path | None = None

    # --- life ---

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a fleet runs once: make another one")
        self._thread = LoopThread("cachelb-fake-fleet")
        try:
            for _ in range(self._first_workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop every worker and the thread. The workers' counts stay readable. Idempotent."""
        if self._thread is None:
            return
        try:
            for replica in self._replicas.values():
                self._thread.wait(replica.stop())
        finally:
            self._thread.stop()
            for replica in self._replicas.values():
                replica.give_back()
            self._replicas.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    # --- workers ---

    @property
    def workers(self) -> list[FakeWorker]:
        """The workers there are, in the order they were added. A removed one is gone, and the next ones move up."""
        return list(self._workers)

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [worker.url for worker in self._workers]

    def kv_endpoint(self, url: str) -> Endpoint | None:
        """Return where a worker publishes KV cache events: `ZmqSource(endpoints=fleet.kv_endpoint)`.

        Args:
            url: Address of the worker.

        Returns:
            The endpoint, None if there is no such worker or it publishes none.
        """
        worker = next((worker for worker in self._workers if worker.url == url), None)
        return None if worker is None or worker.events is None else worker.events.endpoint

    def add_worker(self, **changes: Any) -> FakeWorker:  # noqa: ANN401 - the options of this class, of many types
        """Add a worker and start it.

        Args:
            changes: Options of this class, from ``engine`` on, that it does not share with the fleet.

        Returns:
            The worker.

        Raises:
            TypeError: There is no such option.
            ValueError: An option is out of range.
            RuntimeError: The fleet does not run.
        """
        thread = self._running()
        options = dataclasses.replace(self._options, **changes)
        name = f"w{self._added}"
        seed = f"{self._seed}/{name}"
        port = self._first_port + self._added if self._first_port else 0
        address = UnixAddress(self._socket_folder() / f"{name}.sock") if self._uds else TcpAddress(port)
        replica = thread.call(Replica, name, options, self._shared, seed, address)
        thread.wait(replica.start())
        worker = FakeWorker(replica, thread)
        self._added += 1
        self._replicas[worker] = replica
        self._workers.append(worker)
        return worker

    def remove_worker(self, worker: int | FakeWorker) -> FakeWorker:
        """Stop a worker for good and give its address back.

        Args:
            worker: The worker, or its place in `workers`.

        Returns:
            The worker, whose counts stay readable.
        """
        removed = self._find(worker)
        removed.stop()
        self._workers.remove(removed)
        self._replicas.pop(removed).give_back()
        return removed

    # --- faults ---

    def release(self) -> None:
        """Release the stalled requests."""
        for worker in self._workers:
            worker.release()

    def heal(self) -> None:
        """Forget every fault planned and every rate, and listen again everywhere."""
        self.set_rates()
        self._running().call(self._shared.plan.clear)
        for worker in self._workers:
            worker.heal()

    # --- waiting ---

    def wait_for(self, condition: Callable[[], object], *, timeout_s: float = 10.0) -> None:
        """Wait until a condition on the workers' counts holds; it is checked whenever one of them changes.

        From a coroutine, call it with ``asyncio.to_thread``.

        Args:
            condition: Called in the fleet's thread, such as ``lambda: fleet.workers[0].counts.open == 2``.
            timeout_s: Seconds to wait.

        Raises:
            TimeoutError: It still does not hold.
        """
        done = self._running().call(self._shared.watchers.add, condition)
        try:
            done.result(timeout_s)
        except TimeoutError:
            done.cancel()
            counts = {worker.name: worker.counts for worker in self._workers}
            raise TimeoutError(f"the condition does not hold after {timeout_s} s: {counts}") from None

    def _plan(self, fault: Fault, times: int | None) -> None:
        if fault.kind == "refuse" and times is None:
            for worker in self._workers:
                worker.fail("refuse")
        else:
            self._running().call(self._shared.plan.add, fault, times)

    def _use_rates(self, rates: FaultRates) -> None:
        self._running().call(setattr, self._shared, "rates", rates)

    def _find(self, worker: int | FakeWorker) -> FakeWorker:
        found = self._workers[worker] if isinstance(worker, int) else worker
        if found not in self._replicas:
            raise ValueError(f"{found!r} is not in this fleet, or was removed")
        return found

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("the fleet does not run: use it as a context manager")
        return self._thread

    def _socket_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="cachelb-"))
        return self._folder
