"""The requests that Ray Serve routes through here, and their bookings.

Serve asks for a replica, sends the request, and reports two things later: that a replica took it, and that it ended. It
reports the end of every attempt, also of those that a replica refused, and in any order. It may pick another replica
than the first one offered, ask again for the same request, and use one request id for several calls. So a booking is
found by the call it belongs to, and an end counts only if it is the end of what is booked:

* the end of an attempt that was refused before the next choice is expected once, and passed over when it comes;
* an end that comes before "taken" frees the load at once. The next call shows whether the replica refused the request
  or was done already: another choice, or "taken", which records where the prompt is now;
* any other end of a request that is not booked there is counted and changes nothing.

Serve does not report that a caller gave up, as it may with a replica that hangs: until "taken", the task that sends the
request is cancelled then, and later the result.

A booking whose end is not reported expires (`abandoned`). This module is independent of Ray: a call is any object with
a `future`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cachelb.errors import NoWorkerAvailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.decision import Decision
    from cachelb.router import Router

    Follow = Callable[[Decision[str]], None]

_SWEPT_AT_ONCE = 16


class Call(Protocol):
    """A call that waits for a replica: Serve's `PendingRequest`. A new attempt has a new future."""

    @property
    def future(self) -> Any:  # noqa: ANN401 - Serve's, which resolves to a replica
        """The future of the call, cancelled if its caller gives up."""
        ...


@dataclass(slots=True)
class Counters:
    """Events besides plain routing. Counters only rise."""

    chosen: int = 0  # repeated choices for a request included
    chosen_again: int = 0  # choices for a request that had one
    moved: int = 0  # Serve gave the request to another replica than the best one, which is booked instead
    refused: int = 0  # ends of attempts that a replica refused
    early: int = 0  # ends before Serve reported that the replica took the request
    unmatched: int = 0  # ends of requests that are not booked, or not there
    withdrawn: int = 0  # the caller gave up before the request was sent
    abandoned: int = 0  # no end was reported in time
    no_worker: int = 0  # choices left to Serve because no replica could be picked
    unreadable: int = 0  # unreadable prompts, routed by load
    failed: int = 0  # choices left to Serve because of an error here, which is logged


