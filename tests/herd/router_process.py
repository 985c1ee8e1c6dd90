"""A gateway's router in a process of its own: takes commands through a pipe, and notes its views and their times."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tests.routers import flat_router

from cachelb import Decision
from cachelb.state import RedisState, ZmqMesh


@dataclass(frozen=True)
class Spec:
    """One router.

    Attributes:
        workers: Their names.
        options: Those of the router.
        bind: Where its mesh publishes; None shares nothing.
        peers: Where the others do.
        mesh: Options of the mesh.
        redis: A server that it shares through instead.
        look_every_s: Seconds between two notes of the loads it sees.
        clock: Seconds that its clock is ahead, and how much faster it goes.
    """

    workers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    bind: str | None = None
    peers: tuple[str, ...] = ()
    mesh: Mapping[str, Any] = field(default_factory=dict)
    redis: str | None = None
    look_every_s: float = 0.05
    clock: tuple[float, float] | None = None


@dataclass
class Notes:
    """Actions and views of a router; times are the machine's, which all processes share.

    Attributes:
        changes: Times at which it booked (1) or ended (-1) a request, with the worker.
        views: Loads by worker as it saw them, with the time.
        select_s: Seconds of every selection.
        cpu_s: Processor time.
    """

    changes: list[tuple[float, str, int]] = field(default_factory=list)
    views: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    select_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def run(connection: Connection, spec: Spec) -> None:
    """Be a router until the command to end, or until the pipe breaks."""
    try:
        _Gateway(connection, spec).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception:  # noqa: BLE001 - reported to the parent
        connection.send(("broken", traceback.format_exc()))


class _Gateway:
    def __init__(self, connection: Connection, spec: Spec) -> None:
        self._connection = connection
        self._spec = spec
        clock = None
        if spec.clock is not None:
            ahead_s, rate = spec.clock
            clock = lambda: ahead_s + rate * time.monotonic()  # noqa: E731
        self.router = flat_router(spec.workers, dict(spec.options), clock=clock)
        self.mesh: ZmqMesh | RedisState | None = None
        if spec.redis is not None:
            self.mesh = RedisState(spec.redis)
        elif spec.bind is not None:
            self.mesh = ZmqMesh(spec.bind, spec.peers, **dict(spec.mesh))
        self._open: dict[int, Decision[str]] = {}
        self.notes = Notes()
        self._looking = False

    def run(self) -> None:
        with self.router:
            if self.mesh is not None:
                self.router.attach(self.mesh)
            self._connection.send(("ready", None))
            look_s = time.monotonic()
            while True:
                now = time.monotonic()
                if self._looking and now >= look_s:
                    loads = self.router.loads()
                    self.notes.views.append((time.monotonic(), loads))
                    look_s = now + self._spec.look_every_s
                if not self._connection.poll(max(0.0, look_s - now) if self._looking else None):
                    continue
                what, *given = self._connection.recv()
                if what == "end":
                    return
                answer = getattr(self, what)(*given)
                if answer is not None:
                    self._connection.send(answer)

    # --- requests ---

    def route(self, number: int, tokens: bytes) -> tuple[str, tuple[int, str, int]]:
        prompt = np.frombuffer(tokens, np.uint32)
        start_s = time.monotonic()
        decision = self.router.select_worker(tokens=prompt)
        end_s = time.monotonic()
        self.notes.select_s.append(end_s - start_s)
        self.notes.changes.append((end_s, decision.worker, 1))
        self._open[number] = decision
        return "routed", (number, decision.worker, decision.matched_tokens)

    def first(self, number: int) -> None:
        self._open[number].on_first_token()

    def done(self, number: int) -> None:
        decision = self._open.pop(number)
        decision.on_complete()
        self.notes.changes.append((time.monotonic(), decision.worker, -1))

    def flood(self, prompts: int, blocks: int, seed: int) -> tuple[str, float]:
        """Route prompts of their own as fast as possible. Returns the longest selection, in seconds."""
        dice = np.random.default_rng(seed)
        longest_s = 0.0
        for _ in range(prompts):
            prompt = dice.integers(0, 1 << 17, 16 * blocks, dtype=np.uint32)
            start_s = time.monotonic()
            decision = self.router.select_worker(tokens=prompt)
            longest_s = max(longest_s, time.monotonic() - start_s)
            decision.on_complete()
        return "answer", longest_s

    # --- questions ---

    def look(self) -> tuple[str, None]:
        """Begin to note what is seen, from now on."""
        self._looking = True
        self.notes = Notes(cpu_s=-time.process_time())
        return "answer", None

    def report(self) -> tuple[str, Notes]:
        """Return the notes, and stop taking them."""
        self._looking = False
        self.notes.cpu_s += time.process_time()
        return "answer", self.notes

    def loads(self) -> tuple[str, dict[str, int]]:
        return "answer", self.router.loads()

    def matched(self, prompts: Sequence[bytes]) -> tuple[str, list[dict[str, int]]]:
        """Return how much of each prompt every worker is predicted to hold."""
        explained = [self.router.explain(tokens=np.frombuffer(prompt, np.uint32)) for prompt in prompts]
        return "answer", [{worker.key: int(worker.matched_tokens) for worker in e.candidates} for e in explained]

    def stats(self) -> tuple[str, Any]:
        return "answer", None if self.mesh is None else self.mesh.stats()

    def memory_mib(self) -> tuple[str, float]:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
        return "answer", int(peak) / 1024
