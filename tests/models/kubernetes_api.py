"""An API server of Kubernetes on loopback that misbehaves on request."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import threading
import warnings
from typing import Any, Self

from aiohttp import web

END, CUT = b"end", b"cut"


def endpoint(address: str, **conditions: Any) -> dict[str, Any]:
    """An endpoint of a slice; a pod of that name is behind it unless `pod` names another, or None."""
    pod = conditions.pop("pod", address)
    target = {} if pod is None else {"targetRef": {"kind": "Pod", "uid": f"uid-{pod}"}}
    return {"addresses": [address], "conditions": conditions, **target}


def endpoint_slice(name: str, *endpoints: dict[str, Any], ports: Any = None, family: str = "IPv4") -> dict[str, Any]:
    declared = [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports
    return {"metadata": {"name": name}, "addressType": family, "endpoints": list(endpoints), "ports": declared}


def pod(name: str, address: str | None, *, ready: str = "True", ports: Any = (), **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **meta},
        "spec": {"containers": [{"ports": list(ports)}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
    }


class FakeKubernetes:
    """Serves one kind of objects, as lists in pages and as watches; every attribute may change while it runs."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, page_items: int = 250) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.status = 200
        self.is_silent = False
        self.token: str | None = None
        self.page_items = page_items
        self.oldest = 0  # watches from before are too old
        self.lists = self.watches = 0
        self.asked: list[str] = []
        self._version = 100
        self._log: list[tuple[int, bytes]] = []
        self._open: list[asyncio.Queue[bytes]] = []
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        with warnings.catch_warnings():
            # asyncio leaves the transports of abandoned handshakes to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def version(self) -> int:
        return self._version

    def put(self, item: dict[str, Any]) -> None:
        """Add or change an object."""
        name = item["metadata"]["name"]
        self._change("MODIFIED" if name in self.objects else "ADDED", item)

    def delete(self, name: str) -> None:
        self._change("DELETED", self.objects[name])

    def bookmark(self) -> None:
        self._change("BOOKMARK", {"metadata": {}})

    def send(self, content: bytes) -> None:
        """Send to open watches what is no change, or end (`END`) or break (`CUT`) them."""

        def put() -> None:
            for queue in self._open:
                queue.put_nowait(content)

        self._loop.call_soon_threadsafe(put)

    def expire(self) -> None:
        """Forget the changes so far: older watches get 410."""
        self._version += 1
        self.oldest, self._log = self._version, []

    def _change(self, kind: str, item: dict[str, Any]) -> None:
        self._version += 1
        meta = {**item["metadata"], "resourceVersion": str(self._version)}
        item = {**item, "metadata": meta}
        if kind == "DELETED":
            del self.objects[meta["name"]]
        elif kind != "BOOKMARK":
            self.objects[meta["name"]] = item
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self._log.append((self._version, line))
        self.send(line)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._site.stop()
        await _turns()  # connections that were accepted before
        for queue in self._open:
            queue.put_nowait(END)
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()  # over TLS, closing waits for the client
        await self._runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}  # such as a handshake that the client gave up
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _turns()  # in which transports close

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.path}?{request.query.get('labelSelector')}")
        if self.is_silent:
            await asyncio.Event().wait()
        if self.status != 200:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if request.query.get("watch") == "True":
            return await self._watch(request)
        self.lists += 1
        items, start = list(self.objects.values()), int(request.query.get("continue", "0"))
        size = min(self.page_items, int(request.query["limit"]))
        more = str(start + size) if start + size < len(items) else ""
        meta = {"resourceVersion": str(self._version), "continue": more}
        return web.json_response({"metadata": meta, "items": items[start : start + size] or None})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        since = int(request.query["resourceVersion"])
        assert request.query["allowWatchBookmarks"] == "True"
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.oldest:
            await response.write(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}\n')
            return response
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for version, line in self._log:
            if version > since:
                queue.put_nowait(line)
        self._open.append(queue)
        try:
            while (content := await queue.get()) != END:
                if content == CUT:
                    await response.write(b'{"type": "ADDED", "obj')
                    assert request.transport is not None
                    request.transport.abort()
                    break
                await response.write(content)
        finally:
            self._open.remove(queue)
        return response


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
