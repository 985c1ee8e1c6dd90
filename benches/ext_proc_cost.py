"""CPU time that the endpoint picker takes per request, its client's not counted: `python -m benches.ext_proc_cost`."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
from tests.models.ext_proc_client import BUFFERED, DUPLEX, Proxy

WORKERS = 100
REQUESTS = 300
AT_ONCE = 16
ANSWER_CHUNKS = 20


def cpu_s(pid: int) -> float:
    """Read the CPU seconds of a process's threads."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text("utf-8").split()[0]) for file in files) / 1e9


async def one(proxy: Proxy, body: bytes, modes: dict[str, int], chunks: int) -> None:
    """Play one request through, with bodies in messages of 64 KB, as Envoy cuts them."""
    stream = proxy.stream(modes)
    await stream.send_headers()
    if modes is BUFFERED:
        await stream.read()
        await stream.send_body(body)
    else:
        for start in range(0, len(body), 65_536):
            await stream.send_body(body[start : start + 65_536], end=start + 65_536 >= len(body))
    picked = await stream.read_picked(body=modes is DUPLEX)
    await stream.answer_headers(served=picked.endpoints[0], kind="text/event-stream")
    for chunk in range(chunks):
        await stream.answer_body(b'data: {"choices":[{"text":" word"}]}\n\n', end=chunk == chunks - 1)
    await stream.finish()


async def drive(port: int, pid: int, size: int, modes: dict[str, int], chunks: int) -> float:
    """Play many; return CPU milliseconds of the picker per request."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        proxy = Proxy(channel)
        bodies = [
            json.dumps({"messages": [{"role": "user", "content": f"{n % 30} " + "word " * (size // 5)}]}).encode()
            for n in range(REQUESTS)
        ]
        before = cpu_s(pid)
        for start in range(0, REQUESTS, AT_ONCE):
            await asyncio.gather(*(one(proxy, body, modes, chunks) for body in bodies[start : start + AT_ONCE]))
        return 1000 * (cpu_s(pid) - before) / REQUESTS


def main() -> None:
    """Run the picker as a process of its own and print a table."""
    workers = [f"http://10.0.{n // 250}.{n % 250 + 1}:8000" for n in range(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.toml"
        config.write_text(f"workers = {json.dumps(workers)}\n", "utf-8")
        words = [
            sys.executable,
            "-m",
            "cachelb_gateway.ext_proc",
            "--config",
            str(config),
            "--listen",
            "127.0.0.1:0",
        ]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            found = re.search(r":(\d+), ", process.stderr.readline())
            assert found is not None
            print(f"{WORKERS} workers, {REQUESTS} requests, CPU ms of the picker per request")
            print("prompt     mode      answer in 1 part  in 20 parts")
            for size in (2_000, 40_000, 400_000):
                for name, modes in (("duplex", DUPLEX), ("buffered", BUFFERED)):
                    cells = [
                        asyncio.run(drive(int(found[1]), process.pid, size, modes, chunks))
                        for chunks in (1, ANSWER_CHUNKS)
                    ]
                    print(f"{size // 1000:5} KB   {name:9} {cells[0]:16.2f}  {cells[1]:11.2f}")
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


if __name__ == "__main__":
    main()
