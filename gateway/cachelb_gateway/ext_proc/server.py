"""The endpoint picker as an object of an event loop; its server is native."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from cachelb._core import NativeEndpointPicker
from cachelb_gateway.certificate import Certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from cachelb.admission import AdmissionOptions
    from cachelb.router import Router

W = TypeVar("W")

BodyMode: TypeAlias = Literal["none", "streamed", "buffered", "duplex"]


class EndpointPicker(Generic[W]):
    """Picks workers for Envoy and everything built on it, over Envoy's external processing protocol.

    It follows the endpoint picker protocol of the Gateway API inference extension. The server is native and has a
    thread of its own: it shares the router with everything else in the process, and takes the interpreter's lock only
    for policies, renderers and clocks in Python. Workers need an IP address and a port: `http://10.0.0.1:8000` or
    `10.0.0.1:8000`.

    Example:
        >>> import asyncio
        >>> import cachelb
        >>> from cachelb_gateway.ext_proc import EndpointPicker
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
        policy_timeout_s: float = 1.0,
        fallbacks: int = 2,
        priorities: Mapping[str, int] | None = None,
        shed_inflight: int | None = None,
        admission: AdmissionOptions | None = None,
        rewrite_model: bool = False,
        default_body_mode: BodyMode = "duplex",
        expose_headers: Sequence[str] = (),
        conformance: bool = False,
    ) -> None:
        """Prepare the service; `start` opens it.

        Args:
            router: Picks the workers, and receives the outcome of requests.
            address: Gives a worker's `ip:port`, None to read it from the worker's key. Called once for each worker.
            max_body_bytes: Bytes of a request's body that are held and read at most.
            large_bodies: Treatment of longer ones, and of those for which there is no room: "pass" picks without
                reading them, "refuse" answers 413 or 503.
            max_held_bytes: Bytes of all bodies that are unfinished or that the proxy has not taken back yet, of the
                buffers they arrive in, and of prompts of requests without an answer yet, which take half of it at
                most.
            max_streams: Requests open at once; further ones are answered with 503.
            body_timeout_s: Seconds that a request may take to arrive, before it is answered with 408.
            idle_timeout_s: Seconds without a message after which a stream ends and its load is released.
            stream_timeout_s: Seconds that a request and its answer may take in all.
            policy_timeout_s: Seconds that a request waits for a policy or a renderer in Python. Beyond it the worker
                with the least load is picked by the text of the prompt, which counts as "policy-timeout".
            fallbacks: Workers to name behind the picked one, for the proxy to try in turn, at most 3.
            priorities: Priorities by the value of the header `x-llm-d-inference-objective` or
                `x-gateway-inference-objective`; 0 for the others.
            shed_inflight: A request of a negative priority is answered with 429 if the worker it would go to has this
                many requests in flight. None sheds nothing.
            admission: Options of an `Admission` that holds requests where every worker has as much before it as the
                bounds allow, and refuses them with 429. Priorities are those of objectives. Policy, shadow, renderer
                and clock of the router must be native. None holds and refuses none.
            rewrite_model: Put the name in the header `x-llm-d-model-name-rewrite` or `x-gateway-model-name-rewrite`
                into the body. Without it the name counts for the pick only, and the body stays as it is.
            default_body_mode: The mode in which a proxy that does not name it sends bodies.
            expose_headers: Which headers of decisions clients get, such as "x-cachelb-worker". They name workers and
                show what is cached.
            conformance: Do what the tests of the Gateway API inference extension ask a picker for: pick from the
                header `test-epp-endpoint-selection`, and show clients in `x-conformance-test-served-endpoint` the
                endpoint that the proxy reports. Never where clients are not trusted.

        Raises:
            ValueError: An argument is out of range.
        """
        options = {**locals()}
        del options["self"], options["router"], options["address"]
        if not isinstance(priorities, Mapping | None):
            raise TypeError(f"priorities must be a mapping of names to numbers, got {type(priorities).__name__}")
        if admission is not None and (admission.max_wait_s is None or admission.max_wait_s >= body_timeout_s):
            raise ValueError(
                f"max_wait_s of an admission must be below body_timeout_s={body_timeout_s}, in which a request has to "
                f"arrive and wait, got {admission.max_wait_s}"
            )
        options |= {
            "priorities": dict(priorities or {}),
            "admission": None if admission is None else admission.native(router.shared_state.replicas),
            "expose_headers": [expose_headers] if isinstance(expose_headers, str) else expose_headers,
        }
        self._native = NativeEndpointPicker(router, options, address=address)
        self._health_port: int | None = None
        self._ready = False

    async def start(
        self,
        listen: str = "127.0.0.1:9002",
        *,
        ready: bool = True,
        health_listen: str | None = None,
        certificate: Certificate | None = None,
    ) -> int:
        """Open the service.

        Args:
            listen: Address to listen on; port 0 takes a free one.
            ready: Whether requests may come at once. If not, call `set_ready` later, such as after state was restored.
            health_listen: A second address, for health checks alone and without TLS; see `health_port`.
            certificate: For TLS; None serves without.

        Returns:
            The port.

        Raises:
            RuntimeError: The address cannot be listened on, the service was started before, or the process was forked
                since it was made.
            OSError: The certificate cannot be read.
            ValueError: It cannot be used.
        """
        read = None if certificate is None else await asyncio.to_thread(certificate.read)
        port, self._health_port = await asyncio.to_thread(
            self._native.start, listen, ready=ready, health_listen=health_listen, certificate=read
        )
        self._ready = ready
        return port

    async def reload_certificate(self, certificate: Certificate) -> bool:
        """Use a certificate from the next connection on.

        Args:
            certificate: In the place of the one that the service was started with.

        Returns:
            Whether it is another one.

        Raises:
            RuntimeError: The service has not started.
            OSError: The certificate cannot be read.
            ValueError: It cannot be used, or the service was started without one. The one in use stays.
        """
        return self._native.reload_certificate(await asyncio.to_thread(certificate.read))

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the service: readiness goes, requests that come are refused, and open ones may end; idempotent.

        Args:
            grace_s: How long to wait for them, in seconds. The rest is broken off and its load released.
        """
        self._ready = False
        await asyncio.to_thread(self._native.stop, grace_s)

    async def set_ready(self, ready: bool) -> None:  # noqa: FBT001 - as `Router.set_ready`
        """Set the readiness reported to health checks.

        Args:
            ready: Whether they may.
        """
        await asyncio.to_thread(self._native.set_ready, ready)
        self._ready = ready

    @property
    def is_ready(self) -> bool:
        """Whether health checks see it ready for requests."""
        return self._ready

    @property
    def health_port(self) -> int | None:
        """The port for health checks alone, None without `health_listen`."""
        return self._health_port

    @property
    def open_streams(self) -> int:
        """Requests that the proxies have open here."""
        return self._native.open_streams

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies, the buffers they arrive in, and prompts that are held."""
        return self._native.held_bytes

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the endpoint picker.

        "picked"; refused as "no-worker", "workers-busy", "shed", "bad-body", "slow-body", "too-many-streams",
        "draining" or because the pick "failed"; refused or passed unread as "too-large" or because held bodies were
        "full"; picked by headers alone because the body is not sent, "body-not-sent"; picked without the policy or
        renderer in Python, which took too long: "policy-timeout"; "expired" streams; served by a "served-fallback", at
        an address that no worker has, "served-unknown", or by a worker that could not be booked, "served-unbooked";
        "observed" streams that want no reply.
        """
        return self._native.counts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()
