"""Admission: refusing requests in time, or holding them a little, where every worker has as much to do as it can.

Above nine tenths of a fleet's capacity, prompts pile up before every worker, whichever is picked, and all requests are
late. An `Admission` refuses what would only wait, so that the others are in time; with `max_wait_s` it holds requests
for a moment first, and releases them by priority, tenant and order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from cachelb._core import AdmissionGate
from cachelb.common.arguments import number, require, seconds, whole
from cachelb.decision import PairDecision
from cachelb.errors import NoWorkerAvailable, Overloaded
from cachelb.router.holding import Hold
from cachelb.stats.admission import BandStats, read_bands

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import TracebackType
    from typing import Unpack

    from cachelb._core import Decision
    from cachelb.router import Router
    from cachelb.types import RequestArguments

W = TypeVar("W")
D = TypeVar("D", bound=AbstractContextManager[Any, Any])

Order = Literal["fcfs", "edf", "shortest-uncached"]
"""How requests of one priority and tenant follow each other."""

_ORDERS: tuple[Order, ...] = ("fcfs", "edf", "shortest-uncached")
_MOST_REQUESTS = (1 << 32) - 1
_MOST_TOKENS = 1 << 40
_MOST_QUEUED = 1_000_000
_MOST_TENANTS = 10_000


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Checked options of an `Admission`; they are described with its arguments.

    Example:
        >>> from cachelb.admission import AdmissionOptions
        >>> AdmissionOptions(max_wait_s=0.5).order
        'shortest-uncached'
    """

    max_pending_requests: int | None = None
    max_pending_tokens: int | None = 4096
    max_wait_s: float | None = 1.5
    order: Order = "shortest-uncached"
    ageing_tokens_per_s: int = 2000
    fairness: Literal["vtc"] | None = None
    tenant_weights: Mapping[str, float] | None = None
    max_queued: int = 5000
    notice_lag_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if self.max_pending_requests is not None:
            whole("max_pending_requests", self.max_pending_requests, 1, _MOST_REQUESTS)
        if self.max_pending_tokens is not None:
            whole("max_pending_tokens", self.max_pending_tokens, 1, _MOST_TOKENS)
        if self.max_pending_requests is None and self.max_pending_tokens is None:
            raise ValueError("max_pending_requests and max_pending_tokens are both None: nothing would be refused")
        if self.max_wait_s is not None:
            seconds("max_wait_s", self.max_wait_s, least=0.0)
        if self.order not in _ORDERS:
            raise ValueError(f"order must be one of {', '.join(map(repr, _ORDERS))}, got {self.order!r}")
        whole("ageing_tokens_per_s", self.ageing_tokens_per_s, 0, _MOST_TOKENS)
        if self.fairness not in (None, "vtc"):
            raise ValueError(f"fairness must be None or 'vtc', got {self.fairness!r}")
        weights = self.tenant_weights or {}
        require("tenant_weights", weights, dict, "a dict of tenants and numbers")
        if len(weights) > _MOST_TENANTS:
            raise ValueError(f"tenant_weights must be of {_MOST_TENANTS} tenants at most, got {len(weights)}")
        for tenant, weight in weights.items():
            require("a tenant", tenant, str, "a str")
            number("a tenant's weight", weight, above=0.0, most=1e6)
        if weights and self.fairness is None:
            raise ValueError("tenant_weights have no effect without fairness='vtc'")
        whole("max_queued", self.max_queued, 1, _MOST_QUEUED)
        number("notice_lag_s", self.notice_lag_s, least=0.0, most=60.0)

    def native(self, routers: int = 1) -> dict[str, Any]:
        """Return the settings of an `AdmissionGate` of one of so many routers, and `max_wait_s`."""
        weights = dict(self.tenant_weights or {})
        return {**asdict(self), "is_fair": self.fairness is not None, "tenant_weights": weights, "routers": routers}


@dataclass(frozen=True, slots=True)
class AdmissionPreview:
    """Prospects of the next request.

    Attributes:
        held: Whether it would be held, or refused if the admission holds nothing.
        requests_before: Requests of its priority and above that wait.
        tokens_before: Tokens of their prompts.
        expected_wait_s: Seconds until its turn, by how fast workers computed prompts before.
        why: "room", or what stands in its way.
    """

    held: bool
    requests_before: int
    tokens_before: int
    expected_wait_s: float
    why: str

    def __str__(self) -> str:
        """Return a summary of one line."""
        if not self.held:
            return "goes at once"
        return f"queued behind {self.requests_before}, about {self.expected_wait_s:.1f} s"


