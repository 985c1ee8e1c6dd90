"""Hostile numbers for the simulator and for what stands beside a router: refused before anything is opened, or kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.hostile.tables import CHATS, FLEET, SIMULATOR, Case, takes_numbers

import cachelb_fakes
from cachelb import NoWorkerAvailable, Router, events, learned, records, sources, state, testing
from cachelb.events import Endpoint, PollSource, ZmqSource
from cachelb.integrations.ray_serve import RayState
from cachelb.records import Capture, JsonlRecords
from cachelb.sources import LoadReport, MetricsSource
from cachelb.state import RedisState, SnapshotFile, ZmqMesh
from cachelb_gateway import discovery, doctor, serve
from cachelb_gateway.config import WorkerConfig
from cachelb_gateway.discovery import DnsWorkers, FileWorkers, KubernetesWorkers
from cachelb_gateway.ext_proc import EndpointPicker
from cachelb_gateway.relay import Relay
from cachelb_lab import sim
from cachelb_lab.sim import FleetSpec, Sweep, workloads
from cachelb_lab.sim.checks import MOST_BLOCKS, MOST_REQUESTS

PORT = "tcp://127.0.0.1:*"


def _attached(made: Any) -> None:
    with Router(["http://127.0.0.1:1"], secret="known to the tests alone") as router:  # noqa: S106 - of these tests
        router.attach(made)


CASES: dict[str, Case] = {
    "RedisState": Case(RedisState, {"url": "redis://127.0.0.1:1"}),
    "ZmqMesh": Case(ZmqMesh, {"bind": PORT, "peers": []}),
    "RayState": Case(RayState, {"name": "fleet"}),
    "SnapshotFile": Case(SnapshotFile, {"path": "kept"}, _attached),
    "MetricsSource": Case(MetricsSource, {}, _attached),
    "LoadReport": Case(LoadReport),
    "KubernetesWorkers": Case(KubernetesWorkers, {"service": "a", "api_url": "http://127.0.0.1:1"}, _attached),
    "DnsWorkers": Case(DnsWorkers, {"name": "a.invalid", "nameservers": ["127.0.0.1:1"]}, _attached),
    "FileWorkers": Case(FileWorkers, {"path": "workers.json"}, _attached),
    "ZmqSource": Case(ZmqSource),
    "PollSource": Case(PollSource),
    "Relay": Case(Relay, {"bind": PORT}),
    "Relay.add_worker": Case(Relay(PORT).add_worker, {"key": "http://a"}),
    "Endpoint.of_rank": Case(Endpoint("tcp://a:1", "tcp://a:2").of_rank, {"rank": 0}),
    "EndpointPicker": Case(EndpointPicker, {"router": Router(["http://127.0.0.1:1"])}),
    "Gateway": Case(serve.Gateway, {"router": Router()}),
    "Capture": Case(Capture, {"path": "capture"}, _attached),
    "JsonlRecords": Case(JsonlRecords, {"path": "records"}, _attached),
    "NoWorkerAvailable": Case(NoWorkerAvailable, {"reasons": {}}),
    "Settings": Case(doctor.Settings),
    "WorkerConfig": Case(WorkerConfig, {"key": "a", "role": "both"}),
    "FakeFleet": Case(cachelb_fakes.FakeFleet),
    "PeerTier": Case(cachelb_fakes.PeerTier, {"blocks": 8}),
    "ManualClock": Case(testing.ManualClock),
    "ManualClock.advance": Case(testing.ManualClock().advance, {"seconds": 1.0}),
    "NaiveTracker": Case(testing.NaiveTracker),
    "worker_names": Case(testing.worker_names),
    "token_sequences": Case(testing.token_sequences),
}
MADE_HERE = {
    *(
        "PeerStats",
        "StateStats",
        "SnapshotFileStats",
        "RelayStats",
        "DiscoveryStats",
        "StreamStats",
        "ZmqSourceStats",
        "MetricsPage",
    ),
    *("PollStats", "PollSourceStats"),
    *(
        "MetricsSourceStats",
        "WorkerPolls",
        "BadLine",
        "RecordFiles",
        "RecordsStats",
        "CaptureStats",
        "Series",
        "Samples",
        "Best",
    ),
    *("Found", "Operation", "operations", "assert_agrees", "EventPublisher"),
}
"""Results of other calls, and helpers of tests that take tokens or open sockets."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_number_is_refused_or_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CASES[name].options()
    CASES[name].vary()


