"""Workers whose answers a test sets."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.threads import serving


@contextlib.contextmanager
def worker(answer: Callable[[Any], None], *, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Serve in a thread; yield the URL. Requests but those to /health are answered by a call with their handler."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            if self.path == "/health":
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                answer(self)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do  # noqa: N815 - as the base has them

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - likewise
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as (_, port):
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"


def echo_worker(
    headers: Mapping[str, str] | None = None, *, status: int = 200, tls: tuple[Path, Path] | None = None
) -> contextlib.AbstractContextManager[str]:
    """Serve in a thread; yield the URL. The answer is the request as JSON, with these headers."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        seen = {
            "method": handler.command,
            "path": handler.path,
            "headers": {name.lower(): value for name, value in handler.headers.items()},
            "body": body.decode("latin-1"),
        }
        text = json.dumps(seen).encode()
        handler.send_response(status)
        handler.send_header("X-Method", handler.command)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        if status != 204:
            handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        if handler.command != "HEAD" and status not in {204, 304}:
            handler.wfile.write(text)

    return worker(answer, tls=tls)
