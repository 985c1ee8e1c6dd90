"""Servers on loopback whose answers a test sets."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers requests of every method with one call."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Send an empty answer, unless a subclass has another one."""
        self.reply()

    def do(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do  # noqa: N815 - as the base has them

    def content(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, content: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer, without its body where there is none."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD" and status not in {204, 304}:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as the base has it
        pass


def server(answer: Callable[[Handler], object]) -> ThreadingHTTPServer:
    """Listen, and serve nothing yet."""
    return ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Handler,), {"answer": answer}))


@contextlib.contextmanager
def serving(server: BaseServer) -> Iterator[Any]:
    """Serve from a thread; yield the address."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def answering(answer: Callable[[Handler], object], *, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Serve from a thread; yield the URL."""
    made = server(answer)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        made.socket = context.wrap_socket(made.socket, server_side=True)
    with serving(made) as (_, port):
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
