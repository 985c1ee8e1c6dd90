"""Streams of events in a process that may stand still for seconds."""

from __future__ import annotations

import pytest
import zmq

from cachelb.events import ZmqSource
from cachelb.events.zmq import sockets


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given up because this process stood still; tests of such timeouts set them."""
    monkeypatch.setattr(sockets, "_OPTIONS", {**sockets._OPTIONS, zmq.HANDSHAKE_IVL: 60_000})
    monkeypatch.setattr("cachelb.events.zmq.stream._CUT_OFF_S", 60.0)
    monkeypatch.setattr("cachelb.events.zmq.subscriber._JOIN_S", 60.0)
    defaults = ZmqSource.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "replay_timeout_s", 60.0)
