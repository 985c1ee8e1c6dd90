"""The soak itself: gateways in front of a fleet, a ramp, load with faults, and looks at everything in between."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from benches.soak import hostile
from benches.soak.clients import OUTPUT_TOKENS, Clients, Seen
from benches.soak.gateway import KINDS, Spec, resident_bytes
from benches.soak.processes import Gateway
from tests.library.state.addresses import free_addresses

from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_fakes import FakeFleet
from cachelb_lab.sim.experiments.saturation import highest

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.soak.gateway import Report


FAULTS = 0.003
"""Share of requests that each kind of fault strikes at a worker: so rare that all three attempts of a gateway fail
once in tens of millions."""
ABORTED = 0.06
HOSTILE_S = 0.5
"""Pause between two hostile clients."""
LATEST_S = 1.0
"""Gateways keep up if 99 of 100 answers begin within it of when they were due, and no client finds too many open."""
HYBRID = CacheLayout([CacheGroup("sliding_window", 16, window=256), CacheGroup("full_attention", 16)])
_BALANCER_S = 0.5
"""From the move of clients to the other gateway until a gateway is terminated."""


@dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Attributes:
        minutes: How long, the ramp not counted.
        workers: Engine replicas.
        hybrid: Those of them whose model has sliding windows.
        every_s: Seconds between two looks.
        restart_s: Seconds between two restarts of a worker.
        rate: Requests per second; None for `share` of the rate that the ramp finds.
        share: Part of the capacity.
        probe_s: Seconds at each rate of the ramp.
        first_rate: Where the ramp begins.
    """

    minutes: float = 30.0
    workers: int = 8
    hybrid: int = 2
    every_s: float = 10.0
    restart_s: float = 45.0
    rate: float | None = None
    share: float = 0.7
    probe_s: float = 10.0
    first_rate: float = 20.0


@dataclass(frozen=True)
class Look:
    """One gateway at one moment.

    Attributes:
        at_s: When, from the begin of the load.
        name: Which gateway.
        life: How often it had been started.
        report: Its report.
        open_before: Requests that clients had open there when it was asked.
        open_after: Requests that they had open there when it had answered.
        open_at_workers: Requests of all gateways that workers had open.
        driver_bytes: Memory of the process with the clients and the fleet.
        machine_load: Processes that wanted to run, over the last minute.
        outcomes: Outcomes at the clients so far.
        first_p99_s: Ninety-ninth percentile of seconds to the first byte since the look before.
    """

    at_s: float
    name: str
    life: int
    report: Report
    open_before: int
    open_after: int
    open_at_workers: int
    driver_bytes: int
    machine_load: float
    outcomes: dict[str, int]
    first_p99_s: float


