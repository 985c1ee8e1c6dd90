"""From a request to endpoints: the call of the router, and the move of the booking to the serving worker."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cachelb.answers import header_filter
from cachelb.arguments import seconds, whole
from cachelb.errors import BodyError, NoWorkerAvailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachelb.decision import Decision
    from tests.models.python_picker.addresses import Addresses
    from cachelb.router import Router
    from cachelb.types import RequestArguments

TENANT = "x-gateway-inference-fairness-id"
OBJECTIVE = "x-gateway-inference-objective"
MODEL = "x-gateway-model-name-rewrite"

MOST_FALLBACKS = 3

BodyMode: TypeAlias = Literal["none", "streamed", "buffered", "duplex"]

_log = logging.getLogger("cachelb.ext_proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `EndpointPicker`, which documents the fields."""

    max_body_bytes: int = 2 << 20
    large_bodies: Literal["refuse", "pass"] = "pass"
    max_held_bytes: int = 256 << 20
    max_streams: int = 4096
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0
    stream_timeout_s: float = 3600.0
    fallbacks: int = 2
    priorities: Mapping[str, int] = field(default_factory=dict)
    shed_inflight: int | None = None
    rewrite_model: bool = False
    default_body_mode: BodyMode = "duplex"
    expose_headers: Sequence[str] = ()
    conformance: bool = False

    def __post_init__(self) -> None:
        """Check values beyond their types."""
        for name in ("max_body_bytes", "max_held_bytes", "max_streams"):
            whole(name, getattr(self, name), 1, sys.maxsize)
        for name in ("body_timeout_s", "idle_timeout_s", "stream_timeout_s"):
            seconds(name, getattr(self, name))
        if self.large_bodies not in {"refuse", "pass"}:
            raise ValueError(f"large_bodies must be 'refuse' or 'pass', got {self.large_bodies!r}")
        whole("fallbacks", self.fallbacks, 0, MOST_FALLBACKS)
        if self.shed_inflight is not None:
            whole("shed_inflight", self.shed_inflight, 1)
        if self.default_body_mode not in {"none", "streamed", "buffered", "duplex"}:
            raise ValueError(
                f"default_body_mode must be 'none', 'streamed', 'buffered' or 'duplex', got {self.default_body_mode!r}"
            )


@dataclass(slots=True)
class Pick:
    """The worker and the alternatives for a request."""

    decision: Decision[Any]  # owns the booked load
    endpoints: list[str]  # addresses in the order to try
    arguments: RequestArguments  # of `select_worker`
    body: bytes | None = None  # replaces the body, None to leave it as it is

    @property
    def prompt_bytes(self) -> int:
        """Bytes of memory that the prompt takes."""
        body: Any = self.arguments.get("body", b"")  # bytes
        return len(body)

    def forget_prompt(self) -> None:
        """Drop the prompt; a booking elsewhere is made without it from here on."""
        self.arguments.pop("body", None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not forwarded."""

    status: int
    message: str  # for the client: it names no worker
    reason: str  # for counters and access logs
    retry_after_s: float | None = None  # None for never


class Picker:
    """Picks for every stream through the router, and counts the results."""

    def __init__(self, router: Router[Any], addresses: Addresses, options: Options) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self.exposed = header_filter(options.expose_headers)
        self.held = 0
        self._router = router
        self._addresses = addresses

    async def pick(
        self, headers: Mapping[str, str], body: bytes | None, subset: Sequence[str] | None
    ) -> Pick | Refusal:
        """Pick a worker and the next best ones, and book the load on the first.

        Names of headers are in lower case. The body is None if it is unknown or empty; without a subset, all addresses
        are candidates.
        """
        arguments = self._arguments(headers, body)
        sent = None
        if body and self.options.rewrite_model and MODEL in headers:
            sent = await asyncio.to_thread(_renamed, body, headers[MODEL])
        among = self._addresses.among(subset)
        if among is not None:
            arguments["among"] = among
        try:
            if self._sheds(arguments):
                return self.refuse(429, "shed", "the request is of low priority and the workers are busy", 1.0)
            decision = self._select(arguments, subset)
        except BodyError as error:  # of a router that is strict
            return self.refuse(400, "bad-body", str(error))
        except NoWorkerAvailable as error:
            _log.debug("%s", error)
            return self.refuse(503, "no-worker", "no worker is available", error.retry_after_s)
        self.counts["picked"] += 1
        return Pick(decision, self._ranked(decision, arguments), arguments, sent)

    def commit(self, pick: Pick, served: str) -> None:
        """Move the booking to the worker at the address that served the request; this may replace `pick.decision`."""
        if served == pick.endpoints[0]:
            return
        key = self._addresses.key_at(served)
        if key is None:
            self.counts["served-unknown"] += 1
            pick.decision.cancel()
            return
        # The proxy goes down the list when a worker cannot be reached or refuses, as it would for a retry of ours.
        self.counts["served-fallback"] += 1
        pick.decision.on_error(502)
        arguments = pick.arguments.copy()
        arguments["among"] = [key]
        try:
            pick.decision = self._router.select_worker(**arguments)
        except NoWorkerAvailable:
            self.counts["served-unbooked"] += 1

    def _arguments(self, headers: Mapping[str, str], body: bytes | None) -> RequestArguments:
        found: RequestArguments = {"path": headers.get(":path", ""), "headers": headers}
        if body:
            found["body"] = body
        if tenant := headers.get(TENANT):
            found["tenant"] = tenant
        if objective := headers.get(OBJECTIVE):
            found["priority"] = self.options.priorities.get(objective, 0)
        if model := headers.get(MODEL):
            found["model"] = model
        return found

    def _select(self, arguments: RequestArguments, subset: Sequence[str] | None) -> Decision[Any]:
        """Book a worker that can be named: one without an address may have joined since the list was read."""
        decision = self._router.select_worker(**arguments)
        while self._addresses.of(decision.key) is None:
            decision.cancel()
            arguments["among"] = self._addresses.among(subset)
            decision = self._router.select_worker(**arguments)
        return decision

    def _sheds(self, arguments: RequestArguments) -> bool:
        limit = self.options.shed_inflight
        if limit is None or arguments.get("priority", 0) >= 0:
            return False
        found = self._router.select_worker(**arguments, dry_run=True)
        rank = "" if found.dp_rank is None else f"#{found.dp_rank}"
        return self._router.loads().get(found.key + rank, 0) >= limit

    def _ranked(self, decision: Decision[Any], arguments: RequestArguments) -> list[str]:
        """Put those behind the picked worker that the router would pick without it.

        Asking it again costs a fifth or less of what the decision's explanation does, which has no ranks for policies
        without scores and not every worker of a large fleet.
        """
        tried = [decision.key]
        # The header with the rank goes to any worker that serves the request, but is right for one only.
        wanted = 1 if decision.dp_rank is not None else 1 + self.options.fallbacks
        arguments = arguments.copy()
        while len(tried) < wanted:
            arguments["exclude"] = tried
            try:
                found = self._router.select_worker(**arguments, dry_run=True)
            except NoWorkerAvailable:
                break
            tried.append(found.key)
        return [address for key in tried if (address := self._addresses.of(key)) is not None]

    def refuse(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> Refusal:
        """Count and describe a refusal."""
        self.counts[reason] += 1
        _log.debug("refused with %d: %s", status, message)
        return Refusal(status, message, reason, retry_after_s)


def _renamed(body: bytes, model: str) -> bytes | None:
    """Return a body with another `model`; None if it has that one, or none can be put in."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or parsed.get("model") == model:
        return None
    return json.dumps({**parsed, "model": model}).encode()
