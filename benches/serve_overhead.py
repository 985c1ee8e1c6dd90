"""Processor time per request of `cachelb serve` beside a bare pass-through of the same stack.

    python -m benches.serve_overhead

Both are uvicorn (httptools, uvloop) with an aiohttp client, each in a process of its own, in front of one worker that
sends prepared answers. They take turns, so that what else the machine does concerns both. Times are of the gateway's
process alone, user and system.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import uvicorn
import uvloop
from benches.programs import program

from cachelb.serve.asgi import Receive, Scope, Send

BODY: Final = json.dumps({"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 20}).encode()
ANSWER: Final = json.dumps({"choices": [{"text": "x" * 1900}], "usage": {"prompt_tokens": 400}}).encode()
EVENT: Final = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"token"}}]}\n\n'
EVENTS: Final = 20
PATH: Final = "/v1/chat/completions"
KINDS: Final = ("json", "sse")


class Worker(asyncio.Protocol):
    """Answers each request at once, or with events, a write each; it costs as little as Python can."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what it is
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found or len(body) < len(BODY):
            return
        self.data = b""
        if b"x-kind: sse" in head.lower():
            asyncio.get_running_loop().create_task(self.stream())
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
            self.transport.write(head + ANSWER)

    async def stream(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(EVENTS):
            self.transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            await asyncio.sleep(0.0005)
        self.transport.write(b"0\r\n\r\n")


async def run_worker() -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", 0)
    print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def run_bare(worker: str) -> None:
    """Pass requests through, and nothing else."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(worker, connector=connector, auto_decompress=False) as session:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            body, more = b"", True
            while more:
                message = await receive()
                body += message["body"]
                more = message["more_body"]
            headers = {
                name.decode(): value.decode()
                for name, value in scope["headers"]
                if name not in {b"host", b"content-length", b"connection"}
            }
            async with session.request(scope["method"], scope["path"], data=body, headers=headers) as answer:
                kept = [(name, value) for name, value in answer.raw_headers if name.lower() != b"transfer-encoding"]
                await send({"type": "http.response.start", "status": answer.status, "headers": kept})
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(
            app, port=0, http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning"
        )
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn sends no notification
            await asyncio.sleep(0.01)
        print(f"on http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
        await serving


def cpu_s(pid: int) -> float:
    """Processor time of a process, in seconds: of all its threads, to the nanosecond."""
    return sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{pid}/task").iterdir()) / 1e9


async def load(url: str, kind: str, count: int, clients: int) -> None:
    """Send requests from so many clients at a time."""
    left = iter(range(count))
    headers = {"content-type": "application/json", "x-kind": kind}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client() -> None:
            for _ in left:
                async with session.post(url + PATH, data=BODY, headers=headers) as answer:
                    read = await answer.read()
                    assert answer.status == 200, read
                    assert len(read) == (len(ANSWER) if kind == "json" else EVENTS * len(EVENT))

        await asyncio.gather(*(client() for _ in range(clients)))


def measure(rounds: int, count: int, clients: int) -> dict[str, dict[str, list[float]]]:
    """Return microseconds per request by kind and gateway, a figure per round."""
    found: dict[str, dict[str, list[float]]] = {kind: {"bare": [], "serve": []} for kind in KINDS}
    with program("-m", "benches.serve_overhead", "--role", "worker") as (_, worker), TemporaryDirectory() as folder:
        config = f"{folder}/gateway.json"  # without a table for load, which is polled by time and not by request
        Path(config).write_text(json.dumps({"workers": [worker]}), "utf-8")
        serve = ("-m", "cachelb", "serve", "--config", config, "--listen", "127.0.0.1:0", "--admin", "none")
        with (
            program("-m", "benches.serve_overhead", "--role", "bare", "--worker", worker) as bare,
            program(*serve) as served,
        ):
            gateways = {"bare": bare, "serve": served}
            for turn in range(rounds + 1):  # the first one warms up
                for kind in KINDS:
                    each = count if kind == "json" else count // 4
                    for name in sorted(gateways, reverse=turn % 2 > 0):
                        running, url = gateways[name]
                        before = cpu_s(running.pid)
                        asyncio.run(load(url, kind, each, clients))
                        if turn:
                            found[kind][name].append((cpu_s(running.pid) - before) / each * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=2000, help="requests a round; a quarter of them streams")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--role", choices=["worker", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        work = run_worker() if options.role == "worker" else run_bare(options.worker)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
        return
    print(f"{'us per request':16}{'bare':>8}{'serve':>8}{'ratio':>8}")
    for kind, by_name in measure(options.rounds, options.count, options.clients).items():
        bare, serve = (statistics.median(by_name[name]) for name in ("bare", "serve"))
        ratio = statistics.median(b / a for a, b in zip(by_name["bare"], by_name["serve"], strict=True))
        print(f"{kind:16}{bare:8.0f}{serve:8.0f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
