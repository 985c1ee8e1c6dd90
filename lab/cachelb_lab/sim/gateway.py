"""Gateways written in Python: the interface of a run, and any router behind it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cachelb._core import AdmissionGate, HeldRequest
from cachelb.errors import NoWorkerAvailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cachelb.decision import Decision
    from cachelb.router import Router
    from cachelb.types import RequestArguments
    from cachelb_lab.sim.workloads import Workload

Placement: TypeAlias = "tuple[int, int, int, int]"
"""The worker, the gateway's own number of the placement, the prompt tokens that it expects to be cached there, and the
code of the reason."""


class Gateway(Protocol):
    """Stands between requests and simulated workers. Times are simulated seconds and never go back."""

    @property
    def reasons(self) -> Sequence[str]:
        """Name the codes that `select` gives for its picks."""
        ...

    def select(self, request: int, tried: list[int], now: float) -> Placement | None:
        """Place the request of a workload row, not on workers that failed it; None if no worker can be picked."""
        ...

    def select_pair(self, request: int, tried: list[int], now: float) -> tuple[Placement | None, Placement] | None:
        """Place a request in a fleet with workers for prefill alone; None if no worker can be picked.

        Returns the placement for prefill, None if the other worker computes the prompt too, and the one for decode;
        each as from `select`, with a number of its own.
        """
        ...

    def first_token(self, ticket: int, now: float) -> None:
        """Process a request's first token."""
        ...

    def tokens(self, ticket: int, count: int, now: float) -> None:
        """Process more tokens."""
        ...

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        """Process the end of a request, with the engine's cached tokens.

        None where it does not report that, or another one computed the prompt.
        """
        ...

    def failed(self, ticket: int, now: float) -> None:
        """Process the failure of a request at its worker."""
        ...

    def cancelled(self, ticket: int, now: float) -> None:
        """Process the end of a request that is given up: its client went away, or the other half of its pair failed."""
        ...

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        """Process a load report: a worker's running and waiting requests, queued prompt tokens and share of KV in use.

        Queued tokens are None where the engine does not report them.
        """
        ...

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        """Process changes of a cache: ``("stored", hash, parent)``, ``("removed", hash)``, ``("cleared",)``.

        For hybrid models also ``("marked", hash)`` and ``("unmarked", hash)``: whether groups without full attention
        can resume behind a block.
        """
        ...

    def set_ready(self, worker: int, ready: bool, now: float) -> None:  # noqa: FBT001 - called by position
        """Process that a worker is ready, or not."""
        ...


