"""Fake engines behind real HTTP servers."""

from __future__ import annotations

from cachelb_fakes.fleet.counts import Counts, SeenRequest
from cachelb_fakes.fleet.faults import FaultKind
from cachelb_fakes.fleet.fleet import FakeFleet
from cachelb_fakes.fleet.options import PeerTier
from cachelb_fakes.fleet.worker import FakeWorker

__all__ = ["Counts", "FakeFleet", "FakeWorker", "FaultKind", "PeerTier", "SeenRequest"]
