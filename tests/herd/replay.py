"""Plays a trace in compressed real time to routers behind a round-robin load balancer, and is their workers."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.herd.processes import RouterProcess
from tests.herd.served import Served
from tests.herd.true_workers import TrueWorkers, prompt_of, times_of
from tests.herd.views import Views

from cachelb.state import StateStats
from cachelb_lab.sim import Workload

GRACE_S = 0.5


@dataclass
class Played:
    """Results of a replay.

    Attributes:
        prompt_tokens: Prompt tokens of all requests.
        held_tokens: The part of them that the picked workers truly held.
        matched_tokens: The part of them that the routers had predicted.
        views: The load as the routers saw it.
        select_s: Seconds of every selection.
        cpu_share: Part of the machine's processors that all processes used.
        stats: Statistics of the meshes, at the end.
        served: Every request with its worker and its times.
    """

    views: Views
    served: Served
    prompt_tokens: int = 0
    held_tokens: int = 0
    matched_tokens: int = 0
    select_s: list[float] = field(default_factory=list)
    cpu_share: float = 0.0
    stats: list[StateStats] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Return the part of all prompts that their workers held."""
        return self.held_tokens / self.prompt_tokens

    @property
    def known_rate(self) -> float:
        """Return the part of all prompts that was matched at selection and held."""
        return self.matched_tokens / self.prompt_tokens

    @property
    def bytes_per_block(self) -> float:
        """Return what a router sends to each other one, by what those learned of it."""
        told = sum(each.sent_bytes for each in self.stats) * (len(self.stats) - 1)
        return told / max(1, sum(each.blocks for each in self.stats))


def play(workload: Workload, routers: Sequence[RouterProcess], workers: TrueWorkers, *, factor: float) -> Played:
    """Play a workload.

    Args:
        workload: Requests with their times, or with the requests that they follow.
        routers: They take turns.
        workers: The workers.
        factor: How much faster than it was.

    Returns:
        The results.
    """
    for router in routers:
        router.ask("look")
    cpu_s = -time.process_time()
    began_s = time.monotonic()
    balancer = _Balancer(workload, routers, workers, factor)
    balancer.run()
    # The last messages reach all routers.
    time.sleep(GRACE_S)
    notes = [router.ask("report") for router in routers]
    cpu_s += time.process_time() + sum(each.cpu_s for each in notes)
    played = balancer.played
    played.views = Views([each.changes for each in notes], [each.views for each in notes])
    played.select_s = [seconds for each in notes for seconds in each.select_s]
    played.cpu_share = cpu_s / (time.monotonic() - began_s) / (os.cpu_count() or 1)
    played.stats = [each for each in (router.ask("stats") for router in routers) if each is not None]
    return played


class _Balancer:
    def __init__(
        self, workload: Workload, routers: Sequence[RouterProcess], workers: TrueWorkers, factor: float
    ) -> None:
        self._workload = workload
        self._routers = {router.connection: router for router in routers}
        self._order = list(routers)
        self._workers = workers
        self._factor = factor
        self._prompts: dict[int, npt.NDArray[np.uint32]] = {}
        self._due: list[tuple[float, int, str]] = []
        self._outgoing: deque[tuple[RouterProcess, tuple[Any, ...]]] = deque()
        self._open = len(workload)
        self._start_s = 0.0
        self._followers: dict[int, list[int]] = {}
        for row, parent in enumerate(workload.parent):
            self._followers.setdefault(int(parent), []).append(row)
        self.played = Played(Views([], []), Served.empty(workload, workers.names))

    def run(self) -> None:
        roots = self._followers.pop(-1)
        arrival_s = self._workload.arrival_s
        self._start_s = time.monotonic() - float(arrival_s[roots].min()) / self._factor
        self._due = [(self._start_s + float(arrival_s[row]) / self._factor, row, "route") for row in roots]
        heapq.heapify(self._due)
        while self._open:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, row, what = heapq.heappop(self._due)
                self._act(row, what)
            left_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 0.01
            for connection in wait(list(self._routers), left_s):
                router = self._routers[connection]  # type: ignore[index]
                self._routed(*router.answer())

    def _router(self, row: int) -> RouterProcess:
        return self._order[row % len(self._order)]

    def _act(self, row: int, what: str) -> None:
        if what == "route":
            self._prompts[row] = prompt_of(self._workload, row)
            self._router(row).tell("route", row, self._prompts[row].tobytes())
            return
        self._router(row).tell(what, row)
        if what == "done":
            self._open -= 1
            now = time.monotonic()
            self.played.served.end_s[row] = self._trace_s(now)
            for follower in self._followers.pop(row, ()):
                at_s = now + float(self._workload.think_s[follower]) / self._factor
                heapq.heappush(self._due, (at_s, follower, "route"))

    def _routed(self, row: int, worker: str, matched: int) -> None:
        prompt = self._prompts.pop(row)
        held = self._workers.serve(worker, prompt)
        self.played.prompt_tokens += len(prompt)
        self.played.held_tokens += held
        self.played.matched_tokens += min(matched, held)
        first_s, end_s = times_of(len(prompt), held, int(self._workload.output_tokens[row]))
        now = time.monotonic()
        self.played.served.note(row, worker, self._trace_s(now), held)
        heapq.heappush(self._due, (now + first_s / self._factor, row, "first"))
        heapq.heappush(self._due, (now + end_s / self._factor, row, "done"))

    def _trace_s(self, now: float) -> float:
        return (now - self._start_s) * self._factor
