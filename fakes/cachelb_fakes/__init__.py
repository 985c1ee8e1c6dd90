"""Fake engines, and KV cache events as engines publish them: for tests of gateways, without a GPU.

Example:
    >>> from cachelb_fakes import FakeFleet
    >>> with FakeFleet(2) as fleet:
    ...     len(fleet.urls)
    2
"""

from __future__ import annotations

from cachelb_fakes.events import EventPublisher
from cachelb_fakes.fleet import FakeFleet, FakeWorker, PeerTier

__all__ = ["EventPublisher", "FakeFleet", "FakeWorker", "PeerTier"]
