"""The request router that Ray Serve runs in every process that holds a handle.

Serve copies the module of this class by value into the controller and from there into those processes, so it keeps no
state and no function that other modules use.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ray.serve.request_router import LocalityMixin, MultiplexMixin, RequestRouter

from cachelb.integrations.ray_serve import actor, options, placements, prompts
from cachelb.integrations.ray_serve.bookings import Bookings
from cachelb.integrations.ray_serve.sharing import Sharing
from cachelb.integrations.ray_serve.state import RayState, close_with

if TYPE_CHECKING:
    from ray.serve._private.common import RequestMetadata
    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

    from cachelb.decision import Decision
    from cachelb.router import Router

_UNAVAILABLE_S = 2.0
_SHARE_S = 0.5
_SHARE_LOAD_S = 0.05

_log = logging.getLogger("cachelb.integrations.ray_serve")


class CachelbRequestRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Sends a request to the replica that holds most of its prompt, unless that one is overloaded.

    Give it to `request_router_config`, and the options of `cachelb.Router`, of Ray's own prefix router, or of
    `cachelb.integrations.ray_serve.options.Options` as its `request_router_kwargs`. Locality and multiplexed models
    come first, as in Serve's default; full replicas are left out, and Serve still checks every queue.

    Not a `FIFOMixin`: that hands a replica to the first request in the queue instead of the one it was chosen for.

    Example:
        >>> from ray.serve.config import RequestRouterConfig
        >>> config = RequestRouterConfig(
        ...     request_router_class="cachelb.integrations.ray_serve.CachelbRequestRouter",
        ...     request_router_kwargs={"block_size": 16},
        ... )
        >>> config.get_request_router_class().__name__
        'CachelbRequestRouter'
    """

    def initialize_state(self, **kwargs: Any) -> None:  # noqa: ANN401 - the values of the configuration
        """Build the router. Serve calls this once, with `request_router_kwargs`.

        Args:
            **kwargs: The options.

        Raises:
            TypeError: There is no such option, or it has the wrong type.
            ValueError: An option is outside its range.
        """
        self._fleet, chosen = options.build(kwargs)
        self._bookings = Bookings(
            self._fleet,
            landed=_landed,
            refusable=self._use_replica_queue_len_cache,
            unrouted_ttl_s=chosen.unrouted_ttl_s,
        )
        name = f"{self._deployment_id.app_name}:{self._deployment_id.name}"
        self._sharing: Sharing | None = None
        if chosen.shared:
            connect = actor.trader(f"placements:{name}", int(chosen.share_max_mb * (1 << 20)), ends_with_serve=True)
            self._sharing = Sharing(self._fleet, connect, interval_s=chosen.share_interval_s or _SHARE_S)
        self._state: RayState | None = None
        if chosen.share_load:
            self._state = RayState(
                name,
                interval_s=chosen.share_interval_s or _SHARE_LOAD_S,
                max_mb=chosen.share_max_mb,
                ends_with_serve=True,
            )
            close_with(self, self._fleet)
        self._is_attached = False
        self._keys: dict[ReplicaID, str] = {}
        self._reported: dict[str, int | None] = {}
        self._unready: dict[str, float] = {}

    # --- observation ---

    @property
    def fleet(self) -> Router[str]:
        """The `cachelb.Router` behind this; its workers are the full ids of the replicas."""
        return self._fleet

    def counters(self) -> dict[str, int]:
        """Return the counters of events besides plain routing.

        Returns:
            The counters of `Bookings`, and with `shared` those of `Sharing`, by name.
        """
        found = asdict(self._bookings.counters)
        return found if self._sharing is None else {**found, **asdict(self._sharing.counters)}

    # --- requests of Serve ---

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas for a request, and book the best one.

        Args:
            candidate_replicas: All replicas.
            pending_request: The request, None for no particular one.

        Returns:
            The best, the second best, and all others that may take it.
        """
        eligible = self._eligible(pending_request)
        candidates = [replica for replica in candidate_replicas if replica.replica_id in eligible]
        if not candidates:
            return []
        try:
            best = self._choose(candidates, pending_request)
        except Exception:  # noqa: BLE001 - counted and logged
            # A request must not fail because of its router: Serve takes the replica with the shortest queue.
            self._bookings.counters.failed += 1
            _log.exception("a replica could not be chosen; Serve chooses")
            return [candidates]
        by_key = {self._key(replica.replica_id): replica for replica in candidates}
        groups = [[by_key.pop(key)] for key in best if key in by_key]
        return [*groups, list(by_key.values())] if by_key else groups

    def _eligible(self, pending_request: PendingRequest | None) -> set[ReplicaID]:
        if pending_request is not None and pending_request.metadata.multiplexed_model_id:
            return self.apply_multiplex_routing(pending_request=pending_request)
        return self.apply_locality_routing(pending_request=pending_request)

    def _choose(self, candidates: list[RunningReplica], pending_request: PendingRequest | None) -> list[str]:
        free = self._observe(candidates)
        keys = free or [self._key(replica.replica_id) for replica in candidates]
        if pending_request is None:
            return self._bookings.rank(keys)
        return self._bookings.choose(
            pending_request.metadata.internal_request_id, pending_request, self._read(pending_request), keys
        )

    def _observe(self, candidates: list[RunningReplica]) -> list[str]:
        """Pass on Serve's cached queue lengths. Returns the replicas that are not known to be full."""
        free = []
        known = self._replica_queue_len_cache.get
        for replica in candidates:
            key = self._key(replica.replica_id)
            length = known(replica.replica_id) if self._use_replica_queue_len_cache else None
            if key in self._unready and (length is not None or time.monotonic() >= self._unready[key]):
                del self._unready[key]
                self._fleet.set_ready(key, ready=True)
            if length != self._reported.get(key):
                self._reported[key] = length
                self._fleet.load_sink.update_load(key, running=length, waiting=None if length is None else 0)
            if length is None or length < replica.max_ongoing_requests:
                free.append(key)
        return free

    def _read(self, pending_request: PendingRequest) -> dict[str, Any]:
        try:
            return prompts.read_request(pending_request)
        except Exception:  # noqa: BLE001 - counted; arguments are objects of the user, which may do anything when read
            self._bookings.counters.unreadable += 1
            return {}

    # --- notifications of Serve ---

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: Any,  # noqa: ANN401 - ReplicaResult is not public
    ) -> None:
        """Bind the request to the replica that took it.

        Args:
            pending_request: The request.
            replica_id: The replica.
            result: Its answer to come.
        """
        super().on_request_routed(pending_request, replica_id, result)
        key = self._key(replica_id)
        if self._unready.pop(key, None) is not None:
            self._fleet.set_ready(key, ready=True)
        metadata, read = pending_request.metadata, partial(self._read, pending_request)
        follow = partial(_follow, result, metadata)
        arguments = self._bookings.taken(metadata.internal_request_id, pending_request, key, read, follow)
        if self._sharing is not None and arguments:
            placement = placements.encode(key, arguments)
            if placement is not None:
                self._sharing.publish(placement)

    async def _choose_replica_for_request(self, pending_request: PendingRequest, **kwargs: Any) -> RunningReplica:  # noqa: ANN401 - Serve's
        replica = await super()._choose_replica_for_request(pending_request, **kwargs)
        request_id = pending_request.metadata.internal_request_id
        self._bookings.sent(request_id, pending_request, asyncio.current_task())
        return replica

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Release the request's booking, unless only an attempt was refused.

        Args:
            replica_id: The replica.
            internal_request_id: The request.
        """
        super().on_request_completed(replica_id, internal_request_id)
        self._bookings.ended(internal_request_id, self._key(replica_id))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Apply the current list of replicas, the only notification of a scale-down.

        Args:
            replicas: All of them.
        """
        super().update_replicas(replicas)
        before = self._keys
        self._keys = {replica.replica_id: replica.replica_id.to_full_id_str() for replica in replicas}
        self._fleet.sync_workers(self._keys.values())
        for replica_id in before.keys() - self._keys.keys():
            self._forget(before[replica_id])
        self._bookings.sweep()
        if self._sharing is not None and self._keys:
            self._sharing.start()
        if self._state is not None and self._keys and not self._is_attached:
            self._is_attached = True
            self._fleet.attach(self._state)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Remove a replica and its cached prefixes.

        Args:
            replica_id: The replica.
        """
        super().on_replica_actor_died(replica_id)
        key = self._keys.pop(replica_id, None)
        if key is not None:
            self._fleet.remove_worker(key)
            self._forget(key)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """Pass over a replica until its queue length is known again, or for two seconds. Its prefixes stay known.

        Args:
            replica_id: The replica.
        """
        super().on_replica_actor_unavailable(replica_id)
        key = self._keys.get(replica_id)
        if key is not None:
            self._fleet.set_ready(key, ready=False)
            self._unready[key] = time.monotonic() + _UNAVAILABLE_S

    def _forget(self, key: str) -> None:
        self._reported.pop(key, None)
        self._unready.pop(key, None)

    def _key(self, replica_id: ReplicaID) -> str:
        return self._keys.get(replica_id) or replica_id.to_full_id_str()


def _landed(attempt: Any) -> str | None:  # noqa: ANN401 - the future of a PendingRequest
    """Return the replica that an attempt was sent to."""
    if not attempt.done() or attempt.cancelled() or attempt.exception() is not None:
        return None
    key: str = attempt.result().replica_id.to_full_id_str()
    return key


def _follow(result: Any, metadata: RequestMetadata, decision: Decision[str]) -> None:  # noqa: ANN401 - ReplicaResult is not public
    """Report the first token of a stream when its consumer gets it, and that the caller gave up."""
    kind, this = type(result), weakref.ref(result)  # without a cycle

    def cancel() -> None:
        decision.cancel()
        kind.cancel(this())

    def see(item: Any) -> Any:  # noqa: ANN401 - any value
        # The head of an HTTP answer may come before any token.
        if not metadata.is_http_request or b"http.response.body" in item:
            decision.on_first_token()
        return item

    async def see_next() -> Any:  # noqa: ANN401 - any value
        return see(await kind.__anext__(this()))

    with suppress(AttributeError):  # of another version
        result.cancel = cancel
        if metadata.is_streaming:
            result.__next__, result.__anext__ = lambda: see(kind.__next__(this())), see_next
