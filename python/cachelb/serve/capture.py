"""Captures of live traffic that are sent to the client as they are made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from cachelb.records.capture import Tap, check_limits
from cachelb.requests import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb.router import Router
    from cachelb.serve.asgi import Receive, Send
    from cachelb.serve.readiness import Readiness

_INTERVAL_S: Final = 0.25
_LIMITS: Final = {"seconds": 300.0, "linger_s": 60.0, "max_bytes": 256 << 20}


async def send_capture(
    router: Router[Any], readiness: Readiness, limits: Mapping[str, Any], receive: Receive, send: Send
) -> None:
    """Answer with a capture; it ends with its time, with the gateway, or when the client leaves.

    A client that reads slowly delays this answer only: what there is no room for meanwhile is counted and left out.
    """
    unknown = sorted(limits.keys() - _LIMITS.keys())
    if unknown:
        raise RequestError(400, f"a capture has no setting {unknown[0]!r}; it has {', '.join(_LIMITS)}")
    try:
        tap = Tap(router, *check_limits(**{**_LIMITS, **limits}))
    except RuntimeError as error:
        raise RequestError(409, str(error)) from None
    leaving = asyncio.ensure_future(receive())
    try:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not leaving.done():
            piece = await asyncio.to_thread(tap.stop if readiness.ending else tap.read)
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if tap.stats.ended is not None:
                break
            await asyncio.wait([leaving], timeout=_INTERVAL_S)
        await send({"type": "http.response.body", "body": b""})
    finally:
        tap.stop()
        leaving.cancel()
