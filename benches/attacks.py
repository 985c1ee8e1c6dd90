"""Hostile clients of `cachelb serve`, on real sockets: memory, how long `/health` takes meanwhile, and bookings left.

    python -m benches.attacks
    python -m benches.attacks --only trailers,leave

Each attack meets a gateway of its own, in front of one stub worker. A row has the resident memory before and at its
highest, the slowest of the answers to `/health`, which is asked every 20 ms, and the requests that are open half a
second after all clients left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import select
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import urlopen

from benches.programs import program

MB: Final = 1 << 20
HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
PROMPT: Final = b'{"prompt": "x", "max_tokens": 1}'
ANSWER: Final = b"x" * (8 * MB)
Attack: TypeAlias = Callable[[str, int], Awaitable[str]]


def request(kind: bytes, body: bytes = PROMPT) -> bytes:
    return b"%bx-kind: %b\r\ncontent-length: %d\r\n\r\n%b" % (HEAD, kind, len(body), body)


class Worker(asyncio.Protocol):
    """Answers at once, never, or with 8 MB."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what it is
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self.data = b""
        if b"x-kind: hang" in head:
            return
        answer = ANSWER if b"x-kind: big" in head else b"{}"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(answer) + answer)


async def connect(host: str, port: int, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, limit=limit)


async def send(writer: asyncio.StreamWriter, data: bytes, seconds: float = 5.0) -> bool:
    """Send as much as is taken; return whether all was."""
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            await writer.drain()
    except (TimeoutError, OSError):
        return False
    return True


