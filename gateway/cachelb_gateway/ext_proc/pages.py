"""Metrics and probes of an endpoint picker, as pages of plain HTTP."""

from __future__ import annotations

import socket
import sys
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client

from cachelb.metrics import CONTENT_TYPE, PrometheusCollector
from cachelb.metrics.family import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from cachelb.router import Router
    from cachelb_gateway.ext_proc.server import EndpointPicker


_MOST_CLIENTS = 64
_Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per connection, of which there are so many and no more: the others are closed."""

    daemon_threads = True
    request_queue_size = 2 * _MOST_CLIENTS

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_MOST_CLIENTS)
        super().__init__(address, handler)

    def process_request(self, request: _Connection, client_address: object) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def handle_error(self, request: _Connection, client_address: object) -> None:
        """Log nothing about clients that send nothing, or that leave."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def process_request_thread(self, request: _Connection, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds that a client may take

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
        """Log nothing: probes come every few seconds."""


class Pages:
    """`/metrics`, `/healthz` and `/readyz` of a picker, on a thread of their own.

    Example:
        >>> import asyncio
        >>> import urllib.request
        >>> import cachelb
        >>> from cachelb_gateway.ext_proc import EndpointPicker, Pages
        >>> router = cachelb.Router(["http://10.0.0.1:8000"])
        >>> with Pages("127.0.0.1:0", router, EndpointPicker(router)) as pages:
        ...     page = urllib.request.urlopen(f"http://127.0.0.1:{pages.port}/metrics").read().decode()
        >>> "cachelb_ext_proc_open_streams 0.0" in page
        True
    """

    def __init__(self, listen: str, router: Router[Any], picker: EndpointPicker[Any]) -> None:
        """Listen, and serve.

        Args:
            listen: `host:port`; port 0 takes a free one.
            router: Whose metrics are shown.
            picker: Likewise; `/readyz` answers 503 until it is ready for requests.

        Raises:
            OSError: The address cannot be listened on.
            ValueError: It is none.
        """
        registry = prometheus_client.CollectorRegistry()
        registry.register(PrometheusCollector(router, lambda: _families(picker)))
        host, found, port = listen.rpartition(":")
        if not found or not port.isascii() or not port.isdigit():
            raise ValueError(f"an address must be HOST:PORT, got {listen!r}")

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            status, kind, body = "200 OK", "text/plain; charset=utf-8", b"ok\n"
            match environ["PATH_INFO"]:
                case "/metrics":
                    kind, body = CONTENT_TYPE, prometheus_client.generate_latest(registry)
                case "/readyz" if not picker.is_ready:
                    status, body = "503 Service Unavailable", b"not ready\n"
                case "/healthz" | "/readyz":
                    pass
                case _:
                    status, body = "404 Not Found", b"there are /metrics, /healthz and /readyz\n"
            start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
            return [body]

        self._server = make_server(host.strip("[]"), int(port), answer, _Server, _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="cachelb-ext-proc-pages", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_port)

    def close(self) -> None:
        """End; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _families(picker: EndpointPicker[Any]) -> Iterator[Family]:
    events = [((name,), float(count)) for name, count in picker.counts.items()]
    text = "Requests of the endpoint picker by what became of them; one may be several."
    yield Family("ext_proc_events", "counter", text, "{request}", ("event",), events)
    text = "Requests that proxies have open at the endpoint picker."
    yield Family("ext_proc_open_streams", "gauge", text, "{request}", (), [((), picker.open_streams)])
    text = "Bodies and prompts that the endpoint picker holds."
    yield Family("ext_proc_held_bytes", "gauge", text, "By", (), [((), picker.held_bytes)])
