"""Hostile values, allowed outcomes of a call that gets one, and calls of the simulator that take numbers.

A case varies every numeric option, found by its annotation. Its result is used, so that a value that is accepted must
also work.
"""

from __future__ import annotations

import inspect
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cachelb import NoWorkerAvailable, Router, UnknownWorkerError
from cachelb.errors import SnapshotError, TraceError
from cachelb.records import Capture
from cachelb_lab import sim
from cachelb_lab.sim import FleetSpec, Incident, Measurement, Signals, Slo, WorkerSpec, Workload, fit_scale, workloads
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.gpus import find_gpu, find_model, kv_tokens
from cachelb_lab.sim.timing import Roofline
from cachelb_lab.sim.trace_files.expand import blocks_per_id
from cachelb_lab.sim.workloads import WORKLOADS, Draft, Plan, Poisson

NAN, INF = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, -0.5, NAN, INF, -INF, 1e30, 1e300, 5e-324),
    *("x", None, True, (), [], {}, object()),
)
EXPECTED = (TypeError, ValueError, UnknownWorkerError, NoWorkerAvailable, SnapshotError, TraceError)
INTERNALS = (
    *("Native", "PyO3", "is not an instance of", "object cannot be", "u64", "usize", "internal error"),
    *("not supported between", "unsupported operand", "must be real number", "cannot convert", "ufunc", "to unpack"),
    *("non-iterable", "not iterable", "low >= high", "can't multiply", "NoneType' object"),
)
_NUMERIC = re.compile(r"\b(int|float)\b")


