"""Predictions of a router equal the reports of real engines, after a loss, a cut and a crash too."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.engine.drive import run_traffic, send_prompt
from tests.engine.engine import BLOCK_SIZE, Engine
from tests.engine.observer import Observer, routed
from tests.engine.probes import ProbePlanner, Stratum, Tally
from tests.engine.traffic import FIRST_PLAIN_TOKEN, Identity, Prompt, Transcript, plan_traffic
from tests.ports import free_ports
from tests.waiting import wait_until

from cachelb.events import Endpoint

SEED = 11
REQUESTS = 300
PROBES = 240
ROUTER_BLOCKS = (32, 16)  # as the engines have it, and half of it
LOSE_EVERY = 7
CUT_OFF, KILLED = 0, 1  # which engine suffers what

Miss = tuple[str, list[str]]
"""A prediction that differs from the engine's report, and the possible reasons."""


class Conformance:
    """Two engines, the routers that observe them, and the network between."""

    def __init__(self, engines: list[Engine], stack: ExitStack) -> None:
        self.engines = engines
        cut_off = engines[CUT_OFF]
        own, ports = free_ports(2), (cut_off.events_port, cut_off.replay_port)
        self.proxies = [CuttingProxy(*pair, ports=1) for pair in zip(own, ports, strict=True)]
        for proxy in self.proxies:
            stack.callback(proxy.close)
        endpoints = {engine.url: Endpoint(engine.events_endpoint, replay=engine.replay_endpoint) for engine in engines}
        endpoints[cut_off.url] = Endpoint(f"tcp://127.0.0.1:{own[0]}", replay=f"tcp://127.0.0.1:{own[1]}")
        self.observers = [Observer(engines, endpoints, size) for size in ROUTER_BLOCKS]
        for observer in self.observers:
            stack.callback(observer.router.close)
        self.transcript = Transcript()
        self.ended_messages = 0  # published by the engine that crashed, before it did
        self._markers = random.Random(SEED)

    def settle(self, number: int) -> None:
        """Wait until the events of all that an engine has answered are applied: those of a new prompt come last."""
        tokens = (self._markers.randrange(FIRST_PLAIN_TOKEN, 4096) for _ in range(BLOCK_SIZE + 1))
        marker = Prompt(number, Identity(), tuple(tokens))
        send_prompt(self.engines, marker)
        for observer in self.observers:
            wait_until(
                lambda observer=observer: observer.predict(marker) == BLOCK_SIZE,  # type: ignore[misc]
                complaint=f"no event of a new prompt on worker {number}: {observer.worker(number)}",
            )

    def believe(self) -> None:
        """Wait until no stream is in doubt."""
        for number in range(len(self.engines)):
            self.settle(number)
            for observer in self.observers:
                wait_until(
                    lambda observer=observer, number=number: not observer.doubts(number),  # type: ignore[misc]
                    complaint=f"worker {number} stays in doubt: {observer.worker(number)}",
                )

    def lose(self, every: int) -> None:
        """Let every so many live messages be lost, 0 for none."""
        for observer in self.observers:
            observer.router.lose_every = every

    def trouble(self) -> None:
        """Send the traffic while messages are lost, one engine is cut off, and the other one crashes."""
        plan, send = plan_traffic(SEED, requests=REQUESTS), routed(self.observers)
        cut_off, killed = self.engines[CUT_OFF], self.engines[KILLED]

        def run(first: int, last: int, only: int | None = None) -> None:
            part = plan[first:last]
            if only is not None:
                part = [replace(planned, worker=only) for planned in part]
            run_traffic(self.engines, part, self.transcript, send=send)

        self.believe()
        self.lose(LOSE_EVERY)
        run(0, 80)
        self.lose(0)
        self.believe()

        for proxy in self.proxies:
            proxy.cut()
        for observer in self.observers:
            wait_until(lambda o=observer: o.stream_state(CUT_OFF) == "disconnected", complaint="no cut is seen")  # type: ignore[misc]
        known, published = self.observers[0].kv(CUT_OFF).messages, count_published(cut_off)
        run(80, 160)
        assert count_published(cut_off) > published >= known
        for observer in self.observers:
            assert observer.kv(CUT_OFF).messages == known
            assert observer.kv(CUT_OFF).state == "suspect"
        for proxy in self.proxies:
            proxy.heal()
        self.believe()

        run(160, 200)
        self.believe()
        self.ended_messages = count_published(killed)
        killed.kill()
        with pytest.raises(OSError, match="refused"):
            send(self.engines, replace(self.transcript.sent()[0], worker=KILLED))
        with ThreadPoolExecutor(1) as pool:
            restarted = pool.submit(killed.restart)
            run(200, 230, only=CUT_OFF)
            restarted.result()
        self.believe()
        run(230, REQUESTS)
        self.believe()

    def probe(self) -> tuple[dict[int, Tally], list[Miss]]:
        """Send probes and compare; returns the counts per block size, and the misses with their reasons."""
        tallies = {observer.block_size: Tally(BLOCK_SIZE) for observer in self.observers}
        misses: list[Miss] = []
        first = self.observers[0]
        planner = ProbePlanner(self.transcript.sent(), lambda prompt: first.predict(prompt) // BLOCK_SIZE, seed=SEED)
        while tallies[first.block_size].probes < PROBES:
            probe = planner.next()
            number = probe.prompt.worker
            said = [(observer.predict(probe.prompt), observer.doubts(number)) for observer in self.observers]
            assert [observer.decide(probe.prompt) for observer in self.observers] == [
                predicted for predicted, _ in said
            ]
            cached = send_prompt(self.engines, probe.prompt).cached_tokens
            for observer, (predicted, doubts) in zip(self.observers, said, strict=True):
                tallies[observer.block_size].add(probe, predicted=predicted, cached=cached)
                if predicted != cached and probe.stratum is not Stratum.FILLER:
                    size, name, tokens = observer.block_size, self.engines[number].name, len(probe.prompt.tokens)
                    figures = f"{tokens} tokens, {predicted} predicted, {cached} cached"
                    misses.append((f"blocks of {size}, {probe.stratum}, {name}: {figures}", doubts))
            self.settle(number)
        return tallies, misses


def count_published(engine: Engine) -> int:
    """Count the batches that an engine has published since it started."""
    return sum(1 for _ in engine.replay())


def report(run: Conformance, tallies: dict[int, Tally], misses: list[Miss]) -> None:
    """Print the counts."""
    lines = []
    for observer in run.observers:
        stats = observer.router.stats()
        lines += [
            f"\nrouter with blocks of {observer.block_size} tokens, engines of {BLOCK_SIZE}",
            tallies[observer.block_size].table(),
            f"lost {observer.router.lost}, gaps {stats.kv_gaps}, resyncs {stats.kv_resyncs}, {stats.kv_replays}",
        ]
    sys.stdout.write("\n".join([*lines, *(f"miss: {what}, {doubts}" for what, doubts in misses)]) + "\n")


def check(run: Conformance, tallies: dict[int, Tally], misses: list[Miss]) -> None:
    for tally in tallies.values():
        assert tally.probes >= 200
        assert tally.agreement >= 0.99
        assert tally.cached_share >= 0.5
        assert tally.partial_share >= 0.25
    assert [what for what, doubts in misses if not doubts] == []
    published = [count_published(engine) for engine in run.engines]
    published[KILLED] += run.ended_messages
    for observer in run.observers:
        observer.router.validate()
        stats = observer.router.stats()
        assert {reason: count for reason, count in stats.dropped.items() if count} == {}
        assert [observer.kv(number).messages for number in range(len(run.engines))] == published
        assert [observer.kv(number).restarts for number in range(len(run.engines))] == [0, 1]
        assert (stats.kv_resyncs, stats.kv_restarts) == (0, 1)
        assert observer.router.lost > 0
        assert stats.kv_gaps > 0
        # The first of each worker, that after the cut, that after the crash, and one or more for what was lost.
        assert stats.kv_replays["complete"] >= 5
        assert stats.kv_replays["short"] == 0


def test_predictions_are_what_engines_report_after_loss_cut_and_crash(engines: list[Engine]) -> None:
    with ExitStack() as stack:
        run = Conformance(engines, stack)
        run.trouble()
        tallies, misses = run.probe()
        report(run, tallies, misses)
        check(run, tallies, misses)
