"""`cachelb doctor capture`: records of live traffic from the admin address of a gateway."""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, option
from cachelb.cli.table import printable
from cachelb.records.capture import MOST_SECONDS

_PATIENCE_S: Final = 30.0
_PIECE: Final = 1 << 16
_SHOWN: Final = 1000
_OK: Final = 200
_NOT_FOUND: Final = 404
_EXAMPLES = """\b
Examples:
  cachelb doctor capture http://127.0.0.1:9090
  cachelb doctor capture http://gateway:9090 --seconds 600 -o capture.jsonl --token-file token
"""


@click.command(epilog=_EXAMPLES, short_help="Record requests of a gateway, without prompts.")
@click.argument("url")
@option("--seconds", 300.0, click.FloatRange(min=0.1, max=MOST_SECONDS), "For how long requests are taken.")
@option("--linger", 60.0, click.FloatRange(min=0), "Seconds after that in which those taken may finish.")
@option("--max-mb", 256, COUNT, "Size of the file at which it ends early.")
@option("-o --output", Path("capture.jsonl"), FILE, "The file; it is replaced.")
@click.option("--token-file", type=FILE, help="Bearer token of the admin address.")
def capture(*, url: str, seconds: float, linger: float, max_mb: int, output: Path, token_file: Path | None) -> None:
    """Record the requests of a gateway for some minutes, without prompts, for cachelb doctor analyze.

    URL is the admin address of cachelb serve --capture. The file has lengths, times, workers and cached tokens, and of
    each prompt chained hashes of its blocks under a key that ends with the capture.
    """
    limits = {"seconds": seconds, "linger_s": linger, "max_bytes": max_mb << 20}
    with shown(OSError), shown(ValueError, by=partial(click.BadParameter, param_hint="URL")):
        headers = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text('utf-8').strip()}"}
        connection, path = _connect(url, seconds + linger + _PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(limits), headers)
        _store(connection.getresponse(), output)
    except HTTPException as error:
        raise click.ClickException(
            f"the gateway ended the capture: {type(error).__name__}; {output} has the rest"
        ) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or url}: {error.strerror or error}") from error
    finally:
        connection.close()
    click.echo(_summary(output))


def _connect(url: str, timeout_s: float) -> tuple[HTTPConnection, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be the admin address of a gateway, such as http://127.0.0.1:9090")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s), f"{parts.path.rstrip('/')}/capture"


def _store(answer: HTTPResponse, output: Path) -> None:
    """Write the answer as it comes."""
    if answer.status != _OK:
        raise click.ClickException(_problem(answer.status, answer.read(_SHOWN)))
    with output.open("wb", buffering=0) as file:
        while piece := answer.read1(_PIECE):
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]


def _problem(status: int, body: bytes) -> str:
    """Describe an answer that is no capture."""
    if status == _NOT_FOUND:
        return "there is no /capture at this address: give the one of cachelb serve --admin"
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError):
        error = None
    return printable(error) if isinstance(error, str) else f"the gateway answers with status {status}"


def _summary(output: Path) -> str:
    """Describe the file by its last line."""
    with output.open("rb") as file:
        last = deque(file, maxlen=1)
    try:
        end: dict[str, Any] = json.loads(last[0])
        left = f"{end['open']:,} unfinished and {end['missed']:,} missed"
        return f"{output}: {end['requests']:,} requests, without {left}; ended by {end['reason']}"
    except (IndexError, KeyError, ValueError, TypeError):
        raise click.ClickException(f"the gateway ended the capture early; {output} has the rest") from None
