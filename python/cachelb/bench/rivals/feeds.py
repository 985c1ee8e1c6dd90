"""Receivers of engines' events: called in this process, or over ZeroMQ as from engines."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from cachelb import Router
from cachelb.bench.prompts import BLOCK
from cachelb.bench.rivals.selection_service import connected
from cachelb.bench.streams import WORKERS
from cachelb.testing.events import encode_batch, removed, stored

if TYPE_CHECKING:
    from cachelb.bench.streams import Message


class Feed(Protocol):
    """An index that applies events; a new one is empty."""

    name: str  # in tables
    note: str  # caveat on the figures
    modules: tuple[str, ...]  # that must be installed

    @staticmethod
    def encode(number: int, message: Message, /) -> Any:  # noqa: ANN401 - whatever `send` takes; not timed
        """Write a message as it goes over the wire."""
        ...

    def send(self, number: int, worker: int, encoded: Any, /) -> None:  # noqa: ANN401 - what `encode` returned
        """Publish a message: the `number`-th of the worker."""
        ...

    def lookup(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        """Look up a prompt; this is timed."""
        ...

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the overlap of every worker; this is checked."""
        ...

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Ask for the blocks that one worker holds: is its last message visible?"""
        ...

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        ...


def payload(message: Message) -> bytes:
    """Write a message as vLLM does."""
    events = [removed(message.removed)] if message.removed else []
    tokens = message.tokens.tolist()
    return encode_batch([*events, stored(message.stored, tokens, block_size=BLOCK, parent=message.parent)], ts=0.0)


class Own:
    """`Router.apply_kv_events` with the bytes that engines publish."""

    name = "cachelb"
    note = "apply_kv_events with vLLM's bytes: decodes and hashes; asked by select_worker(dry_run=True)"
    modules: tuple[str, ...] = ("msgpack",)

    def __init__(self) -> None:
        """Make a router."""
        self._keys = [f"http://w{worker}:8000" for worker in range(WORKERS)]
        self._router = Router(self._keys, policy="kv-aware", seed=1, max_memory_mb=1_024)

    @staticmethod
    def encode(_number: int, message: Message) -> bytes:
        """Write a message as vLLM does."""
        return payload(message)

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Apply a message."""
        self._router.apply_kv_events(self._keys[worker], encoded, seq=number)

    def lookup(self, tokens: list[int]) -> object:
        """Ask where a prompt would go, which books nothing."""
        return self._router.select_worker(tokens=tokens, dry_run=True)

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Ask for the blocks that every worker holds. One token more: an engine computes at least one."""
        seen = self._router.explain(tokens=[*tokens, 0]).candidates
        blocks = {self._keys.index(one.key): int(one.matched_tokens) // BLOCK for one in seen}
        return {worker: depth for worker, depth in blocks.items() if depth}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Ask for the blocks of one worker."""
        one = self._router.select_worker(tokens=[*tokens, 0], among=[self._keys[worker]], dry_run=True)
        return one.matched_tokens // BLOCK

    def close(self) -> None:
        """Close the router."""
        self._router.close()


class Tree:
    """Dynamo's `RadixTree.apply_event`, with events as JSON that carry hashes, made beforehand."""

    name = "Dynamo RadixTree"
    note = "apply_event with JSON that holds the hashes already, made beforehand; asked by hashing and find_matches"
    modules: tuple[str, ...] = ("dynamo._core",)

    def __init__(self) -> None:
        """Make a tree."""
        from dynamo._core import RadixTree, compute_block_hash_for_seq  # pyright: ignore[reportMissingImports]

        self._tree = RadixTree()
        self._hash = compute_block_hash_for_seq

    @staticmethod
    def encode(number: int, message: Message) -> list[bytes]:
        """Write one event for what went and one for what came."""
        from dynamo._core import compute_block_hash_for_seq  # pyright: ignore[reportMissingImports]

        from cachelb.bench.rivals import dynamo

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
        """Ask for the blocks that every worker holds."""
        return {worker: blocks for (worker, _), blocks in self.lookup(tokens).items() if blocks}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Ask for the blocks of one worker."""
        return self.overlaps(tokens).get(worker, 0)

    def close(self) -> None:
        """Nothing to close."""


class _Sockets:
    """One socket per worker that publishes on loopback."""

    def __init__(self) -> None:
        """Bind them."""
        import zmq

        from cachelb.events.sockets import REQUEST_BYTES, make_socket

        self._context = zmq.Context()
        self._sockets: list[Any] = []
        for _ in range(WORKERS):
            # XPUB receives subscriptions: messages sent before one has come are lost.
            # Nothing may be lost, however slow a rival is.
            socket = make_socket(self._context, zmq.XPUB, receives=1000, sends=0, most_bytes=REQUEST_BYTES)
            socket.bind("tcp://127.0.0.1:*")
            self._sockets.append(socket)
        self.addresses: list[str] = [socket.getsockopt(zmq.LAST_ENDPOINT).decode() for socket in self._sockets]

    def wait_for_subscribers(self, name: str) -> None:
        """Wait until each has a subscriber."""
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


class OwnOverZmq(Own):
    """A router with a `ZmqSource`."""

    name = "cachelb over ZeroMQ"
    note = "ZmqSource, from sockets of this process"
    modules: tuple[str, ...] = ("msgpack", "zmq")

    def __init__(self) -> None:
        """Subscribe."""
        super().__init__()
        from cachelb.events import Endpoint, ZmqSource

        self._sockets = _Sockets()
        addresses = zip(self._keys, self._sockets.addresses, strict=True)
        self._router.attach(ZmqSource(endpoints={key: Endpoint(address) for key, address in addresses}))
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
    modules: tuple[str, ...] = ("dynamo._core", "msgpack", "zmq")

    def __init__(self) -> None:
        """Subscribe."""
        self._loop = asyncio.new_event_loop()
        self._sockets = _Sockets()
        self._service = self._loop.run_until_complete(connected(self._sockets.addresses))
        self._sockets.wait_for_subscribers(self.name)

    @staticmethod
    def encode(_number: int, message: Message) -> bytes:
        """Write a message as vLLM does."""
        return payload(message)

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Publish a message."""
        self._sockets.send(number, worker, encoded)

    def lookup(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        """Look up the holders of a prompt."""
        return self._loop.run_until_complete(self._ask(tokens))

    async def _ask(self, tokens: list[int]) -> Any:  # noqa: ANN401 - its own answer
        return await self._service.overlap_scores({"model_name": "m", "token_ids": tokens})

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Ask for the blocks that every worker holds."""
        found = {one["worker_id"]: one["device_blocks"] for one in self.lookup(tokens)["workers"]}
        return {worker: blocks for worker, blocks in found.items() if blocks}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Ask for the blocks of one worker."""
        return self.overlaps(tokens).get(worker, 0)

    def close(self) -> None:
        """Stop it."""
        with contextlib.closing(self._loop):
            self._service.shutdown()
            self._sockets.close()


FEEDS: tuple[type[Feed], ...] = (Own, Tree, OwnOverZmq, ServiceOverZmq)
"""All there are."""
