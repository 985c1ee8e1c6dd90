"""Requests of the tests of the simulator."""

from __future__ import annotations

import pytest

from cachelb_lab.sim import Workload, build


@pytest.fixture(scope="session")
def chats() -> Workload:
    return build("chat", seed=3, count=400)
