"""Looking into a source, and giving its engines less time."""

from __future__ import annotations

from dataclasses import replace

from tests.models.kv_streams import W

from cachelb.events import ZmqSource
from cachelb.events.stream import Stream


def stream_of(source: ZmqSource, key: str = W) -> Stream:
    """The stream of a worker."""
    assert source._runs.latest is not None
    return source._runs.latest._fleet._streams[key, None]


def give_up_after(source: ZmqSource, replay_timeout_s: float) -> None:
    """From now on an engine has so many seconds to answer a replay."""
    stream = stream_of(source)
    stream._settings = replace(stream._settings, replay_timeout_s=replay_timeout_s)


def last_error(source: ZmqSource, key: str) -> str | None:
    """What went wrong last; nothing before the source has made the stream, which its thread does."""
    stream = source.stats().streams.get((key, None))
    return None if stream is None else stream.last_error
