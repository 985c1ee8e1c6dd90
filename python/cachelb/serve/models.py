"""`/v1/models`: the lists of all workers as one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cachelb.serve.asgi import send_json, send_whole
from cachelb.serve.headers import request_headers
from cachelb.serve.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.router import Router
    from cachelb.serve.asgi import Send
    from cachelb.serve.upstreams import Upstreams

_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 4 << 20
_MOST_CALLS: Final = 64
"""Lists read from workers at a time: a client's request costs one of each worker."""
_OK: Final = 200


class _Answer(NamedTuple):
    status: int  # 0 where there was no answer
    body: bytes
    models: list[dict[str, Any]]


class Models:
    """Merges the lists by id; of several workers with a model, the first one's entry is shown."""

    def __init__(self, router: Router[str], upstreams: Upstreams) -> None:
        """Read nothing yet."""
        self._router, self._upstreams = router, upstreams
        self._calls = asyncio.Semaphore(_MOST_CALLS)

    async def answer(self, path: str, headers: Sequence[tuple[bytes, bytes]], send: Send) -> None:
        """Answer a list, or the entry of the model that the path names, with the client's own credentials."""
        passed = dict(request_headers(headers, is_read=True))
        answers = await asyncio.gather(*(self._read(worker, passed) for worker in self._router.workers()))
        found: dict[str, dict[str, Any]] = {}
        for answer in answers:
            for model in answer.models:
                found.setdefault(model["id"], model)
        refused = next((answer for answer in answers if answer.status), None)
        name = path.removeprefix("/v1/models").strip("/")
        if not any(answer.status == _OK for answer in answers):
            if refused is None:
                raise Refusal(503, "no_worker_available", "no worker is available", retry_after_s=1.0)
            await send_whole(send, refused.status, refused.body, [(b"content-type", b"application/json")])
        elif not name:
            await send_json(send, _OK, {"object": "list", "data": list(found.values())})
        elif name in found:
            await send_json(send, _OK, found[name])
        else:
            raise Refusal(404, "model_not_found", "the model does not exist")

    async def _read(self, worker: str, headers: dict[str, str]) -> _Answer:
        import aiohttp

        upstream = self._upstreams.of(worker, self._router)
        if upstream.authorization is not None:
            headers = headers | {"authorization": upstream.authorization}
        try:
            async with (
                self._calls,
                asyncio.timeout(_TIMEOUT_S),
                upstream.session.get(f"{upstream.base}/v1/models", headers=headers, allow_redirects=False) as answer,
            ):
                body = await answer.content.read(_MOST_BYTES)
                while len(body) < _MOST_BYTES and (more := await answer.content.readany()):
                    body += more
        except (aiohttp.ClientError, TimeoutError, OSError):
            return _Answer(0, b"", [])
        return _Answer(answer.status, body, _entries(body) if answer.status == _OK else [])


def _entries(body: bytes) -> list[dict[str, Any]]:
    """Return the models in a list; anything else is passed over."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return []
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return []
    return [each for each in data if isinstance(each, dict) and isinstance(each.get("id"), str)]