class Admission(Generic[W]):
    """Selects workers of a router as long as one of them has room, and holds or refuses requests else.

    A worker has room while the requests that this router booked there and that have no first token are fewer than
    ``max_pending_requests``, and their uncached prompt tokens fewer than ``max_pending_tokens``, both times the
    worker's `weight`. A worker on which nothing is pending has room for a prompt of any length. First tokens must be
    reported, by `Decision.track` or `Decision.on_first_token`. Requests that are selected without an `Admission` count
    too, and are not refused.

    Reports of engines are not consulted: they come too late, and requests that are admitted meanwhile would pile up.
    The policy picks among all workers, not only among those with room: it weighs queues against prefixes already.

    A request that finds no room, or others of its priority that wait, waits for at most `max_wait_s`. A first token, an
    end, or a worker that joins releases the next one: of the highest priority; with ``fairness="vtc"`` of the tenant
    that was served least; then by `order`. One that cannot use the workers with room, as it is pinned to another, is
    passed over and blocks no other. The order holds among the requests of one event loop, and among threads.

    Attributes:
        router: The router that picks.
        options: Its options.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0", "gpu1"], seed=1)
        >>> admission = cachelb.Admission(router, max_pending_tokens=4096)
        >>> first, second = (admission.acquire_nowait(tokens=range(n, n + 8192)) for n in (0, 8192))
        >>> try:
        ...     admission.acquire_nowait(tokens=range(100))
        ... except cachelb.Overloaded as error:
        ...     print(error.status, error.headers)
        429 {'retry-after': '2'}
        >>> first.on_first_token()
        >>> admission.acquire_nowait(tokens=range(100)).worker == first.worker
        True
    """

    __slots__ = ("_gate", "options", "router")

    def __init__(
        self,
        router: Router[W],
        *,
        max_pending_requests: int | None = None,
        max_pending_tokens: int | None = 4096,
        max_wait_s: float | None = 1.5,
        order: Order = "shortest-uncached",
        ageing_tokens_per_s: int = 2000,
        fairness: Literal["vtc"] | None = None,
        tenant_weights: Mapping[str, float] | None = None,
        max_queued: int = 5000,
        notice_lag_s: float = 0.0,
    ) -> None:
        """Bound what may be pending on a worker, and how long requests wait for room.

        Args:
            router: Picks the workers; it may have several admissions, of different bounds.
            max_pending_requests: Requests without a first token, per unit of a worker's weight; None for any number.
            max_pending_tokens: Their uncached prompt tokens, likewise: about what a worker computes within the time to
                first token that is still good. None for any number.
            max_wait_s: How long a request waits for room. 0 refuses at once, None waits for any time.
            order: How requests of one priority and tenant follow each other: "fcfs", first come, first served; "edf",
                earliest deadline first; "shortest-uncached", the one with the fewest tokens to compute on a worker with
                room first, as of then.
            ageing_tokens_per_s: With "shortest-uncached", the tokens that a second of waiting is worth; 0 starves long
                prompts.
            fairness: "vtc" lets the tenant go first that was served least: uncached prompt tokens and twice the output
                tokens, by virtual token counters. None takes no notice of tenants.
            tenant_weights: Shares of tenants, 1 for those not named.
            max_queued: Requests that may wait. One of a higher priority displaces the newest of the lowest.
            notice_lag_s: How long after a first token it is reported. As much as a worker computes in that time, by the
                first tokens of the last ten seconds, may be pending beyond the bounds, so that it does not run dry.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is out of range, or both bounds are None.
        """
        given = locals()
        self.options = AdmissionOptions(**{each.name: given[each.name] for each in fields(AdmissionOptions)})
        self.router = router
        self._gate = AdmissionGate(router, self.options.native(router.shared_state.replicas))

    def acquire_nowait(self, **request: Unpack[RequestArguments]) -> Decision[W]:
        """Pick a worker, or refuse the request at once.

        Room is looked at in the step that books the request, so that requests of other threads do not share it.

        Args:
            **request: As for `Router.select_worker`.

        Returns:
            The decision, which owns the booked load. Its `retry()` is not refused: the request was admitted.

        Raises:
            Overloaded: No worker that may be picked has room, or others wait for it.
            NoWorkerAvailable: None may be picked, busy or not.
            BodyError: As of `Router.select_worker`.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        return self._gate.select_now(False, **request)  # noqa: FBT003 - no preview

    def acquire(
        self, *, timeout_s: float | None = None, **request: Unpack[RequestArguments]
    ) -> Acquisition[Decision[W]]:
        """Pick a worker as soon as one has room; to be awaited, or entered with ``async with``.

        Leaving the block ends the request: completed, or failed with the exception that left it. A cancelled call
        books nothing.

        Args:
            timeout_s: A deadline of this request's own, before that of `max_wait_s`. None for none.
            **request: As for `Router.select_worker`; `priority` and `tenant` say when it is its turn.

        Returns:
            An object that is awaited or entered, and gives the decision.

        Raises:
            Overloaded: It waited too long, or may not wait.
            NoWorkerAvailable: None may be picked, busy or not, until the end of its time.
            BodyError: As of `Router.select_worker`.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> import asyncio
            >>> import cachelb
            >>> router = cachelb.Router(["gpu0"])
            >>> admission = cachelb.Admission(router, max_pending_requests=1, max_wait_s=1.5)
            >>> async def answer():
            ...     async with admission.acquire(tokens=range(100)) as decision:
            ...         return decision.worker
            >>> asyncio.run(answer())
            'gpu0'
        """
        return Acquisition(self._hold(request, timeout_s), None)

    def acquire_pair(
        self, *, timeout_s: float | None = None, **request: Unpack[RequestArguments]
    ) -> Acquisition[PairDecision[W]]:
        """Pick a prefill and a decode worker as soon as one that computes prompts has room; as `acquire` otherwise.

        Where no worker can compute prompts for others, and the router has `Pairs.fallback`, nothing is bounded.

        Args:
            timeout_s: A deadline of this request's own, before that of `max_wait_s`. None for none.
            **request: As for `Router.select_pair`.

        Returns:
            An object that is awaited or entered, and gives the pair.

        Raises:
            Overloaded: It waited too long, or may not wait.
            NoWorkerAvailable: None may be picked, busy or not.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        hold = self._hold(request, timeout_s, is_pair=True)
        return Acquisition(hold, lambda pair: PairDecision(pair[0], pair[1], self.router))

    def acquire_sync(self, *, timeout_s: float | None = None, **request: Unpack[RequestArguments]) -> Decision[W]:
        """Pick a worker as soon as one has room, in the calling thread.

        Args:
            timeout_s: A deadline of this request's own, before that of `max_wait_s`. None for none.
            **request: As for `Router.select_worker`; `priority` and `tenant` say when it is its turn.

        Returns:
            The decision, which owns the booked load.

        Raises:
            Overloaded: It waited too long, or may not wait.
            NoWorkerAvailable: None may be picked, busy or not, until the end of its time.
            BodyError: As of `Router.select_worker`.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        decision: Decision[W] = self._hold(request, timeout_s).wait_sync()
        return decision

    def explain(self, **request: Unpack[RequestArguments]) -> AdmissionPreview:
        """Return the prospects of a request with these arguments, and change nothing.

        Args:
            **request: As for `Router.select_worker`.

        Returns:
            Whether it would be held, and behind which requests.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.

        Example:
            >>> import cachelb
            >>> router = cachelb.Router(["gpu0"])
            >>> admission = cachelb.Admission(router, max_pending_requests=1, max_wait_s=1.5)
            >>> print(admission.explain(tokens=range(100)))
            goes at once
        """
        requests, tokens, drain_s = self._gate.before(request.get("priority", 0))
        try:
            self._gate.select_now(True, **request)  # noqa: FBT003 - a preview
        except NoWorkerAvailable as error:
            why = error.reason if isinstance(error, Overloaded) else str(error)
            wait_s = drain_s + (error.room_in_s if isinstance(error, Overloaded) else error.retry_after_s)
            return AdmissionPreview(
                held=True, requests_before=requests, tokens_before=tokens, expected_wait_s=wait_s, why=why
            )
        return AdmissionPreview(held=False, requests_before=0, tokens_before=0, expected_wait_s=0.0, why="room")

    def stats(self) -> tuple[BandStats, ...]:
        """Return what became of the requests of each priority, and how many of it wait."""
        return read_bands(self._gate.bands())

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._gate.waiting()[0]

    def close(self) -> None:
        """Refuse new requests from now on; waiting ones are still served. Idempotent, from any thread."""
        self._gate.close()

    def __repr__(self) -> str:
        return f"<Admission {len(self)} queued, {self.router!r}>"

    def _hold(self, request: RequestArguments, timeout_s: float | None, *, is_pair: bool = False) -> Hold:
        """Return what a request waits by."""
        own_s = None if timeout_s is None else seconds("timeout_s", timeout_s, least=0.0)
        most_s = self.options.max_wait_s
        is_own = own_s is not None and (most_s is None or own_s < most_s)
        return Hold(self._gate, request, own_s if is_own else most_s, is_own, is_pair=is_pair)


class Acquisition(Generic[D]):
    """A pending pick of a decision or a pair, for ``await`` or ``async with``."""

    __slots__ = ("_found", "_hold", "_made")

    def __init__(self, hold: Hold, made: Callable[[Any], D] | None) -> None:
        """Keep what to pick for; nothing happens yet. `made` makes the result of what was picked."""
        self._hold, self._made = hold, made
        self._found: D | None = None

    def __await__(self) -> Generator[Any, Any, D]:
        """Pick."""
        return self._acquire().__await__()

    async def __aenter__(self) -> D:
        """Pick."""
        self._found = await self._acquire()
        return self._found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the request."""
        if self._found is not None:
            self._found.__exit__(kind, error, traceback)

    async def _acquire(self) -> D:
        found = await self._hold.wait()
        decision: D = found if self._made is None else self._made(found)
        return decision