@dataclass(slots=True, eq=False)
class _Booking:
    """One call. Until a replica took it, `call` and `arguments` are kept to book it elsewhere."""

    request_id: str
    call: Call | None
    arguments: dict[str, Any]
    attempt: Any
    decision: Decision[str] | None = None
    deadline: float = 0.0
    ended: bool = False
    unwatch: Callable[[], Any] = lambda: None  # forget the task that sends it
    tried: set[str] = field(default_factory=set)
    owed: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Bookings:
    """Every open booking of one router.

    `landed` returns the replica that the future of an attempt was given to, None if none or not yet. Replicas that
    are not `refusable` do not report "taken" either. A choice is booked for `unrouted_ttl_s` without a sign that it
    was used, a request for `booking_ttl_s` without a sign that it ended.

    Example:
        >>> from concurrent.futures import Future
        >>> from types import SimpleNamespace
        >>> from cachelb import Router
        >>> router = Router(["replica-a", "replica-b"], seed=1)
        >>> bookings = Bookings(router, landed=lambda future: None)
        >>> call = SimpleNamespace(future=Future())
        >>> best = bookings.choose("id-1", call, {"text": "Once upon a time"}, ["replica-a", "replica-b"])[0]
        >>> bookings.taken("id-1", call, best, dict), sum(router.loads().values())
        ({'text': 'Once upon a time'}, 1)
        >>> bookings.ended("id-1", best), sum(router.loads().values())
        (None, 0)
    """

    router: Router[str]
    _: KW_ONLY
    landed: Callable[[Any], str | None]
    refusable: bool = True
    unrouted_ttl_s: float = 30.0
    booking_ttl_s: float = 3600.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Begin without bookings."""
        self.counters = Counters()
        self._open: dict[str, list[_Booking]] = {}
        self._waiting: OrderedDict[_Booking, None] = OrderedDict()
        self._running: OrderedDict[_Booking, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    # --- calls from Serve ---

    def choose(self, request_id: str, call: Call, arguments: dict[str, Any], candidates: Sequence[str]) -> list[str]:
        """Pick the best replica for a call and book it there; a second choice for the call replaces the first.

        Returns the best, and of three or more the second best; nothing if no replica could be picked. `request_id` is
        Serve's internal id.
        """
        self.sweep()
        self.counters.chosen += 1
        booking = self._find(request_id, call)
        if booking is None:
            booking = self._begin(request_id, call, arguments)
            self._watch(booking, call.future)
        else:
            self.counters.chosen_again += 1
            self._again(booking, call)
        if booking.tried:
            candidates = [key for key in candidates if key not in booking.tried] or candidates
        booking.decision = self._select(booking.arguments, candidates)
        if booking.decision is None:
            self.counters.no_worker += 1
            self._close(booking)
            return []
        self._wait(booking)
        best = booking.decision.key
        if len(candidates) < 3:  # noqa: PLR2004 - the other one is what Serve tries next anyway
            return [best]
        second = self._select(booking.arguments, candidates, exclude=(best,), dry_run=True)
        return [best] if second is None else [best, second.key]

    def rank(self, candidates: Sequence[str]) -> list[str]:
        """Pick the best replica by load for no particular request, and book nothing."""
        best = self._select({}, candidates, dry_run=True)
        return [] if best is None else [best.key]

    def sent(self, request_id: str, call: Call, task: Any) -> None:  # noqa: ANN401 - asyncio's
        """Watch the task that sends a call to a replica. If it is cancelled, the caller gave up."""
        if (booking := self._find(request_id, call)) is not None:
            booking.unwatch()
            booking.unwatch = partial(task.remove_done_callback, self._watch(booking, task))

    def taken(
        self, request_id: str, call: Call, key: str, read: Callable[[], dict[str, Any]], follow: Follow | None = None
    ) -> dict[str, Any] | None:
        """Bind a call to the replica that took it, and book it there if it was booked elsewhere.

        Returns the request's arguments if its prompt counts as held by that replica now, else None. `read` returns them
        for a request that is no longer known here. `follow` gets the decision, to report on it.
        """
        booking = self._find(request_id, call) or self._begin(request_id, call, read())
        arguments = booking.arguments
        done = booking.ended
        decision = booking.decision
        if decision is None or decision.key != key:
            if decision is not None:
                self.counters.moved += 1
                decision.cancel()
            booking.decision = self._select(arguments, (key,))
        if booking.decision is None:
            self._close(booking)
            return None
        if follow is not None:
            follow(booking.decision)
        if done:
            self._close(booking)
            booking.decision.on_complete()
        else:
            self._run(booking)
        return arguments

    def ended(self, request_id: str, key: str) -> None:
        """Process the end of an attempt at a replica, of any kind."""
        bookings = self._open.get(request_id, ())
        for booking in bookings:
            if owed := booking.owed.get(key, 0):
                booking.owed[key] = owed - 1
                self.counters.refused += 1
                return
        # A request id may stand for several calls: those that a replica took come first.
        for booking in sorted(bookings, key=lambda booking: booking.call is not None):
            if booking.call is None:
                if booking.decision is not None and booking.decision.key == key:
                    self._close(booking)
                    booking.decision.on_complete()
                    return
            elif not booking.ended and self.landed(booking.attempt) == key:
                self._ended_early(booking, key)
                return
        self.counters.unmatched += 1

    def sweep(self) -> None:
        """Give up the bookings that are overdue, a few at a time: the oldest first."""
        now = self.clock()
        for queue in (self._waiting, self._running):
            for _ in range(_SWEPT_AT_ONCE):
                booking = next(iter(queue), None)
                if booking is None or booking.deadline > now:
                    break
                self._overdue(booking)

    # --- inside ---

    def _begin(self, request_id: str, call: Call, arguments: dict[str, Any]) -> _Booking:
        booking = _Booking(request_id, call, arguments, call.future)
        self._open.setdefault(request_id, []).append(booking)
        return booking

    def _watch(self, booking: _Booking, waiter: Any) -> Callable[[Any], None]:  # noqa: ANN401 - as in Call
        """Release a call whose caller gives up while `waiter` waits for a replica, which Serve does not report."""

        def done(waiter: Any) -> None:  # noqa: ANN401 - as in Call
            if waiter.cancelled() and (booking in self._waiting or booking in self._running):
                self.counters.withdrawn += 1
                self._close(booking)
                if booking.decision is not None:
                    booking.decision.cancel()

        waiter.add_done_callback(done)
        return done

    def _find(self, request_id: str, call: Call) -> _Booking | None:
        return next((booking for booking in self._open.get(request_id, ()) if booking.call is call), None)

    def _again(self, booking: _Booking, call: Call) -> None:
        """Make a booking ready for another choice. With a new future, the last attempt was sent and came back."""
        if booking.attempt is not call.future:
            place = self.landed(booking.attempt)
            if place is not None:
                booking.tried.add(place)
                if not booking.ended:
                    booking.owed[place] = booking.owed.get(place, 0) + 1
            booking.attempt = call.future
            self._watch(booking, call.future)
        booking.ended = False
        if booking.decision is not None:
            booking.decision.cancel()
            booking.decision = None

    def _ended_early(self, booking: _Booking, key: str) -> None:
        self.counters.early += 1
        decision = booking.decision
        if self.refusable:
            # Stays open without load: "taken" or another choice may still come, and if not, its deadline.
            if decision is not None:
                decision.cancel()
            booking.decision = None
            booking.ended = True
            return
        if decision is not None and decision.key != key:
            self.counters.moved += 1
            decision.cancel()
            decision = self._select(booking.arguments, (key,))
        self._close(booking)
        if decision is not None:
            decision.on_complete()

    def _overdue(self, booking: _Booking) -> None:
        """Drop a booking but keep its placement: a caller may send the request by itself."""
        if booking.call is not None and not booking.ended and (place := self.landed(booking.attempt)) is not None:
            # Sent to a replica that the caller reserved: it ends like any other, but without "taken".
            self.taken(booking.request_id, booking.call, place, dict)
            return
        self._close(booking)
        if not booking.ended:
            self.counters.abandoned += 1
        booking.decision = None

    def _select(
        self, arguments: dict[str, Any], among: Sequence[str], *, exclude: Sequence[str] = (), dry_run: bool = False
    ) -> Decision[str] | None:
        try:
            return self.router.select_worker(**arguments, among=among, exclude=exclude, by_load=True, dry_run=dry_run)
        except NoWorkerAvailable:
            return None
        except (TypeError, ValueError):
            if not arguments:
                raise
            # Whatever a client can send must not stop the routing: load decides, now and if it is chosen for again.
            self.counters.unreadable += 1
            arguments.clear()
            return self._select(arguments, among, exclude=exclude, dry_run=dry_run)

    def _wait(self, booking: _Booking) -> None:
        booking.deadline = self.clock() + self.unrouted_ttl_s
        self._waiting[booking] = None
        self._waiting.move_to_end(booking)

    def _run(self, booking: _Booking) -> None:
        self._waiting.pop(booking, None)
        booking.deadline = self.clock() + self.booking_ttl_s
        booking.call = None
        booking.arguments = {}
        self._running[booking] = None

    def _close(self, booking: _Booking) -> None:
        self._waiting.pop(booking, None)
        self._running.pop(booking, None)
        booking.unwatch()
        bookings = self._open[booking.request_id]
        bookings.remove(booking)
        if not bookings:
            del self._open[booking.request_id]
