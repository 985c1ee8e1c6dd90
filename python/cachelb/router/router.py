"""The router: a fleet of workers, an index of their cached prefixes, their load, and a policy."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from cachelb._core import Router as NativeRouter
from cachelb.cache_groups import CacheLayout
from cachelb.common.arguments import listed, request_copy, require
from cachelb.common.moved import moved_member
from cachelb.common.secret import read as read_secret
from cachelb.decision import Decision, PairDecision
from cachelb.peers.groups import PeerGroups
from cachelb.policies.plan import Plan
from cachelb.router import forks, views
from cachelb.router.attachable import Sources
from cachelb.router.discovered import Discovered
from cachelb.router.policy import RouterPolicy
from cachelb.router.records import Records
from cachelb.router.settings import named_keywords, values_of
from cachelb.router.shared_caches import SharedCaches
from cachelb.router.shared_state import SharedState
from cachelb.router.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from typing import Literal, Self, Unpack

    from cachelb.admission import Admission
    from cachelb.bodies import RequestBodies
    from cachelb.common.secret import Secret
    from cachelb.events.sink import RouterEvents
    from cachelb.explanation import Explanation
    from cachelb.forward import Forward
    from cachelb.policies import PolicyLike
    from cachelb.router.attachable import Attachable, Sharing
    from cachelb.router.settings import Health, Pairs
    from cachelb.sources import LoadSink
    from cachelb.types import RequestArguments, RouterStats

W = TypeVar("W")

_log = logging.getLogger("cachelb.router")


class Router(NativeRouter[W]):
    """Routes requests over a fleet of registered workers.

    The router keeps one index of cached prefixes per model, the load of every worker, and the policy. Its memory is
    bounded, and no call blocks on the network. Safe to use from threads and from asyncio.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["http://gpu0:8000", "http://gpu1:8000"], seed=1)
        >>> with router.select_worker(tokens=range(1000)) as decision:
        ...     print(decision.reason, decision.matched_tokens)
        cold 0
        >>> again = router.select_worker(tokens=range(1000))
        >>> again.worker == decision.worker, again.matched_tokens
        (True, 992)
        >>> again.on_complete(cached_tokens=992)
    """

    @named_keywords
    def __new__(
        cls,
        workers: Iterable[W] = (),
        *,
        key: Callable[[W], str] | None = None,
        policy: PolicyLike = "adaptive",
        shadow: Sequence[PolicyLike] = (),
        pairs: Pairs | None = None,
        health: Health | None = None,
        block_size: int = 16,
        models: Mapping[str, int] | None = None,
        max_memory_mb: float | None = 256,
        bodies: RequestBodies | None = None,
        replicas: int = 1,
        seed: int | None = None,
        hash_seed: int | None = None,
        secret: str | Sequence[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Build the router.

        Args:
            workers: Workers to register, each with the defaults of `add_worker`.
            key: Function from a worker to its unique name, for workers without `.url` or `.id`, such as dicts.
            policy: Name of a policy, one of `cachelb.policies`, for its defaults; an object of its class;
                or your own object with `choose`, as `cachelb.policies.Policy` describes it.
            shadow: Policies that decide beside the first one; their picks are recorded, nothing is booked for them.
            pairs: How `select_pair` picks; None for the defaults of `Pairs`.
            health: When a worker is passed over, and how long its reports and bookings count; None for the defaults of
                `Health`.
            block_size: Tokens per block, as in the engines. It never changes, since callers may keep hashes of this
                size; an engine's own block size, once learned, is mapped to it (`load_sink`).
            models: Block sizes of models that have an index of their own.
            max_memory_mb: Megabytes (of 2**20 bytes) the block indexes of all models may use together, at least 1 and
                within 20 %; the least recently used blocks leave first. None leaves only the workers' own capacities.
            bodies: How request bodies are read; None for the defaults of `RequestBodies`.
            replicas: Routers that serve the same fleet; margins in requests shrink by it.
            seed: Seed of tie-breaking and exploration; the same seed and calls give the same picks. None draws one.
            hash_seed: Seed of the block hashes and of policies that pick by hash; routers that must agree share it.
                None derives it from `secret`; without a secret it is `seed`, or random.
            secret: Text of 16 characters or more that all routers of the fleet share, or the new one and those before
                it, to rotate it while they run. None reads the variable `CACHELB_SECRET`. With it, adapters, salts and
                models are kept apart in the same way everywhere; without one a key is drawn per process. Required to
                share state and for snapshots.
            clock: Function that returns monotonic seconds; None is the system's.

        Returns:
            The router.

        Raises:
            TypeError: An argument has the wrong type, or there is none of that name; the message names its object.
            ValueError: An argument is outside its range, there is no such policy, or two workers have the same key.
        """
        pair_settings = values_of("pairs", pairs)
        secrets = read_secret(secret)
        if hash_seed is None and secrets:
            hash_seed = secrets[0].hash_seed
        elif hash_seed is None:
            hash_seed = int.from_bytes(os.urandom(7)) if seed is None else seed
        if seed is None:
            seed = int.from_bytes(os.urandom(7))
        halves = {half: pair_settings.pop(half) for half in ("prefill", "decode")}
        plan = Plan(policy, **halves, shadow=shadow, replicas=replicas)
        settings = {
            "seed": seed,
            "hash_seed": hash_seed,
            "namespace_key": secrets[0].namespace_key if secrets else None,
            "max_memory_mb": max_memory_mb,
            "bodies": values_of("bodies", bodies),
            "needs": plan.needs,
            **values_of("health", health),
            **pair_settings,
        }
        if not isinstance(models, Mapping | None):
            raise TypeError(f"models must be a mapping of names to block sizes, not {type(models).__name__}")
        pools = [plan.pool(None, block_size)]
        pools += [plan.pool(model, size) for model, size in (models or {}).items()]
        router = super().__new__(cls, pools, settings, customs=plan.customs, key=key, clock=clock)
        router._plan = plan
        router._block_size = block_size
        router._secrets = secrets
        router._sources = Sources()
        router.discovered = Discovered()
        router._waiting = Waiting()
        router._pid = os.getpid()
        router._forgotten = 0
        forks.watch(router)
        router.sync_workers(workers)
        return router

    _plan: Plan
    _block_size: int
    _secrets: tuple[Secret, ...]
    _sources: Sources
    _waiting: Waiting
    _pid: int
    _forgotten: int | None
    _exchange: Sharing | None = None

    discovered: Discovered
    """The workers that sources of discovery registered."""

    @property
    def policy(self) -> RouterPolicy:
        """The policy: its name, its shadows, and what it has learned."""
        return RouterPolicy(self._plan, self._fleet)

    # --- fleet ---

    def add_worker(
        self,
        worker: W,
        *,
        weight: float = 1.0,
        role: Literal["both", "prefill", "decode"] = "both",
        dp_size: int = 1,
        models: Iterable[str] = (),
        gpu: str | None = None,
        kv_blocks: int | None = None,
        slow_start_s: float = 0.0,
        cache_layout: CacheLayout | Mapping[str, Any] | None = None,
    ) -> None:
        """Register a worker, or update a registered one; its cached prefixes and load stay.

        Args:
            worker: Your object, which decisions return.
            weight: Relative capacity, of each rank.
            role: "prefill" and "decode" workers serve one half of `select_pair`; "decode" serves whole requests too.
            dp_size: Data-parallel ranks that take requests on their own; decisions then carry `dp_rank`.
            models: Models it serves; none means all. A model named here gets an index of its own.
            gpu: Name of its GPU model, for policies that learn.
            kv_blocks: Blocks its KV cache holds, as its engine counts them, until a load source reports the number;
                None keeps the known value, at first `max_blocks_per_worker`.
            slow_start_s: Seconds its weight takes to rise from a quarter to full.
            cache_layout: The cache groups of its engine, for a hybrid model without KV events, or with ones that leave
                groups out (`CacheLayout.announced`), and for an engine that drafts with EAGLE or MTP; other events tell
                them. An object, or a table as `CacheLayout.of` reads it. None keeps the known value, at first full
                attention alone.

        Raises:
            TypeError: The worker has no key, or an argument has the wrong type.
            ValueError: An argument is outside its range.
        """
        given = {**locals()}
        del given["self"]
        given["cache_layout"] = None if cache_layout is None else asdict(CacheLayout.of(cache_layout))
        given["models"] = names = [models] if isinstance(models, str) else listed("models", models)
        for name in names:
            require("models", name, str, "names")
        self._open_models(names)
        self._fleet.add(worker, given)

    def _open_models(self, names: Iterable[str]) -> None:
        for model in names:
            if model not in self._fleet.models():
                self._fleet.add_pool(self._plan.pool(model, self._block_size))

    def sync_workers(self, workers: Iterable[W]) -> None:
        """Make the registered workers exactly these: new ones are added, missing ones removed, others kept as they are.

        Workers that a source of `cachelb_gateway.discovery` registered, and still finds, stay beside them.

        Args:
            workers: The workers now.

        Raises:
            TypeError: A worker has no key.
            ValueError: Two workers have the same key; nothing was changed then.
        """
        given, keys = self._fleet.named(workers)
        now = dict(zip(keys, given, strict=True))
        if len(now) < len(given):
            twice = Counter(keys).most_common(1)[0][0]
            raise ValueError(f"worker key {twice!r} occurs twice in `workers`; keys must be unique")
        known = set(self.keys())
        for key in known - now.keys() - self.discovered.found():
            self.remove_worker(key)
        for key, worker in now.items():
            if key not in known:
                self._fleet.add(worker, name=key)
            else:
                self._fleet.replace_object(key, worker)

    # --- selection ---

    def select_pair(self, *, dry_run: bool = False, **request: Unpack[RequestArguments]) -> PairDecision[W]:
        """Pick a worker for prefill and one for decode, and book both or neither.

        Under `adaptive`, with no policy set for either role, the prompt is computed where that costs the least: on the
        decode worker itself, or on a prefill worker with the transfer of the blocks that the decode worker lacks. The
        cheapest of all pairs and all decode workers alone is taken; every score is in milliseconds. Under other
        policies each role has its own, and `Pairs.uncached_token_threshold` decides who computes the prompt.

        Args:
            dry_run: Return what the next call would pick, and change nothing.
            **request: As for `select_worker`.

        Returns:
            The pair; its `prefill` is None if the decode worker does the prefill too.

        Raises:
            NoWorkerAvailable: No worker can decode, or none can prefill and `Pairs.fallback` is off.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> from cachelb import Router
            >>> router = Router(seed=1, clock=lambda: 0.0)
            >>> router.add_worker("p0", role="prefill")
            >>> router.add_worker("d0", role="decode")
            >>> first = router.select_pair(tokens=range(4096))
            >>> first.prefill is None, first.decode.reason
            (True, 'local-decode')
            >>> first.on_tokens(1)  # it generates now, and a prompt beside it would delay it
            >>> second = router.select_pair(tokens=range(4096, 8192))
            >>> second.prefill.worker, second.decode.worker
            ('p0', 'd0')
        """
        return PairDecision(*self._select_pair(dry_run=dry_run, **request), self)

    async def select_worker_when_ready(self, *, timeout_s: float, **request: Unpack[RequestArguments]) -> Decision[W]:
        """Pick a worker as soon as one is available.

        Waiting calls are served by `priority`, then in order of arrival. A cancelled call books nothing.

        Args:
            timeout_s: How long to wait; 0 fails at once.
            **request: As for `select_worker`.

        Returns:
            The decision.

        Raises:
            NoWorkerAvailable: No worker became available in time.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        return await self._waiting.select(self, timeout_s, request)

    def forward(
        self,
        send: Callable[[Decision[W]], Awaitable[Any]],
        *,
        attempts: int = 3,
        wait_s: float = 0.0,
        first_byte_timeout_s: float | None = None,
        left: Callable[[], Awaitable[object]] | None = None,
        admission: Admission[W] | None = None,
        **request: Unpack[RequestArguments],
    ) -> Forward[Decision[W]]:
        """Send a request to a worker, and report its answer: the whole life of a request in a gateway.

        A worker that fails before its first byte, or answers 429, 500 or above, is passed over for another one; the
        last attempt counts. First token, tokens, usage and end are read from the bytes as they pass. A cancelled task
        and a dropped answer cancel the request and stop the engine. `cachelb.forward.Forward` does it for pairs.

        It raises those of `send`, `NoWorkerAvailable`, `Overloaded` of an `admission` and `cachelb.forward.ClientLeft`;
        `cachelb.forward.refusal` turns them into an answer.

        Args:
            send: Coroutine function that sends the request to `decision.worker`, with `decision.headers`, and returns
                the response when its head is there: one of httpx (`stream=True`), aiohttp, or an object like these.
            attempts: Workers to try.
            wait_s: Seconds to wait for a worker that can be picked, without an `admission`.
            first_byte_timeout_s: Seconds within which a worker must begin to answer; None leaves it to `send`.
            left: Coroutine function that returns once the client has left, such as Starlette's `request.receive`;
                watched until the answer begins, or, with ``async with``, until the block ends.
            admission: Selects in place of the router, which may hold the request, or refuse it.
            **request: As for `select_worker`.

        Returns:
            The request, to be awaited or entered with ``async with`` for its `cachelb.forward.Answer`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> import asyncio
            >>> from types import SimpleNamespace
            >>> from cachelb import Router
            >>> async def chunks():
            ...     yield b'{"usage": {"prompt_tokens": 64, "completion_tokens": 2}}'
            >>> async def send(decision):  # a response of aiohttp has these members
            ...     content = SimpleNamespace(iter_any=chunks)
            ...     return SimpleNamespace(status=200, headers={}, content=content, close=list)
            >>> async def answer(router):
            ...     async with router.forward(send, tokens=range(64)) as answer:
            ...         return answer.status, [chunk async for chunk in answer]
            >>> asyncio.run(answer(Router(["gpu0"])))[0]
            200
        """
        from cachelb.forward import Forward

        def select() -> Awaitable[Decision[W]]:
            if admission is not None:
                return admission.acquire(**request)
            return self.select_worker_when_ready(timeout_s=wait_s, **request)

        return Forward(select, send, attempts=attempts, first_byte_timeout_s=first_byte_timeout_s, left=left)

    def select_batch(
        self,
        requests: Iterable[RequestArguments],
        *,
        max_per_worker: int | None = None,
        min_colocate_blocks: int = 0,
    ) -> list[Decision[W]]:
        """Pick workers for several requests in one step, keeping requests with a common prefix together.

        Requests are grouped by their leading blocks, larger groups first. Without `max_per_worker` the policy places
        each of them and sees those before it.

        Args:
            requests: The arguments of `select_worker` of each request.
            max_per_worker: Requests of one group that a worker takes before the next worker is chosen.
            min_colocate_blocks: Leading blocks that requests must share to be a group; at least the first.

        Returns:
            The decisions, in the order of the requests.

        Raises:
            NoWorkerAvailable: There is none for one of them; nothing is booked then.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["a", "b", "c", "d"], seed=1)
            >>> batch = router.select_batch([{"tokens": range(64)}] * 8, max_per_worker=4)
            >>> sorted(router.loads().values())
            [0, 0, 4, 4]
        """
        return self._select_batch(
            [request_copy(request) for request in listed("requests", requests)],
            max_per_worker=max_per_worker,
            min_colocate_blocks=min_colocate_blocks,
        )

    def reserve(
        self, worker: W | str, *, track_prefill_tokens: bool = True, **request: Unpack[RequestArguments]
    ) -> Decision[W]:
        """Book a request on the worker that another selector picked for it, and record the placement.

        The counterpart of a selector's `select_and_reserve`, by which its peers replay what it picked: load and cached
        prefixes are the same as if this router had picked the worker. `Decision.reservation` has the arguments.

        Args:
            worker: The worker or its key.
            track_prefill_tokens: Whether the worker computes the prompt. False for a decode worker that receives it
                from a prefill worker.
            **request: As for `select_worker`, without `among` and `exclude`.

        Returns:
            The decision, which owns the booked load. Its `retry()` finds no other worker.

        Raises:
            UnknownWorkerError: The worker is not registered.
            NoWorkerAvailable: It takes no requests now, or not this one; the error has the reason.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> from cachelb import Router
            >>> from cachelb.index import hash_blocks
            >>> router = Router(["gpu0", "gpu1"], hash_seed=1)
            >>> decision = router.reserve("gpu1", blocks=hash_blocks(range(64), seed=1), prompt_tokens=64)
            >>> decision.on_complete()
            >>> router.select_worker(tokens=range(64)).worker
            'gpu1'
        """
        if not isinstance(track_prefill_tokens, bool):
            raise TypeError(f"track_prefill_tokens must be a bool, not {type(track_prefill_tokens).__name__}")
        for name in ("among", "exclude"):
            if request.get(name) is not None:
                raise TypeError(f"reserve() books the worker it is given: leave out {name}=")
        return self._reserve(worker, track_prefill_tokens, **request)

    def explain(self, **request: Unpack[RequestArguments]) -> Explanation:
        """Explain the worker `select_worker` would pick now, with its view of every worker. Changes nothing.

        Args:
            **request: As for `select_worker`.

        Returns:
            The explanation.

        Raises:
            NoWorkerAvailable: No worker can be picked.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        return self._explain(**{"by_load": True, **request})

    # --- state and life ---

    def stats(self) -> RouterStats:
        """Read every counter. Adds no cost per request.

        Returns:
            The counters and the state of every worker.
        """
        self._use()
        return views.stats(self)

    @property
    def records(self) -> Records:
        """The records of finished requests."""
        return Records(self.policy, self._fleet)

    @property
    def shared_caches(self) -> SharedCaches:
        """The caches that workers of a model can read, such as a Mooncake store."""
        return SharedCaches(self._fleet)

    @property
    def peer_groups(self) -> PeerGroups:
        """The groups of workers that copy cached blocks from each other."""
        return PeerGroups(self._fleet)

    @property
    def event_sink(self) -> RouterEvents:
        """The receiver of KV events, for a source of your own."""
        return self._fleet

    @property
    def load_sink(self) -> LoadSink:
        """The receiver of load, health and facts of the workers' engines, for a source of your own."""
        return self._fleet

    @property
    def shared_state(self) -> SharedState:
        """The state that routers share, for snapshots and for a transport of your own."""
        return SharedState(self)

    def attach(self, source: Attachable) -> None:
        """Start a source of load, events or shared state, and stop it with the router.

        Its thread keeps the router alive: close a router that is no longer used, or detach its sources.

        Args:
            source: An object with `start(router)` and `stop()`.
        """
        self._use()
        self._sources.attach(source, self)

    def detach(self, source: Attachable) -> None:
        """Stop a source.

        Args:
            source: One that was attached.

        Raises:
            ValueError: It is not attached.
        """
        self._sources.detach(source)

    def close(self) -> None:
        """Stop every source; the router itself needs no closing. Idempotent, from any thread."""
        self._sources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    if not TYPE_CHECKING:
        __getattr__ = moved_member

    def __repr__(self) -> str:
        return f"<Router policy={self.policy.name!r} workers={len(self.keys())}>"

    def _forked(self) -> None:
        """Drop the parent's state, and nothing more: most children only run another program and must start fast."""
        self._forgotten = self._fleet.after_fork()
        self._pid = os.getpid()
        self._waiting = Waiting()
        self.discovered = self.discovered.in_child()

    def _begin_in_child(self) -> None:
        """Start the sources' threads, which a fork does not copy: the child uses the router."""
        forgotten = self._forgotten
        what = "an empty state" if forgotten is None else f"an empty book ({forgotten} requests stay with the parent)"
        _log.warning("process %d was forked: its router starts with %s", self._pid, what)
        self._sources.start_in_child(self)
