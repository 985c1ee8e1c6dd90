"""The endpoint picker against clients that send much, slowly, or what is costly to read."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.models.ext_proc_client import (
    URLS,
    Proxy,
    Service,
    Stream,
    in_loop,
    run,
    serve,
    served,
)
from tests.models.ext_proc_messages import ProcessingRequest
from tests.programs import running

from cachelb import RequestBodies, Router

BODY = json.dumps({"prompt": "Two driven jocks help fax my big quiz. " * 20}).encode()
PIECE = b" " * 60_000


MARGIN = 32 << 20
SERVER = """
import asyncio, faulthandler, signal, sys
faulthandler.register(signal.SIGUSR1)
from cachelb import Router
from cachelb_gateway.ext_proc import EndpointPicker

async def main():
    picker = EndpointPicker(Router(["http://10.0.0.1:8000"]), max_held_bytes=int(sys.argv[1]))
    print(await picker.start("127.0.0.1:0"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def dumped(pid: int) -> Iterator[None]:
    """Show where this process and another one stand, and their sockets, every 20 s until it is over."""

    def dump() -> None:
        while not over.wait(20.0):
            faulthandler.dump_traceback()
            os.kill(pid, signal.SIGUSR1)
            os.write(2, Path(f"/proc/{pid}/net/tcp").read_bytes())

    over = threading.Event()
    thread = threading.Thread(target=dump, name="dump")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def memory_bytes(pid: int, what: str) -> int:
    """Read how much memory a process has, or had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_process_holds_no_more_than_the_bound_and_a_fixed_amount_per_stream() -> None:
    streams, most = 150, 32 << 20
    windows = [("grpc.http2.bdp_probe", 0)]  # of 64 KB, as what this side does not read is to stay at the other one

    async def main(port: int, pid: int) -> None:
        before = memory_bytes(pid, "VmRSS")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=windows) as channel:
            proxy = Proxy(channel)

            async def send(stream: Stream) -> None:
                piece = ProcessingRequest()
                piece.request_body.body = PIECE
                while True:  # without a deadline: it blocks as soon as the picker takes no more
                    await stream.call.write(piece)

            async with asyncio.TaskGroup() as group:
                begun = []
                for _ in range(streams):
                    stream = proxy.stream()
                    await stream.send_headers()
                    begun.append((stream, group.create_task(send(stream))))
                for stream, _ in begun:  # none of them reads its body back
                    await stream.read_picked(body=False)
                served = proxy.stream()
                assert (await served.request(BODY)).body == BODY
                for stream, sending in begun:
                    sending.cancel()
                    stream.call.cancel()
                await asyncio.wait([sending for _, sending in begun])
        grown = memory_bytes(pid, "VmHWM") - before
        assert grown < most * 5 // 4 + (streams << 19) + MARGIN, f"{grown >> 20} MB"

    with running("-c", SERVER, str(most)) as (process, output), dumped(process.pid):
        run(main(int(output.readline()), process.pid))


# Many small tools took half a second where each was rendered on its own.
COSTLY = b'{"messages":[],"tools":[' + b"{}," * 90_000 + b"{}]}"


@served()
async def test_costly_body_is_read_in_milliseconds(router: Router[str], service: Service) -> None:
    for _ in range(4):
        stream = service.stream()
        await stream.send_headers(path="/v1/chat/completions")
        before_s = time.thread_time()
        router.select_worker(body=COSTLY, path="/v1/chat/completions", dry_run=True)
        assert time.thread_time() - before_s < 0.1
        await stream.send_body(COSTLY)
        assert (await stream.read_picked()).body == COSTLY
    assert router.stats().bodies.kinds == {"chat": 4}


@in_loop
async def test_strict_router_refuses_what_it_cannot_read() -> None:
    async with serve(Router(URLS, seed=1, bodies=RequestBodies(strict=True))) as service:
        stream = service.stream()
        await stream.send_headers()
        await stream.send_body(b'{"prompt": "secret')
        status, _, body = await stream.read_refusal()
        assert (status, json.loads(body)["error"]["type"]) == (400, "bad_body")
        assert b"secret" not in body
        assert service.picker.counts == {"bad-body": 1}
        for body in (b'{"prompt": [-1]}', b'{"user": "\\ud800"}', b'{"n": NaN}', '{"n": 1}'.encode("utf-16")):
            assert (await service.stream().request(body)).body == body
        assert service.picker.counts == {"bad-body": 1, "picked": 4}
