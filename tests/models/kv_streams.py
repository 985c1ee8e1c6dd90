"""Publishers, sources and sinks, put together for a test."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.models.kv_sink import RecordingSink

from cachelb.events import Endpoint, ZmqSource
from cachelb.events.zmq.stream import Stream
from cachelb_fakes import EventPublisher
from cachelb_fakes.events import stored
from cachelb_gateway.relay import Relay

W = "http://gpu0:8000"


def publish(publisher: EventPublisher, *names: int) -> None:
    """Publish one batch per name, each with one block of this name."""
    for name in names:
        publisher.publish(stored([name], range(16)))
    publisher.flush()


@contextlib.contextmanager
def receiving(
    sink: RecordingSink, endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None, **options: Any
) -> Iterator[ZmqSource]:
    """Run a source."""
    source = ZmqSource(endpoints=endpoints, **options)
    source.start(sink)
    try:
        yield source
    finally:
        source.stop()


@contextlib.contextmanager
def connected(publisher: EventPublisher, **options: Any) -> Iterator[tuple[RecordingSink, ZmqSource]]:
    """Follow one worker, from the moment its stream is live and no replay is under way."""
    sink = RecordingSink({W: 1})
    with receiving(sink, {W: publisher.endpoint}, **options) as source:
        publisher.wait_for(lambda: publisher.subscribers == 1)
        last = "connected False" if publisher.endpoint.replay is None else "ended True"
        sink.wait_for(lambda: last in sink.of(W).told)
        yield sink, source


RANKS: dict[str, Any] = {"default_port": 6000, "replay_port": 7000}
"""Where the first of three ranks is."""


@contextlib.contextmanager
def three_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EventPublisher]]:
    """Let the ranks' addresses lead to where publishers found free ports."""
    original = Endpoint.of_rank
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(EventPublisher(dp_rank=rank)) for rank in range(3)]
        addresses = {f"tcp://gpu0:{6000 + rank}": ranks[rank].endpoint.address for rank in range(3)}
        addresses |= {f"tcp://gpu0:{7000 + rank}": ranks[rank].endpoint.replay or "" for rank in range(3)}

        def of_rank(self: Endpoint, rank: int) -> Endpoint:
            meant = original(self, rank)
            return Endpoint(addresses[meant.address], addresses[meant.replay or ""])

        monkeypatch.setattr("cachelb.events.fleet.Endpoint.of_rank", of_rank)
        yield ranks


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if threads, sockets or files are left that were not there before."""
    gc.collect()  # what earlier tests left is not this one's
    files, running, sockets = open_files(), set(threading.enumerate()), open_sockets()
    yield
    gc.collect()
    assert open_sockets() <= sockets
    assert open_files() <= files
    assert set(threading.enumerate()) <= running


def open_sockets() -> set[int]:
    """Return the identities of open sockets and contexts."""
    return {id(each) for each in gc.get_objects() if isinstance(each, zmq.Socket | zmq.Context) and not each.closed}


def open_files() -> int:
    """Count the files of this process, where the system reports them."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def threads() -> list[str]:
    """Name the threads of this process."""
    return sorted(thread.name for thread in threading.enumerate())


@contextlib.contextmanager
def behind(relay: Relay, *sinks: RecordingSink, **options: Any) -> Iterator[list[ZmqSource]]:
    """Run a source behind a relay for each sink."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(receiving(sink, {}, relay=relay.address, **options)) for sink in sinks]


@contextlib.contextmanager
def relayed(
    publisher: EventPublisher, *, secret: str | None = None, **options: Any
) -> Iterator[tuple[Relay, RecordingSink, ZmqSource]]:
    """Follow one worker through a relay, from the moment its stream is live and no replay is under way."""
    with Relay("tcp://127.0.0.1:*", workers=[W], endpoints={W: publisher.endpoint}, secret=secret) as relay:
        sink = RecordingSink({W: 1})
        with behind(relay, sink, secret=secret, **options) as (source,):
            publisher.wait_for(lambda: publisher.subscribers == 1)
            last = "connected False" if publisher.endpoint.replay is None else "ended True"
            sink.wait_for(lambda: last in sink.of(W).told)
            yield relay, sink, source


def stream_of(source: ZmqSource, key: str = W) -> Stream:
    """The stream of a worker."""
    assert source._runs.latest is not None
    return source._runs.latest._fleet._streams[key, None]


def give_up_after(source: ZmqSource, replay_timeout_s: float) -> None:
    """From now on engines have so many seconds to answer a replay."""
    source.replay_timeout_s = replay_timeout_s


def last_error(source: ZmqSource, key: str) -> str | None:
    """The last error; None until the source's thread has made the stream."""
    stream = source.stats().streams.get((key, None))
    return None if stream is None else stream.last_error
