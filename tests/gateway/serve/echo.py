"""Workers whose answers a test sets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.answering import Handler, answering


def worker(
    answer: Callable[[Any], None], *, tls: tuple[Path, Path] | None = None
) -> contextlib.AbstractContextManager[str]:
    """Serve in a thread; yield the URL. Requests but those to /health are answered by a call with their handler."""
    return answering(lambda handler: handler.reply() if handler.path == "/health" else answer(handler), tls=tls)


def echo_worker(
    headers: Mapping[str, str] | None = None, *, status: int = 200, tls: tuple[Path, Path] | None = None
) -> contextlib.AbstractContextManager[str]:
    """Serve in a thread; yield the URL. The answer is the request as JSON, with these headers."""

    def answer(handler: Handler) -> None:
        seen = {
            "method": handler.command,
            "path": handler.path,
            "headers": {name.lower(): value for name, value in handler.headers.items()},
            "body": handler.content().decode("latin-1"),
        }
        handler.reply(json.dumps(seen).encode(), status, {"X-Method": handler.command, **(headers or {})})

    return worker(answer, tls=tls)
