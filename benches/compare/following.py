"""Following the events of engines: as fast as it goes, and at a rate that is kept up with.

The clock stops when the last message of every worker is visible to a lookup. A rate counts as kept up with if that is
within 1.10 of the window in which the messages were due, and the last one was sent within 1.01 of it: the definitions
of Dynamo's own benchmark.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.structures.measures.events import MESSAGES_PER_CALL, wrong_answers
from benches.structures.prompts import BLOCK
from benches.structures.rows import Row
from benches.structures.running import can_write_events, installed
from benches.structures.streams import CHAIN, WORKERS, Stream, chain_named, name
from benches.structures.timing import summarised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benches.compare.contenders.feeds import Feed
    from benches.structures.streams import Message

ROUNDS = 5
MOST_TOTAL = 1.10
MOST_SPAN = 1.01
_SHARES = (0.95, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)
_TRIES = 2
_LOOKUP_RATE = 25_000.0
_DEADLINE_S = 60.0


class _Run(NamedTuple):
    """One stream, sent and drained: seconds since the first message was due, and of processors by all threads."""

    span: float
    total: float
    processor: float


def measure(calls: int) -> Iterator[Row]:
    """Send the same messages to every feed.

    Args:
        calls: A twentieth of the messages.

    Yields:
        Rows for an overload, for the highest rate kept up with, and for lookups meanwhile.
    """
    if not can_write_events():
        return
    from benches.compare.contenders.feeds import FEEDS

    stream = Stream(calls * MESSAGES_PER_CALL)
    feeds = [make for make in FEEDS if installed(make.module)]
    # Those that take the same bytes share them.
    written = {make.encode: [make.encode(*numbered) for numbered in enumerate(stream.messages)] for make in feeds}
    overload = _overload(feeds, stream, written)
    yield from overload
    for make, row in zip(feeds, overload[: len(feeds)], strict=True):
        yield _keep_up(make, stream, written[make.encode], row.p50)
    for make in feeds:
        yield _look_up(make, stream, written[make.encode], calls)


def _overload(feeds: Sequence[type[Feed]], stream: Stream, written: Mapping[Any, Sequence[Any]]) -> list[Row]:
    """Send all at once, in turns, and check the answers. The fastest turn counts."""
    blocks = _blocks(stream.messages)
    best, processor = dict.fromkeys(feeds, 0.0), dict.fromkeys(feeds, float("inf"))
    wrong, answers = dict.fromkeys(feeds, 0), dict.fromkeys(feeds, 0)
    for _ in range(ROUNDS):
        for make in feeds:
            run, missed, asked = _round(make, stream, written[make.encode], 0.0)
            best[make] = max(best[make], blocks / run.total)
            processor[make] = min(processor[make], run.processor * 1e9 / blocks)
            wrong[make] += missed
            answers[make] += asked
    rows = [
        Row("events/overload", make.name, best[make], None, "blocks/s", wrong[make], answers[make], note=make.note)
        for make in feeds
    ]
    return rows + [Row("events/processor", make.name, processor[make], None, "ns/block") for make in feeds]


def _round(make: type[Feed], stream: Stream, encoded: Sequence[Any], window: float) -> tuple[_Run, int, int]:
    """Send a stream to an empty index. Returns wrong answers and all answers too."""
    feed = make()
    try:
        run = _send(feed, stream, encoded, window)
        return run, *wrong_answers(feed, stream)
    finally:
        feed.close()


def _keep_up(make: type[Feed], stream: Stream, encoded: Sequence[Any], overload: float) -> Row:
    """Find the highest rate that is kept up with once in some tries, among shares of the best overload."""
    wrong = answers = 0
    for share in _SHARES:
        window = _blocks(stream.messages) / (overload * share)
        for _ in range(_TRIES):
            run, missed, asked = _round(make, stream, encoded, window)
            wrong, answers = wrong + missed, answers + asked
            if run.total <= MOST_TOTAL * window and run.span <= MOST_SPAN * window:
                note = f"{share:.0%} of the overload; total {run.total / window:.3f}, span {run.span / window:.3f}"
                return Row("events/keep-up", make.name, overload * share, None, "blocks/s", wrong, answers, note)
    return Row("events/keep-up", make.name, 0.0, None, "blocks/s", wrong, answers, "kept up with no rate tried")


def _look_up(make: type[Feed], stream: Stream, encoded: Sequence[Any], calls: int) -> Row:
    """Time lookups between messages that come at a rate which is the same for all."""
    half = len(encoded) // 2
    chains = sorted(stream.chains())
    prompts = {chain: stream.prompt(chain).tolist() for chain in chains}
    times: list[float] = []
    feed = make()
    try:
        for number, message in enumerate(stream.messages[:half]):
            feed.send(number // WORKERS, message.worker, encoded[number])
        _drain(feed, stream, half)
        begin, due = time.perf_counter(), 0
        for number, message in enumerate(stream.messages[half : half + calls], half):
            _sleep_until(begin + due / _LOOKUP_RATE)
            feed.send(number // WORKERS, message.worker, encoded[number])
            due += message.blocks
            asked = prompts[chains[number * 7 % len(chains)]]
            start = time.perf_counter_ns()
            feed.lookup(asked)
            times.append((time.perf_counter_ns() - start) / 1e3)
    finally:
        feed.close()
    note = f"prompts of {CHAIN * BLOCK:,} tokens, while {_LOOKUP_RATE:,.0f} blocks a second come and go"
    return summarised("events/lookup", make.name, times, note)


def _send(feed: Feed, stream: Stream, encoded: Sequence[Any], window: float) -> _Run:
    """Send every message when it is due, then wait until all are visible. A window of 0 s: all are due at once."""
    every = window / len(encoded)
    begin, used = time.perf_counter(), time.process_time()
    for number, message in enumerate(stream.messages):
        if window:
            _sleep_until(begin + number * every)
        feed.send(number // WORKERS, message.worker, encoded[number])
    span = time.perf_counter() - begin
    _drain(feed, stream, len(encoded))
    return _Run(span, time.perf_counter() - begin, time.process_time() - used)


def _drain(feed: Feed, stream: Stream, messages: int) -> None:
    """Wait until the last message of every worker is visible to a lookup."""
    deadline = time.monotonic() + _DEADLINE_S
    last = {message.worker: message for message in stream.messages[:messages]}
    for worker, message in last.items():
        chain = chain_named(message.stored.start)
        blocks = message.stored.stop - name(chain)
        tokens = stream.prompt(chain)[: blocks * BLOCK].tolist()
        while feed.depth(worker, tokens) != blocks:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{feed.name} does not show worker {worker}'s last message after {_DEADLINE_S} s")
            time.sleep(0.0005)


def _sleep_until(due: float) -> None:
    # Not a loop that reads the clock: it would keep the interpreter's lock from the readers of the messages.
    wait = due - time.perf_counter()
    if wait > 0:
        time.sleep(wait)


def _blocks(messages: Sequence[Message]) -> int:
    return sum(message.blocks for message in messages)
