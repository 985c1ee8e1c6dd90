"""KV cache events: changes of the engines' caches, received for the router.

Example:
    >>> from cachelb.events import Endpoint, ZmqSource
    >>> source = ZmqSource(endpoints={"http://gpu0:8000": Endpoint("tcp://gpu0:5557", replay="tcp://gpu0:5657")})
    >>> source.stats().messages  # router.attach(source) starts it, router.close() stops it
    0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.events.endpoints import Endpoint
from cachelb.events.poll_source import PollSource
from cachelb.events.sink import EventSink, KvSink, RouterEvents
from cachelb.events.source import ZmqSource
from cachelb.events.stats import (
    PollSourceStats,
    PollStats,
    StreamState,
    StreamStats,
    ZmqSourceStats,
)

__all__ = [
    "Endpoint",
    "EventSink",
    "KvSink",
    "PollSource",
    "PollSourceStats",
    "PollStats",
    "RouterEvents",
    "StreamState",
    "StreamStats",
    "ZmqSource",
    "ZmqSourceStats",
]

if not TYPE_CHECKING:
    from functools import partial

    from cachelb.common.moved import moved_name

    __getattr__ = partial(moved_name, __name__)
