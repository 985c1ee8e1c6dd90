"""Any interleaving of what may happen to requests and workers, against a model that counts."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.models.loads import Booking, NaiveFleet

import cachelb
from cachelb.testing import ManualClock

KEYS = ("a", "b", "r")
RANKS = {"a": 1, "b": 1, "r": 2}
ERRORS: tuple[BaseException | int, ...] = (400, 429, 500, 503, ConnectionError())


@dataclass(eq=False)
class Request:
    """A decision and what the model has of it."""

    decision: cachelb.Decision[str]
    booking: Booking
    among: list[str] | None
    tried: set[str] = field(default_factory=set)
    told: str | None = None
    """The first end reported to it, or that another decision took over."""


@dataclass(eq=False)
class Pair:
    """A pair of decisions with the booking of each."""

    pair: cachelb.PairDecision[str]
    prefill: Booking | None
    decode: Booking


index = st.integers(0, 1_000)
keys = st.sampled_from(KEYS)


class RouterBook(RuleBasedStateMachine):
    """The router beside the model."""

    policy = "cache-aware"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.router: cachelb.Router[str] = cachelb.Router(
            policy=self.policy,
            seed=3,
            hash_seed=3,
            clock=self.clock,
            health=cachelb.Health(reconcile_grace_s=None, breaker_failures=2),
        )
        self.model = NaiveFleet()
        self.requests: list[Request] = []
        self.pairs: list[Pair] = []
        self.booked = 0
        for key in KEYS:
            self.add(key)

    def note(self, decision: cachelb.Decision[str], uncached: int) -> Booking:
        self.booked += 1
        return self.model.book(decision.key, decision.dp_rank, decision.prompt_tokens, uncached)

    def selected(self, decision: cachelb.Decision[str], among: list[str] | None, tried: set[str]) -> None:
        assert decision.key in self.model.candidates(among, tried)
        booking = self.note(decision, decision.prompt_tokens - decision.matched_tokens)
        self.requests.append(Request(decision, booking, among, tried))

    # --- requests ---

    @rule(tokens=st.integers(0, 100), head=st.integers(0, 2), among=st.none() | st.lists(keys, unique=True, max_size=2))
    def select(self, tokens: int, head: int, among: list[str] | None) -> None:
        prompt = range(head * 1_000, head * 1_000 + tokens)
        dry: Any = None
        try:
            dry = self.router.select_worker(tokens=prompt, among=among, dry_run=True)
            decision = self.router.select_worker(tokens=prompt, among=among)
        except cachelb.NoWorkerAvailable:
            assert not self.model.candidates(among, set())
            return
        assert (dry.key, dry.dp_rank) == (decision.key, decision.dp_rank)
        self.selected(decision, among, set())

    @rule(tokens=st.integers(0, 100))
    def select_pair(self, tokens: int) -> None:
        try:
            pair = self.router.select_pair(tokens=range(tokens))
        except cachelb.NoWorkerAvailable:
            assert not self.model.candidates(None, set())
            return
        if pair.prefill is None:
            booking = self.note(pair.decode, tokens - pair.decode.matched_tokens)
            self.pairs.append(Pair(pair, None, booking))
        else:
            prefill = self.note(pair.prefill, tokens - pair.prefill.matched_tokens)
            self.pairs.append(Pair(pair, prefill, self.note(pair.decode, 0)))

    @precondition(lambda self: self.requests)
    @rule(
        at=index, how=st.sampled_from(["first", "tokens", "complete", "error", "cancel", "retry"]), n=st.integers(0, 50)
    )
    def report(self, at: int, how: str, n: int) -> None:
        request = self.requests[at % len(self.requests)]
        decision, booking = request.decision, request.booking
        assert decision.is_open == booking.is_open
        if how == "first":
            decision.on_first_token()
            booking.first_token()
        elif how == "tokens":
            decision.on_tokens(n)
            booking.more(n)
        elif how == "retry":
            self.retry(request)
        else:
            if how == "complete":
                decision.on_complete(cached_tokens=n)
            elif how == "error":
                decision.on_error(ERRORS[n % len(ERRORS)])
            else:
                decision.cancel()
            self.model.close(booking)
            request.told = request.told or how

    def retry(self, request: Request) -> None:
        if request.told not in {None, "error"}:
            with pytest.raises(ValueError, match=r"retry\(\) of a request that was"):
                request.decision.retry()
            return
        self.model.close(request.booking)
        tried = request.tried | {request.decision.key}
        try:
            decision = request.decision.retry()
        except cachelb.NoWorkerAvailable:
            assert not self.model.candidates(request.among, tried)
            request.told = "error"
            return
        request.told = "retried"
        self.selected(decision, request.among, tried)

    @precondition(lambda self: self.requests)
    @rule(at=index)
    def drop(self, at: int) -> None:
        request = self.requests.pop(at % len(self.requests))
        self.model.close(request.booking)
        del request
        gc.collect(0)

    @precondition(lambda self: self.pairs)
    @rule(at=index, how=st.sampled_from(["prefilled", "first", "tokens"]))
    def report_pair(self, at: int, how: str) -> None:
        one = self.pairs[at % len(self.pairs)]
        if one.prefill is not None:
            self.model.close(one.prefill)
        if how == "prefilled":
            one.pair.on_prefilled()
        elif how == "first":
            one.pair.on_first_token()
            one.decode.first_token()
        else:
            one.pair.on_tokens(20)
            one.decode.more(20)

    @precondition(lambda self: self.pairs)
    @rule(at=index, how=st.sampled_from(["complete", "error", "cancel", "drop"]))
    def end_pair(self, at: int, how: str) -> None:
        one = self.pairs[at % len(self.pairs)]
        if how == "complete":
            one.pair.on_complete()
        elif how == "error":
            one.pair.on_error(500)
        elif how == "cancel":
            one.pair.cancel()
        else:
            self.pairs.remove(one)
        for booking in (one.prefill, one.decode):
            if booking is not None:
                self.model.close(booking)
        del one
        gc.collect(0)

    # --- workers ---

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.router.add_worker(key, dp_size=RANKS[key])
        self.model.add(key, RANKS[key])

    @rule(key=keys)
    def remove(self, key: str) -> None:
        self.router.remove_worker(key)
        self.model.remove(key)

    @rule(key=keys)
    def drain(self, key: str) -> None:
        self.router.remove_worker(key, drain=True)
        self.model.drain(key)

    @rule(listed=st.lists(keys, unique=True))
    def sync(self, listed: list[str]) -> None:
        self.router.sync_workers(listed)
        self.model.sync(listed)

    @rule(key=keys, ready=st.booleans())
    def set_ready(self, key: str, ready: bool) -> None:
        if key in self.model.workers:
            self.router.set_ready(key, ready)
            self.model.set_ready(key, ready=ready)

    @rule(key=keys)
    def reset_cache(self, key: str) -> None:
        if key in self.model.workers:
            self.router.load_sink.reset_cache(key)

    @rule(key=keys, running=st.integers(0, 20), waiting=st.none() | st.integers(0, 5))
    def update_load(self, key: str, running: int, waiting: int | None) -> None:
        if key in self.model.workers:
            self.router.load_sink.update_load(key, running=running, waiting=waiting)

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # --- what always holds ---

    @invariant()
    def agrees(self) -> None:
        self.router.validate()
        rows = self.router.stats().workers
        loads = self.model.loads()
        found = {
            row.key if row.dp_rank is None else f"{row.key}#{row.dp_rank}": (
                row.inflight,
                row.pending_prefill_tokens,
                row.decode_blocks,
            )
            for row in rows
        }
        assert found == loads
        assert self.router.loads() == {name: load[0] for name, load in loads.items()}
        assert self.router.stats().open_requests == self.model.open_requests()
        assert set(self.router.keys()) == set(self.model.workers)

    def teardown(self) -> None:
        for request in self.requests:
            request.decision.cancel()
            self.model.close(request.booking)
        for one in self.pairs:
            one.pair.cancel()
            for booking in (one.prefill, one.decode):
                if booking is not None:
                    self.model.close(booking)
        self.agrees()
        assert set(self.router.loads().values()) <= {0}
        assert sum(self.router.stats().endings.values()) == self.booked


@pytest.mark.hypothesis
@pytest.mark.parametrize("policy", ["adaptive", "cache-aware", "round-robin", "estimated-ttft"])
def test_loads_agree_with_the_model_whatever_happens(policy: str) -> None:
    machine: Any = type("RouterBookOf", (RouterBook,), {"policy": policy})
    case = machine.TestCase
    case.settings = settings(stateful_step_count=40)
    case("runTest").runTest()
