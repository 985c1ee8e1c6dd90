"""The delay that a relay adds to a message, and how many messages its thread takes.

python -m benches.kv_relay [MESSAGES]

A publisher, a relay in a process of its own, and gateways that count received messages. Prints JSON lines for
`report.py`.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import zmq

from cachelb.events import Endpoint
from cachelb.events.zmq.relayed import split_relayed, stream_name
from cachelb_gateway.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

KEY = "http://gpu0:8000"
PAYLOAD = bytes(187)
AT_ONCE = 500
GATEWAYS = (1, 2, 8)


def relay(engine: str, pipe: Connection) -> None:
    """Relay one engine until the pipe sends false; answer each request with the processor time so far."""
    with Relay("tcp://127.0.0.1:*", workers=[KEY], endpoints={KEY: Endpoint(engine)}) as running:
        pipe.send(running.address)
        while pipe.recv():
            pipe.send((time.process_time(), running.stats().published))


def listening(context: Any, address: str, name: bytes) -> Any:  # noqa: ANN401 - zmq's types need parameters
    """Make a subscriber of an engine, or of a stream of the relay."""
    socket = context.socket(zmq.DEALER if name else zmq.SUB)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.RCVTIMEO, 20_000)
    if not name:
        socket.subscribe(name)
    socket.connect(address)
    if name:
        socket.send(name)
    return socket


def heard(socket: Any) -> None:  # noqa: ANN401
    """Wait for a message of the engine."""
    while (message := split_relayed(socket.recv_multipart())) is None or message.live is None:
        pass


def spent(publish: Callable[[int], None], behind: list[Any], pipe: Connection, messages: int) -> dict[str, float]:
    """Publish to gateways. Returns the processor time of the relay."""
    pipe.send(True)  # noqa: FBT003 - go on
    before_s, before = pipe.recv()
    begun = time.perf_counter()
    for first in range(0, messages, AT_ONCE):
        for seq in range(first, first + AT_ONCE):
            publish(seq)
        for socket in behind:
            for _ in range(AT_ONCE):
                heard(socket)
    elapsed = time.perf_counter() - begun
    pipe.send(True)  # noqa: FBT003
    after_s, after = pipe.recv()
    return {
        "messages": after - before,
        "us_of_the_relay_per_message": (after_s - before_s) / (after - before) * 1e6,
        "messages_per_s_here": messages / elapsed,
    }


def main(messages: int) -> None:
    """Measure."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with zmq.Context() as context:
        engine = context.socket(zmq.XPUB)
        engine.set(zmq.SNDHWM, 0)
        engine.set(zmq.XPUB_VERBOSE, 1)
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        process = multiprocessing.get_context("spawn").Process(target=relay, args=(f"tcp://127.0.0.1:{port}", theirs))
        process.start()
        address = ours.recv()
        engine.recv()
        direct = listening(context, f"tcp://127.0.0.1:{port}", b"")
        engine.recv()
        behind = [listening(context, address, stream_name((KEY, None)))]
        while not split_relayed(behind[0].recv_multipart()).sign.connected:  # type: ignore[union-attr]
            pass

        def publish(seq: int) -> None:
            engine.send_multipart([b"", seq.to_bytes(8, "big"), PAYLOAD])

        taken: dict[str, list[float]] = {"direct": [], "relayed": []}
        for seq in range(2000):
            start = time.perf_counter_ns()
            publish(seq)
            direct.recv_multipart()
            taken["direct"].append((time.perf_counter_ns() - start) / 1e3)
            heard(behind[0])
            taken["relayed"].append((time.perf_counter_ns() - start) / 1e3)
        direct.close(0)
        for way, values in taken.items():
            print(json.dumps({"name": f"kv_relay/{way}", "us": statistics.median(values), "messages": len(values)}))
        name = stream_name((KEY, None))
        for count in GATEWAYS:
            while len(behind) < count:
                behind.append(listening(context, address, name))
                behind[-1].recv_multipart()
            print(json.dumps({"name": f"kv_relay/gateways={count}", **spent(publish, behind, ours, messages)}))
        ours.send(False)  # noqa: FBT003
        process.join()
        context.destroy(0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
