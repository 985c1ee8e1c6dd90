"""Memory and delays of the endpoint picker under long bodies: `python -m benches.ext_proc_load`.

300 streams send 9 MB each and do not end; then streams send 8 MB each, which are read and picked for, and are served or
left by their client: what those left in the index is taken back. Beside each, another client's requests of 2 KB are
timed.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from tests.models.ext_proc_client import Proxy, Stream

STREAMS = 300
HELD_BYTES = 9_000_000
LONG = json.dumps({"messages": [{"role": "user", "content": "word " * 1_600_000}]}).encode()
SHORT = json.dumps({"messages": [{"role": "user", "content": "word " * 400}]}).encode()
PIECE = 60_000
SAMPLES = 1000


def memory_mb(pid: int, what: str) -> float:
    """Read how much memory a process has, or had at most."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(status.split(f"{what}:")[1].split()[0]) / 1024


async def send(stream: Stream, body: bytes, *, end: bool) -> None:
    """Send a body in pieces."""
    for start in range(0, len(body), PIECE):
        await stream.send_body(body[start : start + PIECE], end=end and start + PIECE >= len(body))


async def timed(proxy: Proxy) -> list[float]:
    """Return the milliseconds that short requests wait for their pick, one after another."""
    delays = []
    for _ in range(SAMPLES):
        stream = proxy.stream()
        begun_s = time.perf_counter()
        await stream.request(SHORT)
        delays.append(1000 * (time.perf_counter() - begun_s))
        await stream.answer_headers()
        await stream.answer_body(b"{}")
        await stream.finish()
    return delays


def shown(what: str, delays: list[float]) -> None:
    """Print a row."""
    ordered = sorted(delays)
    p99 = ordered[len(ordered) * 99 // 100]
    print(f"{what:44} {statistics.median(ordered):8.2f} {p99:8.2f} {ordered[-1]:8.2f}", flush=True)


async def play(port: int, pid: int) -> None:
    """Play all of it through."""
    target, apart = f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, apart) as others, grpc.aio.insecure_channel(target, apart) as channel:
        short, proxy = Proxy(others), Proxy(channel)
        print(f"{'ms until the pick of 2 KB':44} {'median':>8} {'p99':>8} {'most':>8}")
        shown("alone", await timed(short))
        before = memory_mb(pid, "VmRSS")
        held = [proxy.stream() for _ in range(STREAMS)]
        for stream in held:
            await stream.send_headers()
        sending = [asyncio.create_task(send(stream, b" " * HELD_BYTES, end=False)) for stream in held]
        await asyncio.wait(sending, timeout=20)
        shown(f"beside {STREAMS} streams of 9 MB", await timed(short))
        print(f"memory: {before:.0f} MB before, {memory_mb(pid, 'VmHWM'):.0f} MB at most")
        for stream, task in zip(held, sending, strict=True):
            task.cancel()
            stream.call.cancel()
        await asyncio.sleep(1)

        # In a process of its own, at low priority: its work on bodies would hold up the other clients.
        for ending in ("served", "left"):
            words = ["nice", "-n", "19", sys.executable, "-m", "benches.ext_proc_load", str(port), ending]
            with subprocess.Popen(words) as busy:  # noqa: ASYNC220 - it starts at once
                await asyncio.sleep(2)
                shown(f"beside bodies of 8 MB, {ending}, one by one", await timed(short))
                busy.terminate()


async def send_long(port: int, *, is_served: bool) -> None:
    """Send long requests, one after another."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        proxy = Proxy(channel)
        while True:
            stream = proxy.stream()
            await stream.send_headers(path="/v1/chat/completions")
            await send(stream, LONG, end=True)
            await stream.read_picked()
            if is_served:
                await stream.answer_headers()
                await stream.answer_body(b"{}")
                await stream.finish()
            else:
                stream.call.cancel()


def main() -> None:
    """Run the picker as a process of its own and print a table."""
    if sys.argv[1:]:
        return asyncio.run(send_long(int(sys.argv[1]), is_served=sys.argv[2] == "served"))
    workers = [f"http://10.0.0.{n + 1}:8000" for n in range(100)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.toml"
        config.write_text(f"workers = {json.dumps(workers)}\n", "utf-8")
        words = ["-m", "cachelb_gateway.ext_proc", "--config", str(config), "--listen", "127.0.0.1:0"]
        command = [sys.executable, *words, "--max-body-mb", "10"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                found = re.search(r":(\d+), ", process.stderr.readline())
                assert found is not None
                asyncio.run(play(int(found[1]), process.pid))
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
