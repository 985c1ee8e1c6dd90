"""Clients that do not keep to HTTP, or are slow: connections of their own, byte by byte."""

from __future__ import annotations

import asyncio
from typing import Final

_BODY: Final = b'{"prompt": [1, 2, 3], "max_tokens": 24, "stream": true}'
_HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
_WHOLE: Final = _HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)

KINDS: Final = {
    "two lengths": _HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "length and chunks": _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "long head": _HEAD + b"X-Long: " + b"a" * 70_000 + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and more of it\r\n\r\n",
    "body that is no JSON": _HEAD + b"Content-Length: 9\r\n\r\nnot JSON!",
    "half a head": _HEAD[:40],
    "half a body": _HEAD + b"Content-Length: 4000\r\n\r\n" + _BODY,
    "pipelined": _WHOLE + _WHOLE,
    "slow": _WHOLE,
}
"""By kind, the bytes that such a client sends."""
_LEAVE: Final = frozenset({"half a head", "half a body", "pipelined"})
"""Kinds that leave without an answer."""
GOOD: Final = frozenset({"400", "408", "431", "left", "closed", "whole"})
_PATIENCE_S: Final = 60.0


async def attack(port: int, kind: str) -> str:
    """Run such a client.

    Args:
        port: Port of the gateway, on the loopback.
        kind: One of `KINDS`.

    Returns:
        The status of the answer, "whole" for one that a slow client read to its end, "left", "closed" or "no answer".
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=256)
    try:
        writer.write(KINDS[kind])
        await writer.drain()
        if kind in _LEAVE:
            await asyncio.sleep(0.05)
            return "left"
        async with asyncio.timeout(_PATIENCE_S):
            begin = await reader.read(64)
            status = begin.decode("latin-1").split(" ")[1] if begin.startswith(b"HTTP/1.1 ") else "closed"
            if kind != "slow" or status != "200":
                return status
            end = begin
            while part := await reader.read(64):
                end = (end + part)[-64:]
                if b"[DONE]" in end:
                    return "whole"
                await asyncio.sleep(0.02)
            return "torn"
    except TimeoutError:
        return "no answer"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()
