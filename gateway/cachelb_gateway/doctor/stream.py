"""The event stream of one worker, received by a router and a source of its own, and checks of it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Self

from cachelb.cache_groups import FULL_KINDS
from cachelb.events import ZmqSource
from cachelb.router import Router
from cachelb.stats.events import CacheGroupStats, KvEventStats
from cachelb_gateway.doctor.pages import Facts
from cachelb_gateway.doctor.settings import Settings
from cachelb_gateway.doctor.tap import Announced, StreamNotes, Tap
from cachelb_gateway.doctor.verdicts import Check, of_ranks

_KINDS_FIX: Final = "upgrade the engine: its events leave out what layers attend to, and no place to resume is sure"
_UNKNOWN_FIX: Final = "report the kind: until its rule is known, nothing is expected to be cached on this worker"


def alignment(groups: Sequence[CacheGroupStats]) -> int | None:
    """Return the tokens that places to resume at are multiples of, None for full attention alone."""
    sizes = [group.block_size for group in groups if group.block_size]
    return math.lcm(*sizes) if any(is_side(group) for group in groups) else None


def is_side(group: CacheGroupStats) -> bool:
    """Whether a group keeps only what prompts resume with."""
    return group.kind is not None and group.kind not in FULL_KINDS


def check_groups(groups: Sequence[CacheGroupStats], *, unknown_kinds: int, block_size: int) -> Check:
    """Make the check "cache-groups": whether the router, of such a block size, follows every group."""
    name = "cache-groups"
    if not groups:
        return Check(name, "skip", "no event named a group")
    if unknown_kinds:
        return Check(name, "warn", f"{_listed(groups)}: {unknown_kinds} of unknown kind", _UNKNOWN_FIX)
    if len(groups) > 1 and any(group.kind is None for group in groups):
        return Check(name, "warn", f"{len(groups)} groups, some without a kind", _KINDS_FIX)
    step = alignment(groups)
    if step is None:
        return Check(name, "ok", "full attention alone: every block held can be reused")
    seen = f"{_listed(groups)}: prompts resume at multiples of {step} tokens"
    if step % block_size:
        fix = f"use a block_size in the router that divides {step}: other places are not found"
        return Check(name, "warn", f"{seen}, the router's blocks have {block_size}", fix)
    return Check(name, "ok", seen)


def _listed(groups: Sequence[CacheGroupStats]) -> str:
    """List kinds, each with its blocks and how many groups there are."""
    counted = Counter((group.kind or "unsaid", group.block_size, group.window) for group in groups)
    return ", ".join(
        f"{count} x {kind} of {size} tokens" + (f", window {window}" if window else "")
        for (kind, size, window), count in counted.items()
    )


_DEFAULT_BLOCK: Final = 16
_ON_ITS_WAY_S: Final = 1.0
_NAMES: Final = ("stream", "shape", "cache-groups", "sequence", "replay", "tokens")
_REPLAY_FIX: Final = 'add "replay_endpoint": "tcp://*:5657" to --kv-events-config'


class Stream:
    """Subscribes to one worker as a gateway would, with a router that knows only this worker.

    Use it as a context manager.
    """

    def __init__(self, key: str, facts: Facts, settings: Settings) -> None:
        self._facts = facts
        self._settings = settings
        self._block_size = settings.block_size or facts.block_size or _DEFAULT_BLOCK
        self._router = Router[str](policy="kv-aware", block_size=self._block_size)
        self._router.add_worker(key, dp_size=len(facts.endpoints))
        self.tap = Tap(self._router)
        self._source = ZmqSource(endpoints={key: facts.endpoints[0]}, replay_timeout_s=settings.timeout_s)

    def __enter__(self) -> Self:
        self._source.start(self.tap)
        return self

    def __exit__(self, *_error: object) -> None:
        self._source.stop()
        self._router.close()

    async def ready(self) -> bool:
        """Wait until every rank is connected and has replayed; return whether all are connected."""
        streams = self.tap.streams
        ranks = len(self._facts.endpoints)

        def is_connected() -> bool:
            return len(streams) == ranks and all(notes.connected for notes in streams.values())

        def is_caught_up() -> bool:
            return all(notes.replay_from is None or notes.replay_complete is not None for notes in streams.values())

        if not await asyncio.to_thread(self.tap.wait_for, is_connected, self._settings.timeout_s):
            return False
        replayed = -1
        while not is_caught_up() and replayed < (now := sum(notes.replayed for notes in streams.values())):
            replayed = now  # a long buffer takes its time; one that does not move is given up
            await asyncio.to_thread(self.tap.wait_for, is_caught_up, self._settings.timeout_s)
        return True

    async def watch(self) -> None:
        """Wait a moment for silent ranks: the message of the last probe may be on its way."""

        def has_spoken() -> bool:
            return all(notes.live for notes in self.tap.streams.values())

        await asyncio.to_thread(self.tap.wait_for, has_spoken, min(_ON_ITS_WAY_S, self._settings.timeout_s))

    def predict(self, tokens: list[int], rank: int | None = None) -> int:
        """Return how many leading tokens of a prompt the worker, or a rank of it, holds by its events."""
        seen = self._router.explain(tokens=tokens, lora=self._facts.adapter).candidates[rank or 0]
        return min(seen.overlap_blocks, (len(tokens) - 1) // self._block_size) * self._block_size

    def alignment(self, rank: int | None = None) -> int | None:
        """Return the tokens that a hybrid model's places to resume at are multiples of, None without any."""
        stats = self._stats(rank)
        return None if stats is None else alignment(stats.groups)

    def _stats(self, rank: int | None) -> KvEventStats | None:
        return self._router.stats().workers[rank or 0].kv_events

    def _groups(self, rank: int | None) -> Check:
        stats = self._stats(rank)
        if stats is None:
            return Check("cache-groups", "skip", "no event was received")
        return check_groups(stats.groups, unknown_kinds=stats.unknown_kinds, block_size=self._block_size)

    def unreachable(self) -> list[Check]:
        """Return the checks of a stream without a connection."""
        stats = self._source.stats().streams.values()
        why = next((each.last_error for each in stats if each.last_error), "no answer")
        where = ", ".join(endpoint.address for endpoint in self._facts.endpoints.values())
        fix = "open the port to this machine, or name the right one with --events-port"
        return [Check("stream", "fail", f"no connection to {where}: {why}", fix), *not_checked(_NAMES[1:])]

    def checks(self) -> list[Check]:
        """Return the checks of the stream after the probes."""
        streams = self.tap.streams
        if not streams:
            return self.unreachable()

        def of_each(judge: Callable[[int | None, StreamNotes], Check]) -> Check:
            return of_ranks({rank: judge(rank, notes) for rank, notes in sorted(streams.items(), key=_by_rank)})

        published = of_each(lambda rank, notes: _published(notes, self._announced(rank), self._settings.timeout_s))
        sequence = of_each(lambda _, notes: _sequence(notes))
        groups = of_ranks({rank: self._groups(rank) for rank in streams})
        return [published, self._shape(), groups, sequence, of_each(self._replay), self._tokens()]

    def _announced(self, rank: int | None) -> list[Announced]:
        """Return the blocks published by one rank."""
        return [found for found in self.tap.announced if found.rank == rank]

    def _shape(self) -> Check:
        """Check the content of messages."""
        received = self.tap.received
        seen = ", ".join(f"{count} {kind}" for kind, count in sorted(received.events.items())) or "nothing"
        if received.undecodable:
            why, count = received.undecodable.most_common(1)[0]
            fix = "report the version of the engine: this form of message is not known"
            return Check("shape", "fail", f"{count} messages cannot be read: {why}", fix)
        if not received.events:
            return Check("shape", "skip", "no event was received")
        foreign = received.events["Unknown"] + received.events["Malformed"]
        if foreign:
            fix = "report the version of the engine; events that are not known are passed over"
            return Check("shape", "warn", f"{seen}: {foreign} are passed over", fix)
        sizes = sorted(received.block_sizes)
        size = self._facts.block_size
        if size is not None and sizes and sizes != [size]:
            fix = f"use block_size={sizes[0]} in the router"
            return Check("shape", "warn", f"{seen}; blocks of {sizes} tokens, its metrics have {size}", fix)
        return Check("shape", "ok", f"{seen}; media {', '.join(sorted(received.media)) or 'none'}")

    def _replay(self, rank: int | None, notes: StreamNotes) -> Check:
        """Judge the replay socket."""
        where = self._facts.endpoints[rank or 0].replay
        if where is None:
            return Check("replay", "warn", "no replay socket: a lost message costs all that is known", _REPLAY_FIX)
        if not notes.replay_complete:
            fix = f"open the port of {where} to this machine, or correct replay_endpoint in --kv-events-config"
            return Check("replay", "fail", f"{where} does not answer", fix)
        first = notes.first_replayed
        if first is None:
            return Check("replay", "ok", f"{where} answers; nothing was published yet")
        seen = f"{notes.replayed} batches, numbers {first} to {notes.last_replayed}"
        if first > (notes.replay_from or 0):
            fix = "raise buffer_steps in --kv-events-config; blocks announced earlier are known when they come again"
            return Check("replay", "warn", f"{seen}: earlier ones are gone", fix)
        return Check("replay", "ok", seen)

    def _tokens(self) -> Check:
        """Judge whether events carry the tokens that were sent, linked in their order."""
        announced = self.tap.announced
        if not announced:
            return Check("tokens", "skip", "no event of the probe was received")
        broken = sum(not self._is_linked(found) for found in announced)
        if broken:
            fix = "report the version of the engine: its parents are not those of the prompt"
            return Check("tokens", "fail", f"{broken} of {len(announced)} events name another block before theirs", fix)
        blocks = sum(len(found.names) for found in announced)
        seen = f"{blocks} blocks with the very tokens that were sent, linked in order; hashes of the engine not checked"
        return Check("tokens", "ok", seen)

    def _is_linked(self, found: Announced) -> bool:
        """Return whether the named parent is the block before."""
        if found.start == 0:
            return found.parent is None
        before = (
            each
            for each in self.tap.announced
            if each.start + each.tokens >= found.start > each.start and self.tap.shares(found, each)
        )
        return any(each.names[(found.start - each.start) // each.block_size - 1] == found.parent for each in before)


def _by_rank(item: tuple[int | None, StreamNotes]) -> int:
    return item[0] or 0


def not_checked(names: tuple[str, ...] = _NAMES, why: str = "there are no events") -> list[Check]:
    """Return the checks that cannot be made, with the reason."""
    return [Check(name, "skip", why) for name in names]


def _published(notes: StreamNotes, announced: list[Announced], timeout_s: float) -> Check:
    """Check that the engine publishes its changes."""
    if announced:
        return Check("stream", "ok", f"{notes.live} messages while probing")
    if notes.live:
        fix = "make sure that the event address is this very engine's, and no other's"
        return Check("stream", "fail", f"{notes.live} messages, but none about the probe", fix)
    fix = "make sure that the event address is this very engine's and that it caches prefixes"
    return Check("stream", "fail", f"connected, but nothing came within {timeout_s:g} s of a prompt", fix)


def _sequence(notes: StreamNotes) -> Check:
    """Judge the numbers of the messages."""
    if not notes.live:
        return Check("sequence", "skip", "no live message was received")
    if notes.unnumbered:
        fix = "upgrade the engine: lost messages go unnoticed"
        return Check("sequence", "warn", f"{notes.unnumbered} of {notes.live} messages have no number", fix)
    seen = f"numbers {notes.first} to {notes.last}"
    if notes.went_back:
        fix = "let each engine publish at an address of its own; a restart while probing looks alike"
        return Check("sequence", "fail", f"{seen}, which went back {notes.went_back} times", fix)
    if notes.lost:
        fix = "raise hwm in --kv-events-config, or look for what slows this connection down"
        return Check("sequence", "fail", f"{seen}, of which {notes.lost} are missing", fix)
    if notes.last_replayed is not None and notes.first is not None and notes.first > notes.last_replayed + 1:
        missing = notes.first - notes.last_replayed - 1
        fix = "raise hwm in --kv-events-config, or look for what slows this connection down"
        return Check("sequence", "fail", f"{seen}; {missing} are missing after the replay", fix)
    return Check("sequence", "ok", f"{seen} without a gap")
