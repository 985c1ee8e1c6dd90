"""One gateway in a process of its own, an example or `cachelb serve`, and a pipe that asks how it goes."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import uvicorn
from benches.yardstick import yardstick
from examples import starlette_gateway

from cachelb import Router
from cachelb.admission import AdmissionOptions
from cachelb.events import ZmqSource
from cachelb.sources import MetricsSource
from cachelb.state import ZmqMesh
from cachelb_gateway.serve import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from cachelb import Decision
    from cachelb.types import WorkerStats

Kind: TypeAlias = Literal["starlette", "serve"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EXPOSED = ["x-cachelb-worker"]
"""The header by which a client recognises a whole answer."""

ADMISSION = AdmissionOptions(max_pending_tokens=512, max_wait_s=60.0)
"""Options of `cachelb serve`: tight, so that some requests wait, and patient, so that none is refused."""

_IDLE_S = 600
"""Until an idle connection is closed; a client that writes at that very moment would see an error."""


@dataclass(frozen=True)
class Spec:
    """One gateway.

    Attributes:
        kind: The Starlette example, or `cachelb serve`; also its name.
        workers: Addresses of the workers.
        bind: Where its mesh publishes.
        peers: Where all do.
        port: Where it listens; 0 takes a free port.
        warm_start_s: How long to wait for the fleet's state from the others.
    """

    kind: Kind
    workers: tuple[str, ...]
    bind: str
    peers: tuple[str, ...]
    port: int = 0
    warm_start_s: float = 0.0


@dataclass(frozen=True)
class Report:
    """The state of a gateway.

    Attributes:
        resident_bytes: Memory of the process.
        descriptors: Files and sockets that it has open, 0 where the system does not report them.
        malloc_bytes: Bytes in use of the C library's allocator, 0 where it does not report them.
        python_blocks: Blocks in use of the interpreter's allocator.
        cpu_s: Processor time since it began.
        bookings: Own decisions that have not ended.
        open_requests: Requests booked and not ended, those of peers too.
        load: In-flight requests, prompt tokens and blocks of all workers in its book; 0 at rest.
        decisions: Decisions since it began.
        endings: How requests ended.
        abandoned: Decisions that were never ended.
        waited: Requests that an admission released after they had waited.
        waiting: Requests that wait in one.
        held: Blocks that each worker is known to hold, of all cache groups.
        memory_bytes: Native memory of the router.
        lag_s: Longest lag of the events of a worker.
        events: Counters of KV events over all workers.
        peers: Bookings, silence and lag of each peer.
        mesh: Counters of the mesh.
        crashes: Exceptions that the application did not catch, and panics of the native gateway.
        complaints: Counts of logged warnings and errors, by logger and message.
        select_ns: Duration of each selection since the last report.
        yardstick_ns: Duration of the same piece of work, done after each.
    """

    resident_bytes: int
    descriptors: int
    malloc_bytes: int
    python_blocks: int
    cpu_s: float
    bookings: int
    open_requests: int
    load: int
    decisions: int
    endings: dict[str, int]
    waited: int
    waiting: int
    held: dict[str, int]
    memory_bytes: int
    lag_s: float
    events: dict[str, int]
    peers: list[tuple[int, float, float]]
    mesh: dict[str, int]
    crashes: int
    complaints: dict[str, int]
    select_ns: list[int] = field(repr=False)
    yardstick_ns: list[int] = field(repr=False)


@dataclass
class Times:
    """Nanoseconds of each selection, and of a fixed piece of work after it."""

    select_ns: list[int] = field(default_factory=list)
    yardstick_ns: list[int] = field(default_factory=list)


class TimedRouter(Router[str]):
    """A router that notes how long its selections take, and how fast the machine is at those moments."""

    times: Times

    def select_worker(self, **request: Any) -> Decision[str]:  # noqa: ANN401 - passed on
        begin = time.perf_counter_ns()
        decision = super().select_worker(**request)
        self.times.select_ns.append(time.perf_counter_ns() - begin)
        self.times.yardstick_ns.append(yardstick())
        return decision


class Complaints(logging.Handler):
    """Counts log records, and exceptions by themselves. Answers that are torn on purpose are errors to servers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.crashes = 0
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.crashes += record.exc_info is not None
        self.seen[f"{record.name}: {record.msg}"] += 1


