"""Followers of engines' events: handed over in this process, or sent over ZeroMQ as engines do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from benches.compare.contenders import dynamo
from benches.compare.contenders.selection_service import connected
from benches.structures.measures.events import EventRouter
from benches.structures.prompts import BLOCK
from benches.structures.streams import WORKERS

if TYPE_CHECKING:
    from benches.structures.streams import Message


class Feed(Protocol):
    """An index that events are fed to; a new one is empty.

    Attributes:
        name: Its name in tables.
        note: Conditions of the figures.
        module: The module that must be importable.
    """

    name: str
    note: str
    module: str

    @staticmethod
    def encode(number: int, message: Message, /) -> Any:  # noqa: ANN401 - only `send` reads it
        """Write a message in the form of the wire; not timed."""
        ...

    def send(self, number: int, worker: int, encoded: Any, /) -> None:  # noqa: ANN401 - what `encode` returned
        """Publish a message: the `number`-th of the worker."""
        ...

    def lookup(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        """Look up a prompt: the call that is timed."""
        ...

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the blocks that every worker holds: the answer that is checked."""
        ...

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Return the blocks that one worker holds, which shows whether its last message is visible."""
        ...

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        ...


class Tree:
    """Dynamo's `RadixTree.apply_event`, with events as JSON that carry hashes, made beforehand."""

    name = "Dynamo RadixTree"
    note = "apply_event with JSON that holds the hashes already, made beforehand; asked by hashing and find_matches"
    module = "dynamo._core"

    def __init__(self) -> None:
        """Make a tree."""
        from dynamo._core import RadixTree, compute_block_hash_for_seq

        self._tree = RadixTree()
        self._hash = compute_block_hash_for_seq

    @staticmethod
    def encode(number: int, message: Message) -> list[bytes]:
        """Write one event for the removed blocks and one for the stored."""
        from dynamo._core import compute_block_hash_for_seq

        contents = compute_block_hash_for_seq(message.tokens.tolist(), BLOCK)
        blocks = list(zip(message.stored, contents, strict=True))
        gone = [dynamo.removed(2 * number, list(message.removed))] if message.removed else []
        return [*gone, dynamo.stored(2 * number + 1, message.parent, blocks)]

    def send(self, _number: int, worker: int, encoded: list[bytes]) -> None:
        """Apply the events of a message."""
        for event in encoded:
            self._tree.apply_event(worker, event)

    def lookup(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        """Look up the holders of a prompt."""
        return self._tree.find_matches(self._hash(tokens, BLOCK)).scores

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the blocks that every worker holds."""
        return {worker: blocks for (worker, _), blocks in self.lookup(tokens).items() if blocks}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Return the blocks of one worker."""
        return self.overlaps(tokens).get(worker, 0)

    def close(self) -> None:
        """Nothing to close."""


class _Sockets:
    """One socket per worker that publishes on loopback."""

    def __init__(self) -> None:
        """Bind them."""
        import zmq

        from cachelb.events.zmq.sockets import REQUEST_BYTES, make_socket

        self._context = zmq.Context()
        self._sockets: list[Any] = []
        for _ in range(WORKERS):
            # XPUB receives subscriptions; messages before them are lost. No later one may be lost to a slow reader.
            socket = make_socket(self._context, zmq.XPUB, receives=1000, sends=0, most_bytes=REQUEST_BYTES)
            socket.bind("tcp://127.0.0.1:*")
            self._sockets.append(socket)
        self.addresses: list[str] = [socket.getsockopt(zmq.LAST_ENDPOINT).decode() for socket in self._sockets]

    def wait_for_subscribers(self, name: str) -> None:
        """Wait for a subscriber on every one."""
        for socket in self._sockets:
            if not socket.poll(30_000):
                raise RuntimeError(f"{name} did not subscribe to {self.addresses[self._sockets.index(socket)]}")
            socket.recv()

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Publish a message as vLLM does."""
        self._sockets[worker].send_multipart([b"", number.to_bytes(8, "big"), encoded], copy=False)

    def close(self) -> None:
        """Close them."""
        self._context.destroy(linger=0)


class EventRouterOverZmq(EventRouter):
    """A router with a `ZmqSource`."""

    name = "cachelb over ZeroMQ"
    note = "ZmqSource, from sockets of this process"

    def __init__(self) -> None:
        """Subscribe."""
        super().__init__()
        from cachelb.events import Endpoint, ZmqSource

        self._sockets = _Sockets()
        addresses = zip(self.keys, self._sockets.addresses, strict=True)
        self.router.attach(ZmqSource(endpoints={key: Endpoint(address) for key, address in addresses}))
        self._sockets.wait_for_subscribers(self.name)

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Publish a message."""
        self._sockets.send(number, worker, encoded)

    def close(self) -> None:
        """Stop listening, then publishing."""
        super().close()
        self._sockets.close()


class ServiceOverZmq:
    """Dynamo's `SelectionService`, which subscribes to the same sockets."""

    name = "Dynamo over ZeroMQ"
    note = "SelectionService, one indexer thread, from the same bytes on the same sockets; asked by overlap_scores"
    module = "dynamo._core"

    def __init__(self) -> None:
        """Subscribe."""
        self._loop = asyncio.new_event_loop()
        self._sockets = _Sockets()
        self._service = self._loop.run_until_complete(connected(self._sockets.addresses))
        self._sockets.wait_for_subscribers(self.name)

    @staticmethod
    def encode(_number: int, message: Message) -> bytes:
        """Write a message as vLLM does."""
        return EventRouter.encode(_number, message)

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Publish a message."""
        self._sockets.send(number, worker, encoded)

    def lookup(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        """Look up the holders of a prompt."""
        return self._loop.run_until_complete(self._ask(tokens))

    async def _ask(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        return await self._service.overlap_scores({"model_name": "m", "token_ids": tokens})

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the blocks that every worker holds."""
        found = {one["worker_id"]: one["device_blocks"] for one in self.lookup(tokens)["workers"]}
        return {worker: blocks for worker, blocks in found.items() if blocks}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Return the blocks of one worker."""
        return self.overlaps(tokens).get(worker, 0)

    def close(self) -> None:
        """Stop it."""
        with contextlib.closing(self._loop):
            self._service.shutdown()
            self._sockets.close()


FEEDS: tuple[type[Feed], ...] = (EventRouter, Tree, EventRouterOverZmq, ServiceOverZmq)
"""All there are."""
