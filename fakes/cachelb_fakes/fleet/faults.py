"""Faults for the next requests, and random faults from a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, Literal, TypeAlias, TypeVar, get_args

from cachelb.common.arguments import whole

FaultKind: TypeAlias = Literal["refuse", "reset", "status", "stall", "die"]
"""The kind of a fault; `FakeWorker.fail` describes each."""
PullFault: TypeAlias = Literal["miss", "evict", "short", "stall"]
"""The kind of a fault of a copy; `FakeWorker.fail_pulls` describes each."""
KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
STATUSES: Final = (400, 404, 408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one request."""

    kind: FaultKind
    status: int = 0  # for "status"
    retry_after_s: int | None = None  # its ``Retry-After`` header, None for none
    after_chunks: int = 0  # events sent before "die" or "stall" strikes

    def __post_init__(self) -> None:
        """Refuse impossible faults."""
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}: one of {', '.join(KINDS)}")
        if self.kind == "status" and self.status not in STATUSES:
            raise ValueError(f"status {self.status} is none of {', '.join(map(str, STATUSES))}")
        if self.after_chunks < 0:
            raise ValueError(f"after_chunks is {self.after_chunks}, it must be at least 0")

    @property
    def name(self) -> str:
        """The kind, or the status: the name it is counted under."""
        return str(self.status) if self.kind == "status" else self.kind


@dataclass(frozen=True, slots=True)
class Pull:
    """A planned fault of a copy."""

    kind: PullFault
    blocks: int = 0

    def __post_init__(self) -> None:
        """Refuse an unknown fault."""
        if self.kind not in get_args(PullFault):
            raise ValueError(f"unknown fault {self.kind!r}: one of {', '.join(get_args(PullFault))}")
        whole("blocks", self.blocks, 0)


_F = TypeVar("_F")


class FaultPlan(Generic[_F]):
    """Faults for the next requests, in the order they were planned."""

    def __init__(self) -> None:
        self._planned: deque[tuple[_F, int | None]] = deque()

    def add(self, fault: _F, times: int | None) -> None:
        """Plan a fault for a number of requests, None for all until `clear`."""
        if times is not None and times < 1:
            raise ValueError(f"times is {times}, it must be at least 1, or None for every request from now on")
        self._planned.append((fault, times))

    def take(self) -> _F | None:
        """Return the fault of the next request, or None."""
        if not self._planned:
            return None
        fault, times = self._planned[0]
        if times == 1:
            self._planned.popleft()
        elif times is not None:
            self._planned[0] = (fault, times - 1)
        return fault

    def peek(self) -> _F | None:
        """Return the same, and leave it planned."""
        return self._planned[0][0] if self._planned else None

    def clear(self) -> None:
        """Forget everything planned."""
        self._planned.clear()


class FaultRates:
    """Chances of faults: each maps to the share of requests it strikes, and each request draws one number."""

    def __init__(self, chances: Mapping[Fault, float]) -> None:
        self._limits: list[tuple[float, Fault]] = []
        total = 0.0
        for fault, chance in chances.items():
            if not 0 <= chance <= 1:
                raise ValueError(f"the rate of {fault.name} is {chance}, it must be from 0 to 1")
            total += chance
            if chance:
                self._limits.append((total, fault))
        if total > 1 + 1e-9:
            raise ValueError(f"the rates add up to {total:g}, which is more than 1")

    def draw(self, rng: Random) -> Fault | None:
        """Draw the fault of one request, None for none."""
        if not self._limits:
            return None
        number = rng.random()
        return next((fault for limit, fault in self._limits if number < limit), None)


class Failing(ABC):
    """Faults of a worker, or of all workers of a fleet: planned ones and random ones."""

    def set_rates(
        self,
        *,
        refuse: float = 0.0,
        reset: float = 0.0,
        stall: float = 0.0,
        die: float = 0.0,
        status: Mapping[int, float] | None = None,
        after_chunks: int = 1,
        retry_after_s: int | None = None,
    ) -> None:
        """Make requests fail at random; the fleet's seed decides which do.

        The rates of a fleet are for every worker without its own, including those added later.

        Args:
            refuse: Share of requests whose connection is reset before their body is read.
            reset: Share whose connection is reset when they have been read.
            stall: Share that gets no answer until `release`.
            die: Share whose answer breaks off after ``after_chunks`` events.
            status: Share by error status.
            after_chunks: For ``die``.
            retry_after_s: The ``Retry-After`` header, for ``status``.

        Raises:
            ValueError: A share is out of range, or they add up to more than 1.
        """
        shares = {
            Fault("refuse"): refuse,
            Fault("reset"): reset,
            Fault("stall"): stall,
            Fault("die", after_chunks=after_chunks): die,
        }
        shares |= {Fault("status", code, retry_after_s): share for code, share in (status or {}).items()}
        self._use_rates(FaultRates(shares))

    def fail(
        self,
        kind: FaultKind,
        *,
        times: int | None = None,
        status: int = 0,
        retry_after_s: int | None = None,
        after_chunks: int = 0,
    ) -> None:
        """Plan a fault for the next requests for completions, of a fleet whichever workers they go to.

        Faults are taken in the order they were planned, those of a worker before those of its fleet.

        Args:
            kind: The kind of fault:

                - "refuse": the listening socket, or that of every worker, is closed until `heal`. With
                  ``times`` it cannot be, as a connection carries many requests: the connection is reset before the
                  request's body is read.
                - "reset": the connection is reset when the request has been read.
                - "status": the answer is an error with this ``status``.
                - "stall": nothing happens until `release`, or until the client gives up.
                - "die": the connection is reset in the middle of the answer.

            times: Requests it strikes; None for every request until `heal`.
            status: 400, 404, 408, 429, 500, 502, 503 or 504, for "status".
            retry_after_s: The answer's ``Retry-After`` header, for "status".
            after_chunks: Events of a stream that are sent before "die" and "stall" strike; an answer that is shorter
                lacks its end only.

        Raises:
            ValueError: An argument is out of range.
        """
        self._plan(Fault(kind, status, retry_after_s, after_chunks), times)

    @abstractmethod
    def _plan(self, fault: Fault, times: int | None) -> None:
        """Take a fault for so many requests, None for all until `heal`."""

    @abstractmethod
    def _use_rates(self, rates: FaultRates) -> None:
        """Take the rates for the requests that follow."""
