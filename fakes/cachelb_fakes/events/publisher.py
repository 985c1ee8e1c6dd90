"""A publisher of KV cache events that behaves as vLLM's does, and fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

import zmq

from cachelb.common.arguments import whole
from cachelb.events.endpoints import Endpoint
from cachelb.events.zmq.sockets import REQUEST_BYTES, make_socket
from cachelb_fakes.events.messages import Form, encode_batch
from cachelb_fakes.loop_thread import LoopThread
from cachelb_fakes.sockets import TcpAddress

_SEQ: Final = struct.Struct(">q")
_END: Final = b"\xff" * 8
_REQUEST_FRAMES: Final = 3
_QUEUE: Final = 1000  # of an engine, which leaves ZeroMQ's own


class EventPublisher:
    """Publishes KV cache events over ZeroMQ on loopback: a PUB socket, and a ROUTER that replays a bounded buffer.

    Use it as a context manager. Its ports stay its own while it is stopped. Publishing does not wait; a thread sends.

    Args:
        replay: Whether there is a replay socket.
        connect: Connect to this address, where the subscriber listens, instead of listening.
        topic: Topic of every message.
        numbered: Send topic, number and payload; otherwise topic and payload.
        replay_topic: Answer replays with the topic before the number, as vLLM since 0.26, or without it.
        buffer_steps: Batches kept for replays.
        dp_rank: Rank in every batch; None leaves it out.
        form: "map" for events as vLLM has had them since 0.24, "array" as before.

    Attributes:
        replay_requests: Numbers that replays were asked from, as they came.

    Example:
        >>> from cachelb_fakes import EventPublisher
        >>> from cachelb_fakes.events import stored
        >>> with EventPublisher() as publisher:
        ...     publisher.publish(stored([7], range(16)))
        0
    """

    def __init__(
        self,
        *,
        replay: bool = True,
        connect: str | None = None,
        topic: str = "",
        numbered: bool = True,
        replay_topic: bool = True,
        buffer_steps: int = 10_000,
        dp_rank: int | None = 0,
        form: Form = "map",
    ) -> None:
        whole("buffer_steps", buffer_steps, 0)
        self.replay_requests: list[int] = []
        self._addresses = (TcpAddress() if connect is None else None, TcpAddress() if replay else None)
        self._connect = connect
        self._topic = topic.encode()
        self._numbered = numbered
        self._replay_topic = replay_topic
        self._dp_rank = dp_rank
        self._form: Form = form
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._lock = threading.Lock()
        self._seq = 0
        self._drop = self._lose = 0
        self._muted = False
        self._held: list[list[bytes]] | None = None
        self._subscribers = 0
        self._changed = threading.Condition()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._thread: LoopThread | None = None

    # --- life ---

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def open(self) -> None:
        """Begin, as a context manager does."""
        self._thread = LoopThread("cachelb-event-publisher")
        self.start()

    def close(self) -> None:
        """Stop for good; no thread or socket is left. Idempotent."""
        if self._thread is not None:
            self.stop()
            self._thread.stop()
            self._thread = None
        for address in self._addresses:
            if address is not None:
                address.release()

    def stop(self) -> None:
        """Close every connection. Messages published meanwhile only go to the buffer."""
        self._call(self._close_sockets)

    def start(self, *, restart: bool = False) -> None:
        """Listen again at the same addresses.

        Args:
            restart: Come up as a new process: numbers begin at 0, and the buffer is empty.
        """
        with self._lock:
            if restart:
                self._seq = 0
                self._submit(self._buffer.clear)
            self._submit(self._open_sockets)
        self.flush()

    def restart(self) -> None:
        """Go down and come up as a new process."""
        self.stop()
        self.start(restart=True)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint, for `cachelb.events.ZmqSource`."""
        listening, replay = (None if address is None else _tcp(address) for address in self._addresses)
        if listening is None:
            assert self._connect is not None
            return Endpoint(self._connect, replay, bind=True)
        return Endpoint(listening, replay)

    # --- publishing ---

    def publish(self, *events: dict[str, Any], ts: float | None = None) -> int:
        """Publish a batch.

        Args:
            events: The events, as `stored`, `removed` and `cleared` make them.
            ts: Its time stamp, None for now.

        Returns:
            Its number.
        """
        now = time.time() if ts is None else ts
        return self.publish_payload(encode_batch(events, ts=now, dp_rank=self._dp_rank, form=self._form))

    def publish_payload(self, payload: bytes) -> int:
        """Publish any bytes as a batch.

        Args:
            payload: The payload.

        Returns:
            Its number.
        """
        with self._lock:
            seq = self._seq
            self._seq += 1
            self._submit(lambda: self._publish(seq, payload))
        return seq

    def publish_frames(self, *frames: bytes) -> None:
        """Send any frames, without a number and past the buffer.

        Args:
            frames: The frames.
        """
        self._submit(lambda: self._send(list(frames)))

    def flush(self) -> None:
        """Wait until everything before was done."""
        self._call(lambda: None)

    # --- faults ---

    def drop(self, messages: int = 1) -> None:
        """Keep the next batches from subscribers; a replay has them.

        Args:
            messages: How many.
        """
        self._call(lambda: setattr(self, "_drop", messages))

    def lose(self, messages: int = 1) -> None:
        """Lose the next batches altogether, as if the buffer were too short.

        Args:
            messages: How many.
        """
        self._call(lambda: setattr(self, "_lose", messages))

    def mute_replay(self, *, muted: bool = True) -> None:
        """Ignore replay requests.

        Args:
            muted: Whether.
        """
        self._call(lambda: setattr(self, "_muted", muted))

    def hold_replay(self) -> None:
        """Keep replay requests that come from now on unanswered until `release_replay`."""
        self._call(lambda: setattr(self, "_held", []))

    def release_replay(self) -> None:
        """Answer the requests that were held."""
        self._call(self._release)

    # --- waiting ---

    @property
    def subscribers(self) -> int:
        """Subscriptions there are now."""
        return self._subscribers

    def wait_for(self, condition: Callable[[], object], *, timeout_s: float = 30.0) -> None:
        """Wait until a condition on subscribers or replay requests holds.

        Args:
            condition: Such as ``lambda: publisher.subscribers == 1``.
            timeout_s: Seconds to wait.

        Raises:
            TimeoutError: It still does not hold.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"the condition does not hold after {timeout_s} s")

    # --- in the thread ---

    def _submit(self, command: Callable[[], object]) -> None:
        if self._thread is not None:
            self._thread.post(self._do, command)

    def _call(self, command: Callable[[], object]) -> None:
        if self._thread is not None:
            self._thread.call(self._do, command)

    def _do(self, command: Callable[[], object]) -> None:
        command()
        self._read()

    def _read(self) -> None:
        """Read all there is: a socket that is ready shows it once, and not again behind a send."""
        if self._pub is not None:
            self._read_subscriptions(self._pub)
        if self._router is not None:
            self._read_requests(self._router)

    def _open_sockets(self) -> None:
        if self._context is not None:
            return
        self._context = zmq.Context()
        # XPUB sends as PUB does, and reports subscriptions.
        self._pub = self._socket(zmq.XPUB)
        self._pub.set(zmq.XPUB_VERBOSER, 1)
        listening, replay = self._addresses
        if listening is None:
            assert self._connect is not None
            self._pub.connect(self._connect)
        else:
            self._pub.bind(_tcp(listening))
        if replay is not None:
            self._router = self._socket(zmq.ROUTER)
            self._router.bind(_tcp(replay))

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        assert self._context is not None
        made = make_socket(self._context, kind, receives=64, sends=_QUEUE, most_bytes=REQUEST_BYTES)
        asyncio.get_running_loop().add_reader(made.fileno(), self._read)
        return made

    def _close_sockets(self) -> None:
        for each in (self._pub, self._router):
            if each is not None:
                asyncio.get_running_loop().remove_reader(each.fileno())
        if self._context is not None:
            self._context.destroy(0)  # returns when the ports are free
        self._context = self._pub = self._router = None
        self._note(subscribers=0)

    def _publish(self, seq: int, payload: bytes) -> None:
        if self._lose:
            self._lose -= 1
            return
        self._buffer.append((seq, payload))
        if self._drop:
            self._drop -= 1
            return
        self._send([self._topic, _SEQ.pack(seq), payload] if self._numbered else [self._topic, payload])

    def _send(self, frames: list[bytes]) -> None:
        if self._pub is not None:
            self._pub.send_multipart(frames)

    def _read_subscriptions(self, pub: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                sign = pub.recv(zmq.NOBLOCK)[:1]
                self._note(subscribers=self._subscribers + (1 if sign == b"\1" else -1))

    def _read_requests(self, router: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                request = router.recv_multipart(zmq.NOBLOCK)
                if len(request) != _REQUEST_FRAMES or len(request[2]) != _SEQ.size:
                    continue
                self._note(request=_SEQ.unpack(request[2])[0])
                if self._held is not None:
                    self._held.append(request)
                else:
                    self._answer(request)

    def _answer(self, request: list[bytes]) -> None:
        if self._muted or self._router is None:
            return
        identity, empty, start = request
        head = [identity, empty, self._topic] if self._replay_topic else [identity, empty]
        for seq, payload in self._buffer:
            if seq >= _SEQ.unpack(start)[0]:
                self._router.send_multipart([*head, _SEQ.pack(seq), payload])
        self._router.send_multipart([identity, empty, *([b""] if self._replay_topic else []), _END, b""])

    def _release(self) -> None:
        held, self._held = self._held, None
        for request in held or ():
            self._answer(request)

    def _note(self, *, subscribers: int | None = None, request: int | None = None) -> None:
        with self._changed:
            if subscribers is not None:
                self._subscribers = subscribers
            if request is not None:
                self.replay_requests.append(request)
            self._changed.notify_all()


def _tcp(address: TcpAddress) -> str:
    return address.url.replace("http://", "tcp://")