def resident_bytes() -> int:
    """Read the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    """Count the open files and sockets of this process."""
    found = Path("/proc/self/fd")
    return sum(1 for _ in found.iterdir()) if found.exists() else 0


_MALLINFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO)


def malloc_bytes() -> int:
    """Return the bytes in use of the C library's allocator; only glibc reports them."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


def report(router: TimedRouter, crashes: int, complaints: dict[str, int], *, thorough: bool) -> Report:
    """Report the state of a gateway.

    Args:
        router: Its router.
        crashes: How many there were.
        complaints: Logged warnings and errors.
        thorough: Collect garbage and recount everything first.
    """
    if thorough:
        gc.collect()
        router.validate()
    stats = router.stats()
    decisions = sum(stats.decisions.values())
    times, router.times = router.times, Times()
    events: Counter[str] = Counter({"resyncs": stats.kv_resyncs, "gaps": stats.kv_gaps, "restarts": stats.kv_restarts})
    for worker in stats.workers:
        if worker.kv_events is not None:
            events["messages"] += worker.kv_events.messages
            events["fed"] += worker.kv_events.fed
            events["found_less"] += worker.kv_events.found_less
    events.update({f"repair {kind}": count for kind, count in stats.kv_repairs.items()})
    state = stats.state
    peers = [(peer.bookings, peer.silent_s, peer.lag_s) for peer in state.peers] if state else []
    mesh = ("gaps", "snapshots", "strangers", "refused", "dropped", "failures", "stale", "orphans", "blocks")
    return Report(
        resident_bytes=resident_bytes(),
        descriptors=descriptors(),
        malloc_bytes=malloc_bytes(),
        python_blocks=sys.getallocatedblocks(),
        cpu_s=time.process_time(),
        bookings=decisions - sum(stats.endings.values()),
        open_requests=stats.open_requests,
        load=sum(each.inflight + each.pending_prefill_tokens + each.decode_blocks for each in stats.workers),
        decisions=decisions,
        endings=dict(stats.endings),
        waited=sum(band.released for band in stats.admission),
        waiting=sum(band.queued for band in stats.admission),
        held={each.key: held_blocks(each) for each in stats.workers},
        memory_bytes=stats.memory_bytes,
        lag_s=max((each.kv_events.lag_s or 0.0 for each in stats.workers if each.kv_events), default=0.0),
        events=dict(events),
        peers=peers,
        mesh={name: getattr(state, name) for name in mesh} if state else {},
        crashes=crashes,
        complaints=complaints,
        select_ns=times.select_ns,
        yardstick_ns=times.yardstick_ns,
    )


def held_blocks(worker: WorkerStats) -> int:
    """Count the blocks that a worker is known to hold, of all cache groups."""
    groups = worker.kv_events.groups if worker.kv_events else ()
    return sum(group.blocks for group in groups) if len(groups) > 1 else worker.index_blocks.get("gpu", 0)


def run(connection: Connection, spec: Spec) -> None:
    """Serve until SIGTERM, or until the parent process is gone."""
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    router = TimedRouter(spec.workers, secret="known to all gateways")  # noqa: S106 - of this bench
    router.times = Times()
    mesh = ZmqMesh(spec.bind, spec.peers, warm_start_s=spec.warm_start_s)
    for part in (mesh, ZmqSource(discover=True), MetricsSource(interval_s=1.0)):
        router.attach(part)

    def announce(port: int, panics: Callable[[], int]) -> None:
        connection.send(port)
        try:
            while True:
                thorough, crashes = connection.recv(), complaints.crashes + panics()
                connection.send(report(router, crashes, dict(complaints.seen), thorough=thorough))
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    def report_on(port: int, panics: Callable[[], int] = lambda: 0) -> None:
        threading.Thread(target=announce, args=(port, panics), name="report", daemon=True).start()

    if spec.kind == "starlette":
        listener = socket.create_server(("127.0.0.1", spec.port), backlog=1024)
        report_on(listener.getsockname()[1])
        app = starlette_gateway.make_app(router, expose_headers=EXPOSED)
        uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_keep_alive=_IDLE_S)).run(sockets=[listener])
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with router, Gateway(router, expose_headers=EXPOSED, admission=ADMISSION, keep_alive_s=_IDLE_S) as gateway:
        gateway.start(f"127.0.0.1:{spec.port}")
        report_on(int(gateway.urls[0].rpartition(":")[2]), lambda: gateway.counts.get("panicked", 0))
        ended.wait()
