"""Replicas and requests of Ray Serve, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from cachelb.integrations.ray_serve.router import CachelbRequestRouter

DEPLOYMENT = DeploymentID(name="LLM", app_name="app")
STORY = "Once upon a time, in a land far away, there lived a small dragon who could not breathe fire. " * 20


PREFIX_KWARGS = {
    "imbalanced_threshold": 5,
    "match_rate_threshold": 0.15,
    "do_eviction": True,
    "eviction_threshold_chars": 500_000,
    "eviction_target_chars": 400_000,
    "eviction_interval_secs": 30,
}
"""As Ray documents them for its prefix router."""


class FakeReplica:
    """A replica that knows its queue."""

    def __init__(
        self,
        name: str,
        *,
        queue: int = 0,
        max_ongoing_requests: int = 10,
        node_id: str = "node",
        models: Iterable[str] = (),
        availability_zone: str | None = None,
    ) -> None:
        self.replica_id = ReplicaID(unique_id=name, deployment_id=DEPLOYMENT)
        self.queue = queue
        self.probes = 0
        self.max_ongoing_requests = max_ongoing_requests
        self.node_id = node_id
        self.availability_zone = availability_zone
        self.multiplexed_model_ids = set(models)

    @property
    def key(self) -> str:
        return self.replica_id.to_full_id_str()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.probes += 1
        return self.queue

    def __repr__(self) -> str:
        return self.replica_id.unique_id


def make_router(
    replicas: Iterable[FakeReplica], *, strict: bool = True, options: dict[str, Any] | None = None, **arguments: Any
) -> CachelbRequestRouter:
    """Build the router as Serve does. Its queue lengths are known: 0, unless a test sets them."""
    router = CachelbRequestRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=strict,
        self_node_id="node",
        **arguments,
    )
    router.initialize_state(**{"seed": 1, **(options or {})})
    set_replicas(router, replicas)
    return router


def set_replicas(router: CachelbRequestRouter, replicas: Iterable[FakeReplica]) -> None:
    listed: list[Any] = list(replicas)
    router.update_replicas(listed)
    for replica in listed:
        router.on_new_queue_len_info(replica.replica_id, replica.queue)


class FakeResult:
    """An answer to come; a replica that hangs never reports that it was cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.items: Iterator[Any] = iter(())

    def cancel(self) -> None:
        self.is_cancelled = True

    def __next__(self) -> Any:
        return next(self.items)

    async def __anext__(self) -> Any:
        return next(self.items)


class Client:
    """Makes requests, and plays Serve's part in routing them."""

    def __init__(self, router: CachelbRequestRouter) -> None:
        self.router = router
        self._made = 0

    def request(self, prompt: str | None = STORY, *, request_id: str | None = None, **metadata: Any) -> PendingRequest:
        self._made += 1
        args = [] if prompt is None else [SimpleNamespace(prompt=prompt)]
        internal = request_id or f"id-{self._made}"
        return PendingRequest(args=args, kwargs={}, metadata=RequestMetadata(f"r-{self._made}", internal, **metadata))

    async def choose(self, request: PendingRequest | None, candidates: Iterable[Any] | None = None) -> list[list[Any]]:
        listed = list(self.router.curr_replicas.values()) if candidates is None else list(candidates)
        return [list(group) for group in await self.router.choose_replicas(listed, request)]

    async def ask(self) -> tuple[PendingRequest, FakeReplica]:
        """Choose for a new request: where it is sent first."""
        request = self.request()
        return request, (await self.choose(request))[0][0]

    def give(self, request: PendingRequest, replica: FakeReplica) -> None:
        """Set the replica in the request's future, and send it."""
        request.future.set_result(replica)
        self.router.on_send_request(replica.replica_id)

    def accept(self, request: PendingRequest, replica: FakeReplica) -> FakeResult:
        replica.queue += 1
        self.router.on_new_queue_len_info(replica.replica_id, replica.queue)
        result = FakeResult()
        self.router.on_request_routed(request, replica.replica_id, result)
        return result

    def take(self, request: PendingRequest, replica: FakeReplica) -> None:
        """Send a request to a replica that takes it."""
        self.give(request, replica)
        self.accept(request, replica)

    def refuse(self, request: PendingRequest, replica: FakeReplica) -> None:
        """Report that the replica is full. Its completion, which comes too, is another call."""
        self.router.on_new_queue_len_info(replica.replica_id, replica.max_ongoing_requests)
        request.reset_future()  # type: ignore[no-untyped-call]

    def end(self, request: PendingRequest, replica: FakeReplica) -> None:
        self.router.on_request_completed(replica.replica_id, request.metadata.internal_request_id)

    async def serve(self, request: PendingRequest) -> FakeReplica:
        """Route a request to where it is sent first, and let the replica take it."""
        replica: FakeReplica = (await self.choose(request))[0][0]
        self.take(request, replica)
        return replica

    async def serve_whole(self) -> FakeReplica:
        """Route a new request and have it answered."""
        request = self.request()
        replica = await self.serve(request)
        self.finish(request, replica)
        return replica

    def finish(self, request: PendingRequest, replica: FakeReplica) -> None:
        replica.queue -= 1
        self.end(request, replica)
        self.router.decrement_queue_len_cache(replica.replica_id)


def serving(
    replicas: Iterable[FakeReplica], *, strict: bool = True, **options: Any
) -> tuple[CachelbRequestRouter, Client]:
    """A router of these replicas and its client."""
    router = make_router(replicas, strict=strict, **options)
    return router, Client(router)


async def settle() -> None:
    """Let the callbacks run that are due."""
    for _ in range(3):
        await asyncio.sleep(0)


def fleet(n: int = 3, **fields: Any) -> list[FakeReplica]:
    return [FakeReplica(f"replica-{at}", **fields) for at in range(n)]
