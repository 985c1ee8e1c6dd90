"""Admission: refusing requests in time, where every worker has as much to do as it can within a bound.

Above nine tenths of a fleet's capacity, prompts pile up before every worker, whichever is picked, and all requests are
late. An `Admission` refuses what would only wait, so that the others are in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from cachelb.arguments import whole

if TYPE_CHECKING:
    from typing import Unpack

    from cachelb._core import Decision
    from cachelb.router import Router
    from cachelb.types import RequestArguments

W = TypeVar("W")

_MOST_REQUESTS = (1 << 32) - 1
_MOST_TOKENS = 1 << 40


class Admission(Generic[W]):
    """Selects workers of a router as long as one of them has room.

    A worker has room while the requests that this router booked there and that have no first token are fewer than
    ``max_pending_requests``, and their uncached prompt tokens fewer than ``max_pending_tokens``, both times the
    worker's `weight`. A worker on which nothing is pending has room for a prompt of any length. First tokens must be
    reported, by `Decision.track` or `Decision.on_first_token`. Requests that are selected without an `Admission` count
    too, and are not refused.

    Reports of engines are not consulted: they come too late, and requests that are admitted meanwhile would pile up.
    The policy picks among all workers, not only among those with room: it weighs queues against prefixes already.

    Attributes:
        router: The router that picks.
        max_pending_requests: Requests without a first token, per unit of a worker's weight; None for any number.
        max_pending_tokens: Their uncached prompt tokens, likewise.

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

    __slots__ = ("max_pending_requests", "max_pending_tokens", "router")

    def __init__(
        self,
        router: Router[W],
        *,
        max_pending_requests: int | None = None,
        max_pending_tokens: int | None = 8192,
    ) -> None:
        """Bound what may be pending on a worker.

        Args:
            router: Picks the workers; it may have several admissions, of different bounds.
            max_pending_requests: Requests without a first token, per unit of a worker's weight; None for any number.
            max_pending_tokens: Their uncached prompt tokens, likewise: about what a worker computes within the time to
                first token that is still good. None for any number.

        Raises:
            TypeError: A bound is not a whole number.
            ValueError: A bound is out of range, or both are None.
        """
        if max_pending_requests is not None:
            whole("max_pending_requests", max_pending_requests, 1, _MOST_REQUESTS)
        if max_pending_tokens is not None:
            whole("max_pending_tokens", max_pending_tokens, 1, _MOST_TOKENS)
        if max_pending_requests is None and max_pending_tokens is None:
            raise ValueError("max_pending_requests and max_pending_tokens are both None: nothing would be refused")
        self.router = router
        self.max_pending_requests = max_pending_requests
        self.max_pending_tokens = max_pending_tokens

    def acquire_nowait(self, **request: Unpack[RequestArguments]) -> Decision[W]:
        """Pick a worker, or refuse the request at once.

        Room is looked at in the step that books the request, so that requests of other threads do not share it.

        Args:
            **request: As for `Router.select_worker`.

        Returns:
            The decision, which owns the booked load. Its `retry()` is not refused: the request was admitted.

        Raises:
            Overloaded: No worker that may be picked has room.
            NoWorkerAvailable: None may be picked, busy or not.
            BodyError: As of `Router.select_worker`.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        return self.router._admit(self.max_pending_requests, self.max_pending_tokens, **request)  # noqa: SLF001
