"""A metrics server on loopback that misbehaves on request, and a router that records its calls."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any, Literal, Self

from tests import waiting
from tests.answering import Handler

from cachelb.sources import MetricsSource

eventually = waiting.wait_until

DEADLINE_S = 120.0


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port that refuses connections unless a `FakeEngine` is started on it, and that no other process gets."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def polling(router: RecordingRouter, **options: Any) -> Iterator[MetricsSource]:
    """A source that polls for a router, faster than usual."""
    source = MetricsSource(**{"interval_s": 0.005, "timeout_s": 20.0} | options)
    source.start(router)
    try:
        yield source
    finally:
        source.stop()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    allow_reuse_port = True
    daemon_threads = True
    engine: FakeEngine

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


class FakeEngine:
    """Serves one page; every attribute may change while it runs."""

    def __init__(self, page: bytes, *, port: int = 0) -> None:
        self.page = page
        self.status = 200
        self.is_chunked = False
        self.closes_after_answer = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.connections: list[socket.socket] = []
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.engine = self
        self.port = int(self._server.server_address[1])
        self.key = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and cut every connection."""
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # closed by its handler already
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Handler(Handler):
    server: _Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.engine.connections.append(self.connection)

    def answer(self) -> None:
        engine = self.server.engine
        engine.requests.append(dict(self.headers))
        engine.paths.append(self.path)
        engine.may_answer.wait(DEADLINE_S)
        headers = {"Connection": "close"} if engine.closes_after_answer else {}
        if not engine.is_chunked:
            self.reply(engine.page, engine.status, headers)
            return
        self.send_response(engine.status)
        for name, value in (headers | {"Transfer-Encoding": "chunked"}).items():
            self.send_header(name, value)
        self.end_headers()
        parts = [engine.page[at : at + 1000] for at in range(0, len(engine.page), 1000)]
        self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""]))


class RecordingRouter:
    """Stands in for the router: keeps every report and fact, and can wait for one."""

    def __init__(self, *keys: str, block_size: int = 16) -> None:
        self.current = list(keys)
        self.block_size = block_size
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.facts: list[tuple[str, int | None, int | None]] = []
        self.engines: dict[str, str] = {}
        self._changed = threading.Condition()

    def keys(self) -> list[str]:
        return list(self.current)

    @property
    def load_sink(self) -> Self:
        return self

    def update_health(self, worker: str, **outcome: Any) -> None:
        """Keep nothing of it."""

    def reset_cache(self, worker: str) -> None:
        """Keep nothing of it."""

    def update_load(self, worker: str, **report: Any) -> None:
        if worker not in self.current:
            raise KeyError(worker)
        with self._changed:
            self.reports.append((worker, report))
            self._changed.notify_all()

    def learn_worker(
        self,
        worker: str,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        retention_interval: int | Literal["all"] | None = None,
        engine: str | None = None,
    ) -> None:
        if engine is not None:
            self.engines[worker] = engine
            return
        self.facts.append((worker, kv_blocks, block_size))
        if block_size != self.block_size:
            raise ValueError(f"block size {block_size} of {worker} is not the router's {self.block_size}")

    def wait_for(self, key: str, **wanted: Any) -> dict[str, Any]:
        """Wait for a report of a worker, from now on, that has these values; return it."""
        seen = len(self.reports)

        def match() -> dict[str, Any] | None:
            return next(
                (
                    report
                    for worker, report in self.reports[seen:]
                    if worker == key and wanted.items() <= report.items()
                ),
                None,
            )

        with self._changed:
            assert self._changed.wait_for(lambda: match() is not None, DEADLINE_S), f"no report with {wanted}"
        found = match()
        assert found is not None
        return found

    def count(self, key: str) -> int:
        return sum(worker == key for worker, _ in self.reports)
