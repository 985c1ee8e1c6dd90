"""KV events of a fleet: applying a message, and selecting between messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from benches.structures.prompts import BLOCK
from benches.structures.rows import Row
from benches.structures.running import can_write_events
from benches.structures.streams import CHAIN, WORKERS, Message, Stream
from benches.structures.timing import in_turns, summarised

from cachelb import Router

MESSAGES_PER_CALL = 20
_NOTE = f"messages of 64 blocks stored, then as many removed; prompts of {CHAIN * BLOCK:,} tokens"


class HasOverlaps(Protocol):
    """An index that applied messages."""

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the blocks of every holder of a prompt, by number of the worker."""
        ...


class EventRouter:
    """`Router.event_sink.apply_events` with the bytes that vLLM publishes."""

    name = "cachelb"
    note = "apply_kv_events with vLLM's bytes: decodes and hashes; asked by select_worker(dry_run=True)"
    module = "cachelb"

    def __init__(self) -> None:
        """Make a router."""
        self.keys = [f"http://w{worker}:8000" for worker in range(WORKERS)]
        self.router = Router(self.keys, policy="kv-aware", seed=1, max_memory_mb=1_024)

    @staticmethod
    def encode(_number: int, message: Message) -> bytes:
        """Write a message as vLLM does."""
        from cachelb_fakes.events import encode_batch, removed, stored

        events = [removed(message.removed)] if message.removed else []
        tokens = message.tokens.tolist()
        return encode_batch([*events, stored(message.stored, tokens, block_size=BLOCK, parent=message.parent)], ts=0.0)

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        """Apply a message."""
        self.router.event_sink.apply_events(self.keys[worker], encoded, seq=number)

    def lookup(self, tokens: list[int]) -> object:
        """Select for a prompt, without a booking."""
        return self.router.select_worker(tokens=tokens, dry_run=True)

    def overlaps(self, tokens: list[int]) -> dict[int, int]:
        """Return the blocks of every holder. One token more: an engine computes at least one."""
        seen = self.router.explain(tokens=[*tokens, 0]).candidates
        blocks = {self.keys.index(one.key): int(one.matched_tokens) // BLOCK for one in seen}
        return {worker: depth for worker, depth in blocks.items() if depth}

    def depth(self, worker: int, tokens: list[int]) -> int:
        """Return the blocks of one worker."""
        one = self.router.select_worker(tokens=[*tokens, 0], among=[self.keys[worker]], dry_run=True)
        return one.matched_tokens // BLOCK

    def close(self) -> None:
        """Close the router."""
        self.router.close()


def measure(calls: int) -> Iterator[Row]:
    """Apply messages of eight engines, and select between them."""
    if not can_write_events():
        return
    stream = Stream(calls * MESSAGES_PER_CALL)
    encoded = [EventRouter.encode(*numbered) for numbered in enumerate(stream.messages)]
    asked = [stream.prompt(chain).tolist() for chain in stream.sample()]
    events = EventRouter()

    def apply(i: int) -> None:
        events.send(i // WORKERS, stream.messages[i].worker, encoded[i])

    def select(i: int) -> object:
        return events.lookup(asked[i * 7 % len(asked)])

    times = in_turns({"apply": apply, "select": select}, len(encoded))
    wrong, answers = wrong_answers(events, stream)
    events.close()
    yield replace(summarised("events/apply", "cachelb", times["apply"], _NOTE), wrong=wrong, answers=answers)
    yield summarised("events/select", "cachelb", times["select"], "between messages, without a booking")


def wrong_answers(index: HasOverlaps, stream: Stream) -> tuple[int, int]:
    """Compare an index with the model after a whole stream."""
    truth, some = stream.truth(), stream.sample()
    return sum(index.overlaps(stream.prompt(chain).tolist()) != truth.overlaps(chain) for chain in some), len(some)
