"""The gateway as an object of a program; its server is native."""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cachelb._core import NativeGateway
from cachelb.bodies import UNTRUSTED_HEADERS
from cachelb.types import Histogram
from cachelb_gateway.certificate import Certificate
from cachelb_gateway.serve.addresses import check_address
from cachelb_gateway.serve.operators import Operators

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from cachelb.admission import AdmissionOptions
    from cachelb.router import Router

_LEAST_TOKEN: Final = 16
_MOST_THREADS: Final = 4


class Series(NamedTuple):
    """Requests that one worker answered for one model.

    Example:
        >>> from cachelb import Router
        >>> from cachelb_gateway.serve import Gateway
        >>> Gateway(Router()).series
        []
    """

    worker: str
    """Key of the worker, "" for what the gateway answered itself."""

    model: str
    """The model that was routed by, "" for the default one."""

    statuses: Mapping[int, int]
    """Requests by status of the answer, 0 for those without an answer."""

    first_byte_seconds: Histogram
    """Time to the first byte of streams."""

    request_seconds: Histogram
    """Time to the end of complete answers."""

    bytes_in: int
    """Bytes of request bodies."""

    bytes_out: int
    """Bytes of answers."""


class Gateway:
    """Passes every path and method to the workers of a router, and streams their answers.

    It answers `/health`, `/ready`, `/v1/models` and its own errors, which have the form of OpenAI's and name no worker.
    A request whose client leaves is cancelled: its connection to the worker is closed, which stops the engine, and its
    booking ends. The server has threads of its own: it shares the router with everything else in the process, and takes
    the interpreter's lock only for policies, renderers and clocks in Python. Use the router with
    `RequestBodies(strict=True, max_bytes=max_body_bytes)`, so that a prompt that is no JSON is answered with 400.

    Events that concern operators are logged as `cachelb_gateway.serve`.

    Example:
        >>> from urllib.request import urlopen
        >>> import cachelb
        >>> from cachelb_gateway.serve import Gateway
        >>> with Gateway(cachelb.Router(["http://127.0.0.1:8000"])) as gateway:
        ...     gateway.start("127.0.0.1:0")
        ...     urlopen(f"{gateway.urls[0]}/health").status
        200
    """

    def __init__(
        self,
        router: Router[str],
        *,
        attempts: int = 3,
        wait_s: float = 5.0,
        max_body_bytes: int = 32 << 20,
        body_timeout_s: float = 30.0,
        max_open: int = 4096,
        max_held_bytes: int = 512 << 20,
        max_connections: int = 16_384,
        admission: AdmissionOptions | None = None,
        idle_timeout_s: float = 600.0,
        first_byte_timeout_s: float | None = None,
        connect_timeout_s: float = 5.0,
        head_timeout_s: float = 15.0,
        keep_alive_s: float = 75.0,
        health_interval_s: float | None = 2.0,
        policy_timeout_s: float = 1.0,
        expose_headers: Sequence[str] = (),
        upstream_ca: str | os.PathLike[str] | None = None,
        access_log: str | os.PathLike[str] | None = None,
        access_log_format: Literal["text", "json"] = "text",
        threads: int | None = None,
    ) -> None:
        """Prepare the gateway; `start` opens it.

        Args:
            router: The router; its workers are their URLs: `http://host:port`, `https://host` or `unix:///path`.
            attempts: Workers that a request is tried on, before the first byte of an answer.
            wait_s: Seconds that a request waits for a worker to become available.
            max_body_bytes: Bytes of a request's body; a longer one is answered with 413.
            body_timeout_s: Seconds that a body may take; a slower one is answered with 408.
            max_open: Requests at a time; more are answered with 503.
            max_held_bytes: Bytes of all bodies at a time; likewise.
            max_connections: Connections of clients at a time; more are closed.
            admission: Options of an `Admission` that holds prompts where every worker has as much before it as the
                bounds allow, and refuses them with 429. Policy, shadow, renderer and clock of the router must be
                native. None holds and refuses none.
            idle_timeout_s: Seconds without a byte from the worker or to the client after which a request ends.
            first_byte_timeout_s: Seconds within which a worker must begin to answer a request, which otherwise is sent
                to another one. None waits `idle_timeout_s`, and then answers 504.
            connect_timeout_s: Seconds that opening a connection to a worker may take.
            head_timeout_s: Seconds that the head of a request may take.
            keep_alive_s: Seconds after which an idle connection of a client is closed.
            health_interval_s: Seconds between two `GET /health` of each worker; one that fails is not picked. None
                sends none.
            policy_timeout_s: Seconds that a request waits for a policy or a renderer in Python. Beyond it the worker
                with the least load is picked, which counts as "policy-timeout".
            expose_headers: Headers of the decision that clients get, where they are trusted.
            upstream_ca: PEM file with the authorities that `https://` workers are checked with, in place of the
                system's.
            access_log: File to which a line for each request is appended, "-" for standard output; None writes none.
            access_log_format: Format of its lines.
            threads: Threads of the server. None takes one for each processor, at most 4.

        Raises:
            OSError: `upstream_ca` cannot be read, or holds no certificate.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, a decision has no such header, or the admission cannot be used.
        """
        options = {**locals()}
        del options["self"], options["router"]
        log = None
        if access_log is not None:
            log = (None if access_log == "-" else os.fspath(access_log), access_log_format)
        options |= {
            "untrusted_headers": sorted(UNTRUSTED_HEADERS),
            "expose_headers": [expose_headers] if isinstance(expose_headers, str) else list(expose_headers),
            "authorities": _authorities(None if upstream_ca is None else os.fspath(upstream_ca)),
            "access_log": log,
            "threads": min(_MOST_THREADS, os.cpu_count() or 1) if threads is None else threads,
            "admission": None if admission is None else admission.native(router.shared_state.replicas),
        }
        self._native = NativeGateway(router, options)
        self._router = router
        self._urls: list[str] = []
        self._admin_url: str | None = None
        self._operators = Operators(router, self)

    def start(
        self,
        listen: str | Sequence[str] = "127.0.0.1:8080",
        *,
        admin: str | None = None,
        admin_token: str | None = None,
        capture: bool = False,
        certificate: Certificate | None = None,
    ) -> None:
        """Open the gateway.

        Args:
            listen: Address for clients, or several: `host:port`, port 0 for any that is free, or `unix:/path`.
            admin: Address for operators, with `/metrics` and `/dump`. Its answers name workers: take the loopback, or
                give a token. None opens none.
            admin_token: Text of 16 characters or more that requests of operators carry as `Authorization: Bearer`.
            capture: Whether operators may record live traffic with `/capture`, as `cachelb.records.Capture` does.
            certificate: For TLS with clients; None serves without.

        Raises:
            OSError: The certificate cannot be read.
            RuntimeError: An address cannot be listened on, the gateway was started before, or the process was forked
                since it was made.
            ValueError: An address has another form, the token is too short, or the certificate cannot be used.
        """
        addresses = [listen] if isinstance(listen, str) else list(listen)
        for address in [*addresses, *([] if admin is None else [admin])]:
            check_address(address)
        if admin_token is not None and len(admin_token) < _LEAST_TOKEN:
            raise ValueError(f"token must have {_LEAST_TOKEN} characters or more, got {len(admin_token)}")
        read = None if certificate is None else certificate.read()
        self._operators.may_capture = capture
        operators = None if admin is None else (admin, self._operators.answer, admin_token)
        self._urls, self._admin_url = self._native.start([(address, read) for address in addresses], operators)
        # Its threads must not need an interpreter that ends.
        weakref.finalize(self, self._native.stop, 0.0, 0.0)

    def stop(self, drain_s: float = 2.0, grace_s: float = 30.0) -> None:
        """End the gateway, and wait for that; idempotent. A second call, from another thread, ends it at once.

        It is not ready, so that load balancers take it out while it still serves for `drain_s`; then it accepts nothing
        more, and lets open requests finish, those among them that wait for a worker.

        Args:
            drain_s: Seconds to go on serving, not ready.
            grace_s: Seconds that open requests have, those of `drain_s` among them; the rest is broken off.
        """
        self._native.stop(drain_s, grace_s)

    def reload_certificate(self, certificate: Certificate) -> bool:
        """Use a certificate from the next connection on.

        Args:
            certificate: In the place of the one that the gateway was started with.

        Returns:
            Whether it is another one.

        Raises:
            RuntimeError: The gateway has not started.
            OSError: The certificate cannot be read.
            ValueError: It cannot be used, or the gateway was started without one. The earlier one remains.
        """
        return self._native.reload_certificate(certificate.read())

    @property
    def urls(self) -> list[str]:
        """URLs of the addresses for clients, once started."""
        return list(self._urls)

    @property
    def admin_url(self) -> str | None:
        """URL of the address for operators, None without one."""
        return self._admin_url

    @property
    def open_requests(self) -> int:
        """Requests that are served now."""
        return self._native.open_requests

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies in memory."""
        return self._native.held_bytes

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the gateway that are not 0.

        Requests refused because of the client: "bad-head", "slow-head", "bad-body", "slow-body", "too-large",
        "not-found", "no-model"; because of a limit: "too-many-streams", "too-many-connections", "full" (held bodies),
        "workers-busy"; "no-worker", "draining" at the end, or because the gateway "failed" or "panicked". Attempts at
        workers that were "unreachable", "timed-out" or "torn" in an answer; "retried" ones, and those repeated because
        the worker had closed a "stale-connection". Requests whose "client-left", connections with "pipelined" requests,
        "upgraded" ones, picks without a policy in Python that took too long ("policy-timeout"), and lines of the access
        log that were lost ("line-dropped").
        """
        return self._native.counts

    @property
    def series(self) -> list[Series]:
        """Requests by worker and model, without workers that are gone."""
        bounds = tuple(self._native.bounds_s)

        def histogram(times: tuple[list[int], float]) -> Histogram:
            return Histogram(bounds, tuple(times[0]), times[1])

        return [
            Series(worker, model, statuses, histogram(first), histogram(whole), bytes_in, bytes_out)
            for worker, model, statuses, first, whole, bytes_in, bytes_out in self._native.series()
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop(drain_s=0.0)


def _authorities(ca_file: str | None) -> list[bytes]:
    """Return the certificates of the authorities in a file, or of the system's."""
    return ssl.create_default_context(cafile=ca_file).get_ca_certs(binary_form=True)
