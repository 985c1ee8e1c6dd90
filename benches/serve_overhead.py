"""Processor time per request, and the slowest hundredth, of `cachelb serve` beside a bare pass-through on its stack.

    python -m benches.serve_overhead
    python -m benches.serve_overhead --old CHECKOUT     # and an earlier version, from a checkout with its own .venv

The pass-through is `benches/pass_through.rs`: hyper with its own client, 60 lines. All are in front of three
workers that send prepared answers, and take turns, so that what else the machine does concerns each. Processor times
are of the gateway's process alone, user and system. All clients connect before the first of them sends, and the first
answer of each is in no time: the gateway keeps a connection to a worker for 4 s, the pass-through for longer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit

from benches.programs import program

BODY: Final = json.dumps({"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 20}).encode()
ANSWER: Final = json.dumps({"choices": [{"text": "x" * 1900}], "usage": {"prompt_tokens": 400}}).encode()
EVENT: Final = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"token"}}]}\n\n'
EVENTS: Final = 30
HEAD: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nauthorization: Bearer key\r\n"
    b"user-agent: bench\r\nx-kind: %b\r\ncontent-length: %d\r\n\r\n"
)
CASES: Final = (("json", 1, 400), ("json", 32, 4000), ("json", 256, 12000), ("sse", 32, 1000), ("sse", 256, 2000))
"""Kind, clients, requests of a round."""
WORKERS: Final = 3
PASS_THROUGH: Final = "target/release/examples/pass_through"  # noqa: S105 - a path


class Worker(asyncio.Protocol):
    """Answers each request at once, or with events, a write each; it costs as little as Python can."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what it is
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found or (head.startswith(b"POST") and len(body) < len(BODY)):
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


class Client(asyncio.Protocol):
    """Sends requests, one behind the answer to another, for as long as there are any left."""

    def __init__(self, kind: str, left: list[None], times: list[float]) -> None:
        self.request = HEAD % (kind.encode(), len(BODY)) + BODY
        self.is_stream, self.left, self.times = kind == "sse", left, times
        self.done = asyncio.get_running_loop().create_future()
        self.data, self.is_warm = b"", False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what it is
        self.transport = transport

    def next(self) -> None:
        if not self.left:
            self.transport.close()
            self.done.set_result(None)
            return
        self.left.pop()
        self.began = perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if found and (body.endswith(b"0\r\n\r\n") if self.is_stream else len(body) >= len(ANSWER)):
            assert head.startswith(b"HTTP/1.1 200"), head
            assert body.count(EVENT) == (EVENTS if self.is_stream else 0)
            self.data = b""
            if self.is_warm:
                self.times.append(perf_counter() - self.began)
            self.is_warm = True
            self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the gateway closed the connection"))


async def run_worker() -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", 0)
    print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def load(url: str, kind: str, clients: int, count: int) -> list[float]:
    """Send requests from so many clients at a time; return their times in seconds."""
    where, left, times = urlsplit(url), [None] * count, list[float]()
    made = [
        await asyncio.get_running_loop().create_connection(
            lambda: Client(kind, left, times), where.hostname or "", where.port or 0
        )
        for _ in range(clients)
    ]
    for _, client in made:
        client.next()
    await asyncio.gather(*(client.done for _, client in made))
    return times


def cpu_s(pid: int) -> float:
    """Processor time of a process, in seconds: of all its threads, to the nanosecond."""
    return sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def measure(rounds: int, old: Path | None, threads: int) -> dict[tuple[str, int], dict[str, list[tuple[float, ...]]]]:
    """Return us per request, and the median and the 99th percentile in ms, by case and gateway, for each round."""
    build = ["cargo", "build", "--release", "--package", "cachelb-gateway", "--example", "pass_through", "--quiet"]
    subprocess.run(build, check=True)
    found: dict[tuple[str, int], dict[str, list[tuple[float, ...]]]] = {}
    with ExitStack() as stack:
        urls = [
            stack.enter_context(program("-m", "benches.serve_overhead", "--role", "worker"))[1] for _ in range(WORKERS)
        ]
        config = f"{stack.enter_context(TemporaryDirectory())}/gateway.json"
        Path(config).write_text(json.dumps({"workers": urls, "load": {"enabled": False}}), "utf-8")
        serve = ("-m", "cachelb", "serve", "--config", config, "--listen", "127.0.0.1:0", "--admin", "none")
        ports = [str(urlsplit(url).port) for url in urls]
        commands = {
            "bare": ((PASS_THROUGH,), ("127.0.0.1:0", *ports)),
            "serve": ((sys.executable, "-u"), (*serve, "--threads", str(threads))),
        }
        if old is not None:
            commands["old"] = ((f"{old}/.venv/bin/python", "-u"), serve)
        gateways = {}
        for name, (by, words) in commands.items():
            running, url = stack.enter_context(program(*words, by=by, environment={"THREADS": str(threads)}))
            gateways[name] = (running.pid, url)
        for turn in range(rounds + 1):  # the first one warms up
            for kind, clients, count in CASES:
                for name in sorted(gateways, reverse=turn % 2 > 0):
                    pid, url = gateways[name]
                    before = cpu_s(pid)
                    with asyncio.Runner() as runner:
                        times = sorted(runner.run(load(url, kind, clients, count)))
                    us = (cpu_s(pid) - before) / count * 1e6
                    row = (us, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3)
                    if turn:
                        found.setdefault((kind, clients), {}).setdefault(name, []).append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of the gateway and of the pass-through")
    parser.add_argument("--old", type=Path, help="checkout of an earlier version, with its .venv")
    parser.add_argument("--role", choices=["worker"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        with asyncio.Runner() as runner:
            runner.run(run_worker())
        return
    print("| answers, clients | gateway | us per request | to bare | p50, ms | p99, ms | to bare |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (kind, clients), by_name in measure(options.rounds, options.old, options.threads).items():
        bare = by_name["bare"]
        for name, rows in by_name.items():
            us, middle, slowest = (statistics.median(row[at] for row in rows) for at in range(3))
            ratios = [statistics.median(a[at] / b[at] for a, b in zip(rows, bare, strict=True)) for at in (0, 2)]
            print(
                f"| {kind}, {clients} | {name} | {us:.0f} | {ratios[0]:.2f} | {middle:.1f} | {slowest:.1f} "
                f"| {ratios[1]:.2f} |"
            )


if __name__ == "__main__":
    main()