@dataclass
class Result:
    """The result of a run.

    Attributes:
        plan: Its settings.
        rate: Requests per second.
        probes: Rates of the ramp: seconds to the first byte (p99), and whether the gateways kept up.
        looks: Observations, in order of time.
        outcomes: Outcomes at the clients, the ramp not counted.
        faults: Faults that struck, likewise; "restart" are those of a worker, "gateway" those of a gateway.
        hostile: Hostile clients of `cachelb serve`, by kind and the answer they got.
        failed: Requests that ended by a fault or with a worker.
        before_restart: The gateway that was restarted, after its clients had left.
        rest: Each gateway once nothing was under way.
        cached: Blocks that each worker held then.
        seconds: How long the load lasted.
    """

    plan: Plan
    rate: float = 0.0
    probes: list[tuple[float, float, bool]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    before_restart: Report | None = None
    rest: dict[str, Report] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def soak(plan: Plan, say: Callable[[str], object] = print) -> Result:
    """Run the soak.

    Args:
        plan: Its settings.
        say: Takes a line of progress.
    """
    binds = free_addresses(2)
    result = Result(plan)
    with ExitStack() as stack:
        # A worker generates an answer in half a second, so that dozens of requests are open at a time.
        fleet = stack.enter_context(
            FakeFleet(
                plan.workers - plan.hybrid,
                seed=3,
                kv_events=True,
                time_scale=1.0,
                prefill_tps=50_000.0,
                decode_tps=2.0 * OUTPUT_TOKENS,
                stream_interval=8,
                remember=0,
            )
        )
        for _ in range(plan.hybrid):
            fleet.add_worker(cache_groups=HYBRID)
        gateways = [
            stack.enter_context(Gateway(Spec(kind, tuple(fleet.urls), bind, tuple(binds))))
            for kind, bind in zip(KINDS, binds, strict=True)
        ]
        runner = stack.enter_context(asyncio.Runner())
        clients = Clients(gateways)
        stack.callback(lambda: runner.run(clients.close()))
        _Soak(fleet, clients, runner, result, say).run()
    return result


class _Soak:
    def __init__(
        self, fleet: FakeFleet, clients: Clients, runner: asyncio.Runner, result: Result, say: Callable[[str], object]
    ) -> None:
        self.fleet, self.gateways, self.clients = fleet, clients.gateways, clients
        self.runner, self.result, self.plan, self.say = runner, result, result.plan, say
        self.begin_s = 0.0
        self.failed_before = 0
        self.ended = asyncio.Event()

    def run(self) -> None:
        self.wait_until(lambda reports: all(len(report.peers) == 1 for report in reports))
        plan, result = self.plan, self.result
        if plan.rate is None:
            capacity = highest(self.bears, start=plan.first_rate, step=1.5, probes=2)
            self.say(f"capacity {capacity:.0f} requests per second, of which {plan.share:.0%} are sent")
            result.rate = capacity * plan.share
        else:
            result.rate = plan.rate
        self.clients.seen = Seen()
        self.failed_before = self.failed()
        self.runner.run(self.load())
        result.outcomes = self.clients.seen.outcomes
        result.failed = self.failed() - self.failed_before
        for worker in self.fleet.workers:
            result.faults.update(worker.counts.faults)
        with contextlib.suppress(TimeoutError):  # the verdict reports it
            self.wait_until(lambda reports: not any(r.bookings or r.open_requests or r.load for r in reports))
        with contextlib.suppress(TimeoutError):
            self.wait_until(lambda reports: all(self.knows_all(report) for report in reports))
        result.cached = self.cached()
        result.rest = {gateway.spec.kind: gateway.report(thorough=True) for gateway in self.gateways}
        for gateway in self.gateways:
            gateway.stop()

    # --- how much they can take ---

    def bears(self, rate: float) -> bool:
        """Tell whether first bytes come in time at a rate."""
        plan, probes = self.plan, self.result.probes
        self.clients.seen = Seen()
        begin_s = time.monotonic()
        self.runner.run(self.probe(rate))
        waits = [wait_s for at_s, wait_s in self.clients.seen.first_s if at_s > begin_s + plan.probe_s / 4]
        p99_s = float(np.quantile(waits, 0.99))
        borne = p99_s <= LATEST_S and not self.clients.seen.outcomes["not sent"]
        probes.append((rate, p99_s, borne))
        self.say(f"{rate:6.1f} requests per second: first byte p99 {1e3 * p99_s:.0f} ms{'' if borne else ', too many'}")
        return borne

    async def probe(self, rate: float) -> None:
        await self.clients.offer(rate, self.plan.probe_s)
        await self.clients.settle()

    # --- load ---

    async def load(self) -> None:
        """Send requests, let things fail, and look."""
        seconds = 60 * self.plan.minutes
        self.fleet.set_rates(refuse=FAULTS, die=FAULTS, status={500: FAULTS})
        self.clients.aborted = ABORTED
        self.begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.look_often())
            group.create_task(self.restart_workers())
            group.create_task(self.disturb())
            replacing = group.create_task(self.replace(seconds))
            await self.clients.offer(self.result.rate, seconds)
            await replacing
            self.ended.set()
        await self.look_at_all()  # also where the gateway came back after the load only
        self.result.seconds = time.monotonic() - self.begin_s
        self.fleet.heal()
        await self.clients.settle()
        # A worker that came back and computed nothing since has no events: they begin with its next prompt.
        await asyncio.gather(*map(self.clients.wake, self.fleet.urls))

    async def pause(self, until_s: float) -> bool:
        """Wait for a moment. Returns whether there is one, and not the end before it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), max(0.0, until_s - time.monotonic()))
        return not self.ended.is_set()

    async def restart_workers(self) -> None:
        """Kill a worker now and then, each in turn; it comes back empty.

        A gateway that was restarted does not learn what a worker announced before its replay buffer began. Only once
        the worker has been restarted too, its index can be compared with the worker's cache.
        """
        for worker in itertools.cycle(self.fleet.workers):
            if not await self.pause(time.monotonic() + self.plan.restart_s):
                return
            self.result.faults["restart"] += 1
            await asyncio.to_thread(worker.stop)
            await asyncio.sleep(min(3.0, self.plan.restart_s / 4))
            await asyncio.to_thread(worker.start, restart=True)

    async def disturb(self) -> None:
        """Send hostile clients to `cachelb serve`, one after the other."""
        port = int(self.gateways[1].url.rpartition(":")[2])
        for kind in itertools.cycle(hostile.KINDS):
            if not await self.pause(time.monotonic() + HOSTILE_S):
                return
            self.result.hostile[f"{kind}: {await hostile.attack(port, kind)}"] += 1

    async def replace(self, seconds: float) -> None:
        """Restart a gateway at half time, as an update does: clients leave first."""
        await asyncio.sleep(seconds / 2)
        gateway = self.gateways[0]
        gateway.taken = False
        await asyncio.sleep(_BALANCER_S)
        await self.clients.left(gateway)
        await self.noticed(gateway)
        self.result.before_restart = await asyncio.to_thread(gateway.report, thorough=True)
        await asyncio.to_thread(gateway.stop)
        await asyncio.sleep(min(3.0, seconds / 20))
        await asyncio.to_thread(gateway.start)
        self.result.faults["gateway"] += 1

    async def noticed(self, gateway: Gateway) -> None:
        """Wait until a gateway has noticed that its last clients left. One that never does is for the verdict."""
        deadline_s = time.monotonic() + 60.0
        while (await asyncio.to_thread(gateway.report)).bookings and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_BALANCER_S)

    # --- looks ---

    async def look_often(self) -> None:
        """Look at every gateway that is there, every few seconds."""
        next_s = self.begin_s
        while await self.pause(next_s := next_s + self.plan.every_s):
            await self.look_at_all()

    async def look_at_all(self) -> None:
        waits = [wait_s for _, wait_s in self.clients.seen.first_s]
        self.clients.seen.first_s.clear()
        first_p99_s = float(np.quantile(waits, 0.99)) if waits else 0.0
        for gateway in self.gateways:
            if gateway.taken:
                self.result.looks.append(await self.look(gateway, first_p99_s))
                self.say(line(self.result.looks[-1], 60 * self.plan.minutes))

    async def look(self, gateway: Gateway, first_p99_s: float) -> Look:
        name = gateway.spec.kind
        before = self.clients.open[name]
        report = await asyncio.to_thread(gateway.report)
        return Look(
            at_s=time.monotonic() - self.begin_s,
            name=name,
            life=gateway.lives,
            report=report,
            open_before=before,
            open_after=self.clients.open[name],
            open_at_workers=sum(worker.counts.open for worker in self.fleet.workers),
            driver_bytes=resident_bytes(),
            machine_load=os.getloadavg()[0],
            outcomes=dict(self.clients.seen.outcomes),
            first_p99_s=first_p99_s,
        )

    # --- truth ---

    def failed(self) -> int:
        return sum(worker.counts.failed for worker in self.fleet.workers)

    def cached(self) -> dict[str, int]:
        return {worker.url: worker.cached_blocks for worker in self.fleet.workers}

    def knows_all(self, report: Report) -> bool:
        """Return whether a gateway receives from the other one and every worker, and holds the state of all."""
        return len(report.peers) == 1 and report.events.get("fed") == self.plan.workers and report.held == self.cached()

    def wait_until(self, condition: Callable[[list[Report]], bool], seconds: float = 60.0) -> None:
        """Wait until something holds of all gateways.

        Raises:
            TimeoutError: It does not.
        """
        deadline_s = time.monotonic() + seconds
        while not condition([gateway.report() for gateway in self.gateways]):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"still not so after {seconds:g} s")
            time.sleep(0.2)


def line(look: Look, seconds: float) -> str:
    """Say how a gateway does, in one line."""
    report = look.report
    p50, p99 = np.quantile(report.select_ns, (0.5, 0.99)) / 1e3 if report.select_ns else (0.0, 0.0)
    yard = np.quantile(report.yardstick_ns, 0.99) / 1e3 if report.yardstick_ns else 0.0
    seen = look.outcomes
    good = seen.get("200", 0)
    return (
        f"{look.at_s:6.0f} s {look.at_s / seconds:4.0%} {look.name:9} {report.resident_bytes / 2**20:6.1f} MiB"
        f"  booked {report.bookings:3} of {look.open_before:3}  select p50 {p50:4.0f} p99 {p99:5.0f} us"
        f" (yardstick {yard:4.0f})  first byte {1e3 * look.first_p99_s:4.0f} ms  lag {1e3 * report.lag_s:3.0f} ms"
        f"  gaps {report.events['gaps']}  peers {len(report.peers)}  ok {good}  other {sum(seen.values()) - good}"
    )
