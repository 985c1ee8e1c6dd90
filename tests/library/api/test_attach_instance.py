"""A call that takes an instance refuses a class with a message of its own."""

from __future__ import annotations

from typing import Any

import pytest

import cachelb
from cachelb.events import ZmqSource
from cachelb.policies import CacheAware
from cachelb.records import Capture, JsonlRecords
from cachelb.sources import MetricsSource
from cachelb.state import RedisState, SnapshotFile, ZmqMesh

ATTACHABLE = (MetricsSource, ZmqSource, ZmqMesh, RedisState, SnapshotFile, JsonlRecords, Capture)


@pytest.mark.parametrize("kind", ATTACHABLE)
def test_attach_asks_for_an_instance(kind: Any) -> None:
    router = cachelb.Router(["a"])
    for method in ("attach", "detach"):
        call = rf"{method}\({kind.__name__}\(\.\.\.\)\)"
        with pytest.raises(TypeError, match=f"an instance, not the class {kind.__name__}: {call}"):
            getattr(router, method)(kind)
    router.close()


@pytest.mark.parametrize("argument", ["policy", "prefill", "decode"])
def test_a_policy_is_asked_for_as_an_instance(argument: str) -> None:
    given: dict[str, Any] = {argument: CacheAware}
    with pytest.raises(TypeError, match=r"not the class CacheAware; pass CacheAware\(\)"):
        cachelb.Router(["a"], **(given if argument == "policy" else {"pairs": cachelb.Pairs(**given)}))
