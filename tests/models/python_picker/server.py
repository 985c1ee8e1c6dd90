"""The gRPC server around it: streams, health, start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.models.python_picker.addresses import Addresses
from tests.models.python_picker.exchange import Exchange
from tests.models.python_picker.messages import SERVICE, ProcessingRequest, ProcessingResponse
from tests.models.python_picker.picking import Options, Picker
from tests.models.python_picker.replies import refusal_reply

try:
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "cachelb.integrations.ext_proc needs grpcio and grpcio-health-checking: pip install 'cachelb[extproc]'",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Literal, Self

    from tests.models.python_picker.picking import BodyMode
    from cachelb.router import Router

W = TypeVar("W")

LIVENESS = "liveness"
READINESS = "readiness"

_MESSAGE_OVERHEAD = 1 << 20
"""Bytes of headers and metadata that may come with the longest body."""

_LAST_WORDS_S = 1.0
"""For the proxy to take the reply to a request that did not arrive."""


class EndpointPicker(Generic[W]):
    """Picks workers for Envoy and everything built on it, over Envoy's external processing protocol.

    It follows the endpoint picker protocol of the Gateway API inference extension. Everything runs in the event loop
    that `start` is called in. Workers need an IP address and a port: `http://10.0.0.1:8000` or `10.0.0.1:8000`.

    Example:
        >>> import asyncio
        >>> import cachelb
        >>> from cachelb.integrations.ext_proc import EndpointPicker
        >>> async def main():
        ...     router = cachelb.Router(["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
        ...     async with EndpointPicker(router) as picker:
        ...         port = await picker.start("127.0.0.1:0")
        ...         return port > 0  # ... until something ends the service
        >>> asyncio.run(main())
        True
    """

    def __init__(
        self,
        router: Router[W],
        *,
        address: Callable[[W], str] | None = None,
        max_body_bytes: int = 2 << 20,
        large_bodies: Literal["refuse", "pass"] = "pass",
        max_held_bytes: int = 256 << 20,
        max_streams: int = 4096,
        body_timeout_s: float = 30.0,
        idle_timeout_s: float = 600.0,
        stream_timeout_s: float = 3600.0,
        fallbacks: int = 2,
        priorities: Mapping[str, int] | None = None,
        shed_inflight: int | None = None,
        rewrite_model: bool = False,
        default_body_mode: BodyMode = "duplex",
        expose_headers: Sequence[str] = (),
        conformance: bool = False,
    ) -> None:
        """Prepare the service; `start` opens it.

        Args:
            router: Picks the workers, and receives the outcome of requests.
            address: Gives a worker's `ip:port`, None to read it from the worker's key.
            max_body_bytes: Bytes of a request's body that are held and read at most.
            large_bodies: Treatment of longer ones, and of those for which there is no room: "pass" picks without
                reading them, "refuse" answers 413 or 503.
            max_held_bytes: Bytes of all bodies that are unfinished or that the proxy has not taken back yet, and of
                prompts of requests without an answer yet, which take half of it at most.
            max_streams: Requests open at once; further ones are answered with 503.
            body_timeout_s: Seconds that a request may take to arrive, before it is answered with 408.
            idle_timeout_s: Seconds without a message after which a stream ends and its load is released.
            stream_timeout_s: Seconds that a request and its answer may take in all.
            fallbacks: Workers to name behind the picked one, for the proxy to try in turn, at most 3.
            priorities: Priorities by the value of the header `x-gateway-inference-objective`; 0 for the others.
            shed_inflight: A request of a negative priority is answered with 429 if the worker it would go to has this
                many requests in flight. None sheds nothing.
            rewrite_model: Put the name in the header `x-gateway-model-name-rewrite` into the body. Without it the name
                counts for the pick only, and the body stays as it is.
            default_body_mode: The mode in which a proxy that does not name it sends bodies.
            expose_headers: Which headers of decisions clients get, such as "x-cachelb-worker". They name workers and
                show what is cached.
            conformance: Do what the tests of the Gateway API inference extension ask a picker for: pick from the
                header `test-epp-endpoint-selection`, and show clients in `x-conformance-test-served-endpoint` the
                endpoint that the proxy reports. Never where clients are not trusted.

        Raises:
            ValueError: An argument is out of range.
        """
        if not isinstance(priorities, Mapping | None):
            raise TypeError(f"priorities must be a mapping of names to numbers, got {type(priorities).__name__}")
        options = Options(
            max_body_bytes=max_body_bytes,
            large_bodies=large_bodies,
            max_held_bytes=max_held_bytes,
            max_streams=max_streams,
            body_timeout_s=body_timeout_s,
            idle_timeout_s=idle_timeout_s,
            stream_timeout_s=stream_timeout_s,
            fallbacks=fallbacks,
            priorities=dict(priorities or {}),
            shed_inflight=shed_inflight,
            rewrite_model=rewrite_model,
            default_body_mode=default_body_mode,
            expose_headers=expose_headers,
            conformance=conformance,
        )
        self._picker = Picker(router, Addresses(router, address), options)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - imported in a condition
        self._server: Any = None
        self._streams = 0

    async def start(
        self,
        listen: str = "127.0.0.1:9002",
        *,
        ready: bool = True,
        credentials: grpc.ServerCredentials | None = None,
    ) -> int:
        """Open the service.

        Args:
            listen: Address to listen on; port 0 takes a free one.
            ready: Whether requests may come at once. If not, call `set_ready` later, such as after state was restored.
            credentials: For TLS, as `grpc.ssl_server_credentials` makes them.

        Returns:
            The port.

        Raises:
            RuntimeError: The address cannot be listened on, or the service was started before.
        """
        if self._server is not None:
            raise RuntimeError("an EndpointPicker starts once: make another one")
        self._server = grpc.aio.server(
            options=[
                # Two services on one port would share the requests, unaware of each other's.
                ("grpc.so_reuseport", 0),
                # Windows stay at 64 KB per stream; they grow to megabytes otherwise.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_receive_message_length", 2 * self._picker.options.max_body_bytes + _MESSAGE_OVERHEAD),
                ("grpc.max_send_message_length", -1),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ProcessingRequest.FromString,
            response_serializer=ProcessingResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if credentials is None:
            port = self._server.add_insecure_port(listen)
        else:
            port = self._server.add_secure_port(listen, credentials)
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready)
        await self._server.start()
        return int(port)

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the service: readiness goes, no stream begins, and those that are open may end; idempotent.

        Args:
            grace_s: How long to wait for them, in seconds. The rest is broken off and its load released.
        """
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def set_ready(self, ready: bool) -> None:  # noqa: FBT001 - as `Router.set_ready`
        """Set the readiness reported to health checks.

        Args:
            ready: Whether they may.
        """
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if ready else states.NOT_SERVING
        for name in ("", READINESS, SERVICE):
            await self._health.set(name, state)

    @property
    def open_streams(self) -> int:
        """Requests that the proxies have open here."""
        return self._streams

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the endpoint picker.

        "picked"; refused as "no-worker", "shed", "slow-body" or "too-many-streams"; refused or passed unread as
        "too-large" or because held bodies were "full"; picked by headers alone because the body is "no-json",
        "unroutable" (no request for a completion), "body-not-sent" or was "unread" for want of time; "expired" streams;
        served by a "served-fallback", by somebody "served-unknown", or by one that could not be booked,
        "served-unbooked"; "observed" streams that want no reply.
        """
        return dict(self._picker.counts)

    async def _process(self, messages: AsyncIterator[Any], context: Any) -> None:  # noqa: ANN401 - untyped in grpc
        if self._streams >= self._picker.options.max_streams:
            refusal = self._picker.refuse(503, "too-many-streams", "too many requests are open", 1.0)
            await context.write(refusal_reply(refusal))
            return
        exchange = Exchange(self._picker)
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        self._streams += 1
        try:
            async with asyncio.timeout_at(exchange.deadline(began_s, began_s)) as timeout:
                async for message in messages:
                    for reply in await exchange.receive(message):
                        await context.write(reply)
                    if exchange.over:
                        return
                    timeout.reschedule(exchange.deadline(began_s, clock_s()))
        except TimeoutError:
            async with asyncio.timeout(_LAST_WORDS_S):
                for reply in exchange.expire():
                    await context.write(reply)
        finally:
            self._streams -= 1
            exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()
