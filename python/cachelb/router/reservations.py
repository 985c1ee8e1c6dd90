"""Bookings of requests whose worker another selector picked."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cachelb.router.shared_caches import SharedCaches

if TYPE_CHECKING:
    from typing import Unpack

    from cachelb.decision import Decision
    from cachelb.types import RequestArguments

W = TypeVar("W")


class Reservations(SharedCaches[W]):
    """The part of a router that books what others picked."""

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
            >>> router.loads(), decision.worker
            ({'gpu0': 0, 'gpu1': 1}, 'gpu1')
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
