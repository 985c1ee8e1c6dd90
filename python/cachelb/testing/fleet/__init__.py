"""Fake engines behind real HTTP servers; needs the extra ``cachelb[testing]``."""

from __future__ import annotations

try:
    import aiohttp as _aiohttp  # noqa: F401 - checked once, here
except ImportError as error:
    raise ImportError("cachelb.testing.FakeFleet needs aiohttp: install it, or cachelb[testing]") from error

from cachelb.testing.fleet.counts import Counts, SeenRequest
from cachelb.testing.fleet.faults import FaultKind
from cachelb.testing.fleet.fleet import FakeFleet
from cachelb.testing.fleet.worker import FakeWorker

__all__ = ["Counts", "FakeFleet", "FakeWorker", "FaultKind", "SeenRequest"]
