"""Hostile numbers for what is attached to a router or stands beside it: refused before anything is opened."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.hostile.tables import Case, takes_numbers

from cachelb import NoWorkerAvailable, Router, doctor, events, learned, records, sources, state, testing
from cachelb.config import KvEventsConfig, WorkerConfig
from cachelb.events import Endpoint, Relay, ZmqSource
from cachelb.integrations.ext_proc import EndpointPicker
from cachelb.integrations.ray_serve import RayState
from cachelb.records import JsonlRecords
from cachelb.sources import LoadReport, MetricsSource
from cachelb.state import RedisState, SnapshotFile, ZmqMesh

PORT = "tcp://127.0.0.1:*"


def _attached(made: Any) -> None:
    with Router(["http://127.0.0.1:1"], secret="known to the tests alone") as router:  # noqa: S106 - of these tests
        router.attach(made)


SAMPLES = learned.Samples(np.random.default_rng(1).random((20, 9), np.float32), [None] * 20, np.ones(20, np.float32))
CASES: dict[str, Case] = {
    "RedisState": Case(RedisState, {"url": "redis://127.0.0.1:1"}),
    "ZmqMesh": Case(ZmqMesh, {"bind": PORT, "peers": []}),
    "RayState": Case(RayState, {"name": "fleet"}),
    "SnapshotFile": Case(SnapshotFile, {"path": "kept"}, _attached),
    "MetricsSource": Case(MetricsSource, {}, _attached),
    "LoadReport": Case(LoadReport),
    "ZmqSource": Case(ZmqSource),
    "Relay": Case(Relay, {"bind": PORT}),
    "Relay.add_worker": Case(Relay(PORT).add_worker, {"key": "http://a"}),
    "Endpoint.of_rank": Case(Endpoint("tcp://a:1", "tcp://a:2").of_rank, {"rank": 0}),
    "EndpointPicker": Case(EndpointPicker, {"router": Router(["http://127.0.0.1:1"])}),
    "JsonlRecords": Case(JsonlRecords, {"path": "records"}, _attached),
    "NoWorkerAvailable": Case(NoWorkerAvailable, {"reasons": {}}),
    "Settings": Case(doctor.Settings),
    "KvEventsConfig": Case(KvEventsConfig),
    "WorkerConfig": Case(WorkerConfig, {"key": "a", "role": "both"}),
    "evaluate": Case(learned.evaluate, {"samples": SAMPLES, "predictors": ["mean"], "seeds": [1]}),
    "FakeFleet": Case(testing.FakeFleet),
    "ManualClock": Case(testing.ManualClock),
    "ManualClock.advance": Case(testing.ManualClock().advance, {"seconds": 1.0}),
    "NaiveTracker": Case(testing.NaiveTracker),
    "worker_names": Case(testing.worker_names),
    "token_sequences": Case(testing.token_sequences),
}
MADE_HERE = {
    *("PeerStats", "StateStats", "SnapshotFileStats", "RelayStats", "StreamStats", "ZmqSourceStats", "MetricsPage"),
    *("MetricsSourceStats", "WorkerPolls", "BadLine", "RecordFiles", "RecordsStats", "Samples", "Spread", "Best"),
    *("Found", "Operation", "operations", "assert_agrees", "EventPublisher"),
}
"""What other calls return, and helpers of tests that take tokens or open sockets."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_number_is_refused_or_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CASES[name].options()
    CASES[name].vary()


@pytest.mark.parametrize("module", [state, events, sources, records, learned, testing], ids=lambda each: each.__name__)
def test_every_public_name_that_takes_numbers_has_a_case(module: ModuleType) -> None:
    public = {name: getattr(module, name) for name in module.__all__}
    takes = {
        name for name, each in public.items() if callable(each) and not inspect.isabstract(each) and takes_numbers(each)
    }
    assert takes <= CASES.keys() | MADE_HERE