@pytest.mark.parametrize(
    "module",
    [state, discovery, events, sources, records, learned, serve, testing, cachelb_fakes],
    ids=lambda each: each.__name__,
)
def test_every_public_name_that_takes_numbers_has_a_case(module: ModuleType) -> None:
    public = {name: getattr(module, name) for name in module.__all__}
    takes = {
        name for name, each in public.items() if callable(each) and not inspect.isabstract(each) and takes_numbers(each)
    }
    assert takes <= CASES.keys() | MADE_HERE


LEFT_OUT = {
    "Comparison": "made by `compare`",
    "Metrics": "made by `measure`",
    "SimResult": "made by `simulate`",
    "Workload": "its columns are checked by `validate`",
    "Generator": "an entry of a table, checked when it is built",
    "Piece": "made by `Draft.piece`",
    "CapturedTraffic": "made by `read_capture`",
    "CapturedWorker": "made by `read_capture`",
}


@pytest.mark.parametrize("name", SIMULATOR)
def test_number_of_the_simulator_is_refused_or_works(name: str) -> None:
    assert SIMULATOR[name].vary() > 0


def test_every_public_name_of_the_simulator_has_a_case() -> None:
    public = {name: getattr(module, name) for module in (sim, workloads) for name in module.__all__}
    kinds = {name: each for name, each in public.items() if callable(each) and not inspect.isabstract(each)}
    numeric = {name for name, each in kinds.items() if takes_numbers(each)}
    assert numeric == (SIMULATOR.keys() & public.keys()) | LEFT_OUT.keys()


HUGE: dict[str, tuple[Callable[[], object], str]] = {
    "fleet": (lambda: FleetSpec.parse("99999999xh100"), "65536 workers at most"),
    "fleet's groups": (lambda: FleetSpec.parse("+".join(["60000xh100"] * 2)), "65536 workers at most"),
    "tensor parallel": (lambda: FleetSpec.parse("1xh100:tp99999999"), "tensor_parallel must be at most 1024"),
    "sweep": (lambda: Sweep.parse("rate=1:1e30:1e-9"), "cannot read"),
    "requests": (lambda: sim.build("rag", count=2**31), f"count must be at most {MOST_REQUESTS}"),
    "blocks": (lambda: sim.build("rag", count=5_000, document_tokens=2**20, block_size=1), f"{MOST_BLOCKS} at most"),
    "stages": (lambda: sim.build("shared-prefix", stages=[(1e6, 1e6)]), "count must be at most"),
    "span": (lambda: sim.simulate(sim.build("rag", count=9, rate=1e-8), FLEET), "intervals at most; speed_up"),
    "seeds": (lambda: sim.compare(CHATS, FLEET, ["random"], seeds=range(10**12)), "seeds must have 65536 items"),
    "steps": (lambda: workloads.parse_arrivals("step:2@99999999999", 1.0), "must be from"),
    "worker names": (lambda: testing.worker_names(count=2**31), "count must be at most 65536"),
    "prompts": (lambda: testing.token_sequences(max_tokens=2**31), "max_tokens must be at most 65536"),
}


@pytest.mark.parametrize("name", HUGE)
def test_what_would_fill_memory_is_refused_before_it_does(name: str) -> None:
    make, message = HUGE[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_rare_documents_are_found_without_drawing_for_ever() -> None:
    steep = sim.build("rag", seed=1, count=20, documents=40, most_per_prompt=40, popularity=100.0)
    assert len(steep) == 20
