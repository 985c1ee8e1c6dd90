"""A worker that answers with what it was sent."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.threads import serving


@contextlib.contextmanager
def echo_worker(
    headers: Mapping[str, str] | None = None, *, status: int = 200, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Serve in a thread; yield the URL. The answer is the request as JSON, with these headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen = {
                "method": self.command,
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "body": body.decode("latin-1"),
            }
            text = json.dumps(seen).encode()
            self.send_response(status)
            self.send_header("X-Method", self.command)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD" and status not in {204, 304}:
                self.wfile.write(text)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815 - as the base has them

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - likewise
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as (_, port):
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