class RouterGateway:
    """A router with a policy written in Python, through the calls any gateway makes.

    `make` builds the router from a clock and the names of the workers.
    """

    def __init__(
        self, make: Callable[[Callable[[], float]], Router[str]], workload: Workload, names: Sequence[str]
    ) -> None:
        self._now = 0.0
        self._workload = workload
        self._names = list(names)
        self._position = {name: at for at, name in enumerate(names)}
        self._open: dict[int, Decision[str]] = {}
        self._next = 0
        self.reasons: list[str] = []
        self.router = make(lambda: self._now)
        self._gate: AdmissionGate[str] | None = None
        self._max_wait_s: float | None = 0.0
        self._held: dict[int, tuple[HeldRequest[str], float]] = {}
        self._called: list[int] = []

    def admit(self, admission: Mapping[str, Any] | None) -> None:
        """Refuse requests that no worker has room for, or hold them."""
        if admission is not None:
            self._gate, self._max_wait_s = AdmissionGate(self.router, dict(admission)), admission["max_wait_s"]

    def select(self, request: int, tried: list[int], now: float) -> Placement | None:
        """Ask the router; see `Gateway.select`."""
        self._now = now
        try:
            if self._gate is None or tried:  # one that was tried was admitted
                return self._opened(self.router.select_worker(**self._request(request, tried)))
            return self._admitted(self._gate, request, now)
        except NoWorkerAvailable:
            return None

    def _admitted(self, gate: AdmissionGate[str], request: int, now: float) -> Placement | None:
        if request in self._held:
            held, until_s = self._held.pop(request)
            tried: Any = held.try_again(now >= until_s)
            if tried is None:
                self._held[request] = held, until_s
            return None if tried is None else self._opened(tried)
        asked = self._request(request, [])
        if self._max_wait_s == 0:
            return self._opened(gate.select_now(False, **asked))  # noqa: FBT003 - no preview
        call = partial(self._called.append, request)
        found: Any = gate.enter(call, 0, (self._max_wait_s, False, False, False), **asked)
        if isinstance(found, HeldRequest):
            self._held[request] = found, now + (math.inf if self._max_wait_s is None else self._max_wait_s)
            return None
        return self._opened(found)

    def held_until(self, request: int) -> float | None:
        """Return until when a request is held that was just not placed, None if it is refused."""
        return self._held[request][1] if request in self._held else None

    def called(self, now: float) -> list[int]:
        """Return the requests to be placed now that were held."""
        self._now = now
        called, self._called[:] = list(self._called), []
        return called

    def give_up(self, request: int) -> None:
        """Process that a held request is given up."""
        self._held.pop(request)[0].give_up()

    def select_pair(self, request: int, tried: list[int], now: float) -> tuple[Placement | None, Placement] | None:
        """Ask the router; see `Gateway.select_pair`."""
        self._now = now
        try:
            pair = self.router.select_pair(**self._request(request, tried))
        except NoWorkerAvailable:
            return None
        prefill = None if pair.prefill is None else self._opened(pair.prefill)
        return prefill, self._opened(pair.decode)

    def _request(self, request: int, tried: list[int]) -> RequestArguments:
        return {
            "blocks": self._workload.prompt(request),
            "prompt_tokens": int(self._workload.prompt_tokens[request]),
            "boundaries": self._workload.message_ends(request),
            "session": None if self._workload.session is None else self._workload.session[request],
            "exclude": [self._names[at] for at in tried],
        }

    def _opened(self, decision: Decision[str]) -> Placement:
        self._next += 1
        self._open[self._next] = decision
        if decision.reason not in self.reasons:
            self.reasons.append(decision.reason)
        reason = self.reasons.index(decision.reason)
        return self._position[decision.worker], self._next, decision.matched_tokens, reason

    def _decision(self, ticket: int, now: float, *, is_over: bool = True) -> Decision[str]:
        self._now = now
        return self._open.pop(ticket) if is_over else self._open[ticket]

    def first_token(self, ticket: int, now: float) -> None:
        """Report to the decision."""
        self._decision(ticket, now, is_over=False).on_first_token()

    def tokens(self, ticket: int, count: int, now: float) -> None:
        """Report to the decision."""
        self._decision(ticket, now, is_over=False).on_tokens(count)

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        """Report to the decision."""
        self._decision(ticket, now).on_complete(cached_tokens=cached_tokens)

    def failed(self, ticket: int, now: float) -> None:
        """Report to the decision."""
        self._decision(ticket, now).on_error(ConnectionError("the simulated worker failed"))

    def cancelled(self, ticket: int, now: float) -> None:
        """Report to the decision."""
        self._decision(ticket, now).cancel()

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        """Report to the router."""
        self._now = now
        figures: dict[str, Any] = dict(zip(("running", "waiting", "queued_tokens", "kv_usage"), load, strict=True))
        self.router.load_sink.update_load(self._names[worker], **figures, age_s=now - at)

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        """Events name blocks by tokens, which a workload does not have: the router goes by its placements."""

    def publish(self) -> list[bytes]:
        """Return the messages to other gateways that wait, of a router that shares."""
        return self.router.shared_state.publish()

    def receive(self, message: bytes, now: float) -> None:
        """Take in a message of another gateway."""
        self._now = now
        if self.router.shared_state.receive(message) == "gap":
            raise AssertionError("a message of a router is missing")

    def set_ready(self, worker: int, ready: bool, now: float) -> None:  # noqa: FBT001 - called by position
        """Report to the router."""
        self._now = now
        self.router.set_ready(self._names[worker], ready)
