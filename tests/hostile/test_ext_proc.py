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
from typing import Any

import grpc
import pytest
from tests.models.ext_proc_client import (
    BUFFERED,
    DUPLEX,
    URLS,
    Proxy,
    Service,
    Stream,
    in_loop,
    run,
    serve,
    served,
    until,
)
from tests.models.ext_proc_messages import ProcessingRequest
from tests.programs import running

from cachelb import RequestBodies, Router

BODY = json.dumps({"prompt": "Two driven jocks help fax my big quiz. " * 20}).encode()
PIECE = b" " * 60_000


async def begin_body(service: Service, pieces: int) -> Stream:
    """Send a body that does not end."""
    stream = service.stream()
    await stream.send_headers()
    for _ in range(pieces):
        await stream.send_body(PIECE, end=False)
    return stream


async def assert_serves(router: Router[str], service: Service) -> None:
    """Another client's request is served, and its prompt is read."""
    errors = router.stats().bodies.errors
    stream = service.stream()
    assert (await stream.request(BODY)).body == BODY
    await stream.answer_headers()
    await stream.answer_body(b"{}")
    await stream.finish()
    assert router.stats().bodies.errors == errors


@pytest.mark.parametrize("large", ["pass", "refuse"])
@in_loop
async def test_unfinished_bodies_are_held_up_to_a_bound_on_all_of_them(large: Any) -> None:
    router = Router(URLS, seed=1)
    bound = 5 * 2 * len(PIECE)  # two pieces of each stream
    async with serve(router, max_held_bytes=bound, large_bodies=large) as service:
        held = service.picker
        streams = [await begin_body(service, 2) for _ in range(5)]
        await until(lambda: held.held_bytes == bound)
        over = await begin_body(service, 1)
        if large == "refuse":
            status, headers, _ = await over.read_refusal()
            assert (status, headers["retry-after"]) == (503, "1")
        else:
            assert len((await over.read_picked(body=False)).endpoints) == 3
        assert service.picker.counts["full"] == 1
        await until(lambda: held.held_bytes == bound)
        for stream in [*streams, over]:
            stream.call.cancel()
        await service.settled()
        assert (held.held_bytes, router.stats().open_requests) == (0, 0)
        await assert_serves(router, service)


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


@pytest.mark.parametrize("room", [True, False], ids=["kept", "no room"])
@in_loop
async def test_prompts_are_held_until_the_answer_begins_if_there_is_room(*, room: bool) -> None:
    router = Router(URLS, seed=1)
    async with serve(router, max_held_bytes=10 * len(BODY) if room else len(BODY)) as service:
        held = service.picker
        stream = service.stream()
        endpoints = (await stream.request(BODY)).endpoints
        if room:
            await until(lambda: len(BODY) * 0.9 < held.held_bytes < len(BODY) * 1.1)
        else:
            await until(lambda: held.held_bytes == 0)
        await stream.answer_headers(served=endpoints[1])
        assert held.held_bytes == 0
        await stream.answer_body(b"{}")
        await stream.finish()
        await service.settled()
        assert (held.held_bytes, service.picker.counts["served-fallback"]) == (0, 1)
        found = router.select_worker(text=json.loads(BODY)["prompt"], dry_run=True)
        assert (f"{found.key}".endswith(endpoints[1]) and found.matched_tokens > 0) == room


@served(max_streams=4)
async def test_streams_are_bounded(router: Router[str], service: Service) -> None:
    streams = [await begin_body(service, 1) for _ in range(4)]
    await until(lambda: service.picker.open_streams == 4)
    status, headers, body = await service.stream().read_refusal()
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["error"]["type"] == "too_many_streams"
    streams[0].call.cancel()
    await until(lambda: service.picker.open_streams == 3)
    await assert_serves(router, service)


@pytest.mark.parametrize("modes", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
@served(body_timeout_s=0.2)
async def test_request_that_takes_too_long_to_arrive_is_408(service: Service, modes: dict[str, int]) -> None:
    stream = service.stream(modes)
    await stream.send_headers()
    if modes is BUFFERED:
        await stream.read()
    else:
        # On a machine that stands still the refusal may come first.
        with contextlib.suppress(asyncio.InvalidStateError, grpc.RpcError):
            await stream.send_body(PIECE, end=False)
    status, _, _ = await stream.read_refusal()
    assert status == 408
    assert service.picker.counts == {"slow-body": 1}
    await service.settled()
    assert service.picker.held_bytes == 0


@pytest.mark.parametrize("limit", ["idle_timeout_s", "stream_timeout_s"])
@in_loop
async def test_stream_that_falls_silent_ends_and_releases_its_load(limit: str) -> None:
    router = Router(URLS, seed=1)
    limits: dict[str, Any] = {limit: 0.3}
    async with serve(router, **limits) as service:
        stream = service.stream()
        await stream.request(BODY)
        assert await stream.read() is None
        await service.settled()
        assert service.picker.counts == {"picked": 1, "expired": 1}
        assert router.stats().open_requests == 0
        assert router.stats().endings["cancelled"] == 1


@in_loop
async def test_answer_that_passes_elsewhere_may_be_silent() -> None:
    router = Router(URLS, seed=1)
    async with serve(router, idle_timeout_s=2.0) as service:
        stream = service.stream({"request": 4, "answer": 0})
        await stream.request(BODY)
        await stream.answer_headers()
        await asyncio.sleep(2.5)  # longer than what ends any other stream
        assert router.stats().open_requests == 1
        await stream.finish()
        await service.settled()
        assert router.stats().endings["completed"] == 1


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