async def pipeline(host: str, port: int) -> str:
    """40 clients send 20 MB behind a request that the worker never answers."""
    made = [await connect(host, port) for _ in range(40)]
    for _, writer in made:
        writer.write(request(b"hang"))
    await asyncio.sleep(0.3)
    sent = await asyncio.gather(*(send(writer, request(b"hang") * (20 * MB // 200)) for _, writer in made))
    for _, writer in made:
        writer.transport.abort()
    return f"{sum(sent)} of 40 were taken whole"


async def trailers(host: str, port: int) -> str:
    """8 clients send 64 MB of trailers."""
    made = [await connect(host, port) for _ in range(8)]
    begin = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(PROMPT), PROMPT)
    field = b"x-trailer: " + b"x" * 1000 + b"\r\n"
    sent = await asyncio.gather(*(send(writer, begin + field * 64 * 1024) for _, writer in made))
    for _, writer in made:
        writer.transport.abort()
    return f"{sum(sent)} of 8 were taken whole"


async def unread(host: str, port: int) -> str:
    """300 clients do not read answers of 8 MB."""
    made = [await connect(host, port, 1) for _ in range(300)]
    for _, writer in made:
        writer.write(request(b"big"))
    await asyncio.sleep(5)
    for _, writer in made:
        writer.transport.abort()
    return ""


async def unfinished(host: str, port: int) -> str:
    """40 clients send 28 of 30 MB and wait."""
    made = [await connect(host, port) for _ in range(40)]
    head = HEAD + b"content-length: %d\r\n\r\n" % (30 * MB)
    await asyncio.gather(*(send(writer, head + b"x" * 28 * MB, 20) for _, writer in made))
    refused = 0
    for reader, writer in made:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.05):
                refused += (await reader.read(12)).endswith(b"503")
        writer.transport.abort()
    return f"{refused} of 40 were answered with 503"


async def leave(host: str, port: int, behind: int = 1) -> str:
    """A client sends one request more and leaves."""
    _, writer = await connect(host, port)
    writer.write(request(b"hang"))
    await asyncio.sleep(0.3)
    await send(writer, request(b"hang") * behind, 1)
    writer.transport.abort()
    return ""


async def half(host: str, port: int, behind: int = 2000) -> str:
    """A client sends 400 KB more, and leaves in order."""
    _, writer = await connect(host, port)
    writer.write(request(b"hang"))
    await asyncio.sleep(0.3)
    await send(writer, request(b"hang") * behind, 1)
    writer.close()
    return ""


async def keys(host: str, port: int) -> str:
    """Bodies of 25 MB, with millions of keys."""
    body = b'{"prompt": "x", %b "y": 1}' % b"".join(b'"%d": 0, ' % number for number in range(2_000_000))
    made = [await connect(host, port) for _ in range(4)]
    await asyncio.gather(*(send(writer, request(b"", body), 20) for _, writer in made))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            statuses = [(await reader.readline()).split()[1].decode() for reader, _ in made]
    for _, writer in made:
        writer.transport.abort()
    return f"bodies of {len(body) / MB:.0f} MB, answers {', '.join(statuses)}"


async def heads(host: str, port: int) -> str:
    """Heads that are too long, or can be read in two ways."""
    found = []
    for name, head in {
        "CL+TE": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "TE+CL": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
        "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "70 KB": HEAD + b"x: " + b"x" * 70_000 + b"\r\n\r\n",
        "300 headers": HEAD + b"".join(b"x-%d: 1\r\n" % number for number in range(300)) + b"\r\n",
        "bare LF": b"GET /v1/models HTTP/1.1\nhost: a\n\n",
        "fold": b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
    }.items():
        reader, writer = await connect(host, port)
        await send(writer, head)
        received = b""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(3):
                received = await reader.read(1 << 16)
        writer.transport.abort()
        status, body = received[9:12].decode(), received.partition(b"\r\n\r\n")[2]
        found.append(f"{name} {status or 'closed'}{'' if body else ' (no body)'}")
    return ", ".join(found)


ATTACKS: Final[dict[str, Callable[[str, int], Awaitable[str]]]] = {
    each.__name__: each for each in (pipeline, trailers, unread, unfinished, leave, half, keys, heads)
}


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text("utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def watch(pid: int, url: str) -> None:
    """Print, at the end of the input, the highest resident memory in MB and the slowest answer in ms."""
    where, highest, slowest = urlsplit(url), 0.0, 0.0
    print(f"watches {url}", flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        highest, began = max(highest, resident_mb(pid)), perf_counter()
        with contextlib.suppress(OSError), socket.create_connection((where.hostname or "", where.port or 0)) as made:
            made.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            while made.recv(1 << 16):
                pass
        slowest = max(slowest, perf_counter() - began)
    print(f"{highest:.0f} {slowest * 1e3:.0f}", flush=True)


async def attack(name: str, pid: int, url: str, admin: str) -> str:
    before = resident_mb(pid)
    watching = ("-m", "benches.attacks", "--role", "watch", "--pid", str(pid), "--url", url)
    with Popen([sys.executable, *watching], stdin=PIPE, stdout=PIPE, text=True) as watcher:  # noqa: ASYNC220 - before the attack
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdout.readline()
        said = await ATTACKS[name](urlsplit(url).hostname or "", urlsplit(url).port or 0)
        await asyncio.sleep(0.5)
        with urlopen(f"{admin}/dump") as dump:  # noqa: ASYNC210, S310 - after the attack, on the loopback
            open_requests = json.load(dump)["stats"]["open_requests"]
        watcher.stdin.close()
        highest, slowest = watcher.stdout.readline().split()
    what = (ATTACKS[name].__doc__ or "").rstrip(".")
    return f"| {what} | {before:.0f} -> {highest} | {slowest} | {open_requests} | {said} |"


async def run_worker() -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", 0)
    print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(ATTACKS), help="names, with commas")
    parser.add_argument("--python", default=sys.executable, help="interpreter of another version")
    parser.add_argument("--role", choices=["worker", "watch"], help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "watch":
        watch(options.pid, options.url)
        return
    if options.role == "worker":
        asyncio.run(run_worker())
        return
    print("| clients | resident, MB | slowest /health, ms | open | |", flush=True)
    print("|---|---|---:|---:|---|", flush=True)
    for name in options.only.split(","):
        with program("-m", "benches.attacks", "--role", "worker") as (_, worker), TemporaryDirectory() as folder:
            config = Path(folder) / "gateway.json"
            config.write_text(json.dumps({"workers": [worker], "load": {"enabled": False}}), "utf-8")
            words = ["-m", "cachelb", "serve", "--config", str(config)]
            words += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
            with program(*words, by=(options.python, "-u")) as (running, url):
                assert running.stdout is not None
                admin = running.stdout.readline().split()[-1]
                print(asyncio.run(attack(name, running.pid, url, admin)), flush=True)


if __name__ == "__main__":
    main()