def survives(call: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return what the call returns, or None after an error that is documented and names no internals."""
    refused: BaseException
    try:
        return call(**given)
    except EXPECTED as error:
        refused = error
    text = str(refused)
    assert not text.startswith("argument '"), text
    assert not any(word in text for word in INTERNALS), text
    assert not isinstance(refused, UnicodeError), text  # it carries the whole text
    return None


def _shown(made: Any) -> object:
    return repr(made)


class Case(NamedTuple):
    """A callable, arguments it takes, and what is done with its result."""

    call: Callable[..., Any]
    given: Mapping[str, Any] = {}
    use: Callable[[Any], object] = _shown
    varied: Callable[..., Any] | None = None
    """Whose options are varied, if not the callable's."""

    def options(self) -> list[str]:
        """Return the numeric options by name."""
        found = inspect.signature(self.varied or self.call).parameters.values()
        numeric = [each for each in found if _NUMERIC.search(str(each.annotation))]
        return [each.name for each in numeric if "Callable" not in str(each.annotation)]

    def vary(self) -> int:
        """Give every option every number, alone; return how many were taken."""
        taken = 0
        for option, value in itertools.product(self.options(), NUMBERS):
            made = survives(self.call, {**self.given, option: value})
            if made is not None:
                taken += 1
                survives(self.use, {"made": made})
        return taken


def takes_numbers(each: Any) -> bool:
    """Whether a callable has numeric options."""
    try:
        return bool(Case(each).options())
    except ValueError:  # no signature
        return False


def _small(name: str = "chat", count: int = 20, **options: Any) -> Workload:
    return workloads.build(name, seed=1, count=count, **options)


def _run(made: FleetSpec | None = None, **options: Any) -> sim.SimResult:
    return sim.simulate(CHATS, made or FLEET, "least-loaded", **options)


CHATS = _small()
FLEET = FleetSpec.parse("2xh100")
GPU, MODEL = find_gpu("h100"), find_model("llama-3-8b")
RNG = np.random.default_rng(1)
MOONCAKE = '{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}\n'
SESSIONS = (
    '{"session_id": "a", "turn": 0, "offset_ms": 0, "input_length": 40, "output_length": 5, "hash_ids": [0, 1]}\n'
)
AGENTS = (
    '{"id": "a", "tool_tokens": 50, "system_tokens": 14, '
    '"requests": [{"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2]}]}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.0099300,100,10\n"


def _times(made: Any) -> object:
    return made.times(10, np.random.default_rng(1))


def _worker(**options: Any) -> FleetSpec:
    return FleetSpec((WorkerSpec(GPU, MODEL, **options),))


def _reading(read: Callable[..., Any], content: str, use: Callable[[Any], object]) -> Case:
    """A reader of a file with this content."""

    def written(**given: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.jsonl")
            file.write_text(content)
            made = read(file, **given)
            return list(made) if isinstance(made, Iterator) else made

    return Case(written, {}, use, read)


def _columns(made: Workload) -> object:
    return made.columns(), len(made)


def _step(rate: float, count: int) -> None: ...


def _count(count: int) -> None: ...


def _capture() -> str:
    """Return the content of a capture of one request."""
    with tempfile.TemporaryDirectory() as folder, Router(["gpu0"]) as router:
        capture = Capture(file := Path(folder, "capture.jsonl"))
        router.attach(capture)
        router.select_worker(tokens=range(64)).on_complete(cached_tokens=0, output_tokens=5)
        router.detach(capture)
        return file.read_text()


GENERATORS = {
    f"build {name}": Case(workloads.build, {"name": name, "count": 20}, _columns, generator.builder)
    for name, generator in WORKLOADS.items()
}
SIMULATOR: dict[str, Case] = {
    **GENERATORS,
    "build": Case(workloads.build, {"name": "rag"}, _columns),
    "WorkerSpec": Case(_worker, {}, _run, WorkerSpec),
    "FleetSpec.parse": Case(FleetSpec.parse, {"text": "1xh100"}, _run),
    "Roofline": Case(lambda **given: _worker(timing=Roofline(**given)), {}, _run, Roofline),
    "PoolSpec": Case(sim.PoolSpec, {"load_ms_per_token": 0.01}, lambda made: _run(_worker(pool=made))),
    "PeerSpec": Case(
        sim.PeerSpec,
        {"load_ms_per_token": 0.01},
        lambda made: _run(_worker(tier=sim.PoolSpec(0.01), peers=made)),
    ),
    "Signals": Case(Signals, {"kv_events": True}, lambda made: _run(signals=made)),
    "Incident": Case(Incident, {"at_s": 0.5, "worker": 0, "what": "crash"}, lambda made: _run(incidents=(made,))),
    "Measurement": Case(
        Measurement,
        {"prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 5, "ttft_s": 0.1, "total_s": 0.2},
        lambda made: fit_scale([made] * 3, FLEET.workers[0]),
    ),
    "Slo": Case(Slo, {}, lambda made: sim.compare(CHATS, FLEET, ["random"], slo=made).settings),
    "simulate": Case(sim.simulate, {"workload": CHATS, "fleet": FLEET}),
    "compare": Case(sim.compare, {"workload": CHATS, "fleet": FLEET, "policies": ["random"]}),
    "Workload.speed_up": Case(CHATS.speed_up, {"factor": 2.0}, _columns),
    "Workload.jitter": Case(CHATS.jitter, {"seconds": 2.0}, _columns),
    "Workload.impatient": Case(CHATS.impatient, {"share": 0.5, "mean_s": 1.0}, _columns),
    "Workload.slice": Case(CHATS.slice, {}, _columns),
    "Poisson": Case(Poisson, {"rate": 1.0}, _times),
    "Constant": Case(workloads.Constant, {"rate": 1.0}, _times),
    "Gamma": Case(workloads.Gamma, {"rate": 1.0, "cv": 1.0}, _times),
    "Bursts": Case(workloads.Bursts, {"size": 2, "period_s": 1.0}, _times),
    "Steps": Case(
        lambda rate, count: workloads.Steps(((rate, count), (1.0, 1))), {"rate": 1.0, "count": 1}, _times, _step
    ),
    "parse_arrivals": Case(workloads.parse_arrivals, {"text": "poisson", "rate": 1.0}, _times),
    "Poisson.times": Case(lambda count: Poisson(1.0).times(count, RNG), {}, _shown, _count),
    "Plan": Case(Plan, {}, lambda made: Draft("mine", made)),
    "Draft.piece": Case(Draft("mine", Plan(seed=1, count=2)).piece, {"tokens": 10}),
    "read_agent_sessions": _reading(workloads.read_agent_sessions, AGENTS, _columns),
    "read_azure": _reading(workloads.read_azure, AZURE, _columns),
    "read_capture": _reading(workloads.read_capture, _capture(), _shown),
    "read_mooncake": _reading(workloads.read_mooncake, MOONCAKE, _columns),
    "read_sessions": _reading(workloads.read_sessions, SESSIONS, _columns),
    "read_workload": _reading(workloads.read_workload, MOONCAKE, _columns),
    "kv_tokens": Case(kv_tokens, {"gpu": GPU, "model": MODEL}),
    "PoolProfile.hits": Case(PoolProfile(CHATS).hits),
    "blocks_per_id": Case(blocks_per_id, {"id_tokens": 512, "block_size": 16}),
}
