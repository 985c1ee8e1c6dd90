"""Any requests, fleet, policy and faults: nothing is lost, doubled or out of order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.quiet_gateway import QuietGateway

from cachelb.policies import POLICIES
from cachelb_lab.sim import WORKLOADS, FleetSpec, Incident, Signals, SimResult, Status, Workload, build, simulate
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.workloads.workload import make

BLOCK = 16
FAMILIES = 4

COLUMNS = [field.name for field in fields(SimResult) if "NDArray" in str(field.type)]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Few families of prompts that share beginnings; some requests follow others, and some clients go away."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(1, 300),  # prompt tokens
                st.integers(1, 60),  # output tokens
                st.integers(0, FAMILIES - 1),
                st.floats(0, 2, allow_nan=False),  # seconds after the one before, or of thought
                st.booleans(),  # follows the one before
            ),
            min_size=1,
            max_size=25,
        )
    )
    prompts, outputs, families, gaps, follows = zip(*rows, strict=True)
    counts = [prompt // BLOCK for prompt in prompts]
    hashes = [
        family * 1_000 + depth + 1 for family, count in zip(families, counts, strict=True) for depth in range(count)
    ]
    parent = [at - 1 if at and follow else -1 for at, follow in enumerate(follows)]
    arrival_s = np.where(np.array(parent) < 0, np.cumsum(gaps), np.nan)
    drawn = make(
        "drawn",
        block_size=BLOCK,
        arrival_s=arrival_s,
        parent=parent,
        think_s=[gap if follows else 0.0 for gap, follows in zip(gaps, np.array(parent) >= 0, strict=True)],
        prompt_tokens=prompts,
        output_tokens=outputs,
        hashes=np.array(hashes, dtype=np.uint64),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
    )
    return drawn.impatient(0.3, 0.5, seed=1) if draw(st.booleans()) else drawn


WORKER = st.builds(
    partial(FleetSpec.parse, "a30"),
    kv_tokens=st.integers(1, 60).map(lambda blocks: blocks * BLOCK),
    max_num_batched_tokens=st.integers(1, 400),
    max_num_seqs=st.integers(1, 6),
    long_prefill_token_threshold=st.none() | st.integers(1, 100),
    watermark=st.sampled_from([0.0, 0.1, 0.5]),
    scheduler_reserve_full_isl=st.booleans(),
    hold_after_preemption=st.booleans(),
    prefix_caching=st.booleans(),
    commit=st.sampled_from(["schedule", "step_end"]),
    prefill_only=st.booleans(),
    slowdown=st.sampled_from([(), ((1.0, 3.0),), ((0.5, 2.0), (2.0, 0.5))]),
)


def fleets() -> st.SearchStrategy[FleetSpec]:
    """One to four workers, each with settings of its own; caches so small that requests are preempted or too long."""
    workers = st.lists(WORKER, min_size=1, max_size=4)
    return workers.map(lambda made: FleetSpec(tuple(one.workers[0] for one in made)))


@st.composite
def incidents(draw: st.DrawFn) -> tuple[Incident, ...]:
    """Up to five; the run drops those of workers it does not have."""
    one = st.builds(Incident, st.floats(0, 20), st.integers(0, 3), st.sampled_from(["crash", "join", "drain"]))
    return tuple(draw(st.lists(one, max_size=5)))


SIGNALS = st.builds(
    Signals,
    kv_events=st.none() | st.booleans(),
    event_lag_s=st.sampled_from([0.0, 0.005, 1.0]),
    event_loss=st.sampled_from([0.0, 0.2]),
    replay_delay_s=st.sampled_from([None, 0.05]),
    scrape_interval_s=st.sampled_from([0.01, 0.1, 5.0]),
    report_lag_s=st.sampled_from([0.0, 0.2]),
    report_queued_tokens=st.booleans(),
    report_cached_tokens=st.booleans(),
    net_delay_s=st.sampled_from([0.0, 0.001, 0.3]),
    first_token_delay_s=st.sampled_from([0.0, 0.25, 2.0]),
    sharing_lag_s=st.sampled_from([0.0, 0.005, 1.0]),
    decision_s=st.sampled_from([0.0, 0.001, 0.3]),
    detection_delay_s=st.sampled_from([0.0, 1.0]),
    oracle=st.booleans(),
)


def of(fleet: FleetSpec, drawn: Sequence[Incident]) -> tuple[Incident, ...]:
    return tuple(one for one in drawn if one.worker < len(fleet))


def check(result: SimResult) -> None:
    """Assert what holds of every run to the end."""
    workload = result.workload
    over = result.status != Status.UNFINISHED
    assert over.all()
    assert np.isfinite(result.arrival_s).all()
    assert (result.finish_s >= result.arrival_s).all()
    root = workload.parent < 0
    assert (result.arrival_s[root] == workload.arrival_s[root]).all()
    after = result.finish_s[workload.parent[~root]] + workload.think_s[~root]
    assert result.arrival_s[~root] == pytest.approx(after)
    done = result.finished
    assert (result.first_token_s[done] >= result.arrival_s[done]).all()
    assert (result.finish_s[done] >= result.first_token_s[done]).all()
    assert (result.worker[done] >= 0).all()
    assert (result.cached_tokens < workload.prompt_tokens).all()
    assert (result.cached_tokens % workload.block_size == 0).all()
    assert (result.end_s, over.sum()) == (result.finish_s.max(), len(workload))
    use = result.samples[:, :, 3]
    assert ((use >= 0) & (use <= 1)).all()
    assert (np.diff(result.sample_s) > 0).all()


@given(
    workload=workloads(),
    fleet=fleets(),
    broken=incidents(),
    drawn=st.fixed_dictionaries(
        {
            "policy": st.sampled_from([name for name in POLICIES if name != "session"]),
            "signals": SIGNALS,
            "gateways": st.integers(1, 3),
            "sharing": st.booleans(),
            "retries": st.integers(0, 3),
        }
    ),
)
def test_every_request_ends_exactly_once(
    workload: Workload, fleet: FleetSpec, broken: tuple[Incident, ...], drawn: dict[str, Any]
) -> None:
    options = {**drawn, "incidents": of(fleet, broken), "seed": 7, "sample_interval_s": 0.05}
    result = simulate(workload, fleet, **options)
    check(result)
    again = simulate(workload, fleet, **options)
    for name in COLUMNS:
        assert getattr(result, name).tobytes() == getattr(again, name).tobytes(), name


class Anywhere(QuietGateway):
    """A gateway that picks blindly and records its calls."""

    def __init__(self, workers: int) -> None:
        self._random = random.Random(3)
        self._workers = workers
        self.now = 0.0
        self.request: dict[int, int] = {}
        self.worker: dict[int, int] = {}
        self.first: Counter[int] = Counter()
        self.later: Counter[int] = Counter()
        self.ends: Counter[int] = Counter()
        self.whole: set[int] = set()
        self.cached: set[bool] = set()
        self.queued: set[bool] = set()
        self.held: list[set[int]] = [set() for _ in range(workers)]

    def _hear(self, now: float) -> None:
        assert now >= self.now
        self.now = now

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int] | None:
        self._hear(now)
        left = [at for at in range(self._workers) if at not in tried]
        if not left:
            return None
        ticket = len(self.request) + 1
        self.request[ticket], self.worker[ticket] = request, self._random.choice(left)
        return self.worker[ticket], ticket, 0, 0

    def first_token(self, ticket: int, now: float) -> None:
        self._hear(now)
        assert not self.ends[ticket]
        self.first[ticket] += 1

    def tokens(self, ticket: int, count: int, now: float) -> None:
        self._hear(now)
        assert not self.ends[ticket]
        self.later[ticket] += count

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        self._hear(now)
        self.cached.add(cached_tokens is not None)
        self.ends[ticket] += 1
        self.whole.add(ticket)

    def failed(self, ticket: int, now: float) -> None:
        self._hear(now)
        self.ends[ticket] += 1

    cancelled = failed

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        self._hear(now)
        assert at <= now
        assert worker < self._workers
        assert 0 <= load[3] <= 1
        self.queued.add(load[2] is not None)

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        self._hear(now)
        held = self.held[worker]
        for what, *rest in changes:
            if what == "stored":
                value, parent = rest
                assert value not in held
                assert parent is None or parent in held
                held.add(value)
            elif what == "removed":
                held.remove(rest[0])
            else:
                held.clear()

    def set_ready(self, worker: int, ready: bool, now: float) -> None:
        self._hear(now)


@given(workload=workloads(), fleet=fleets(), signals=SIGNALS, broken=incidents())
def test_a_gateway_hears_of_every_token_once(
    workload: Workload, fleet: FleetSpec, signals: Signals, broken: tuple[Incident, ...]
) -> None:
    gateway = Anywhere(len(fleet))
    signals = replace(signals, kv_events=True, event_loss=0.0)
    result = simulate(
        workload,
        fleet,
        signals=signals,
        incidents=of(fleet, broken),
        retries=3,
        gateway=gateway,
        sample_interval_s=0.05,
    )
    check(result)
    assert gateway.cached <= {signals.report_cached_tokens or signals.oracle}
    assert gateway.queued <= {signals.report_queued_tokens or signals.oracle}
    assert set(gateway.ends) <= set(gateway.request)
    assert all(count == 1 for count in gateway.ends.values())
    assert set(gateway.ends) == set(gateway.request)
    for ticket in gateway.whole:
        worker = fleet.workers[gateway.worker[ticket]]
        output = 1 if worker.prefill_only else int(workload.output_tokens[gateway.request[ticket]])
        assert (gateway.first[ticket], gateway.later[ticket]) == (1, output - 1)
    served = Counter(gateway.request[ticket] for ticket in gateway.whole)
    assert dict(served) == dict.fromkeys(np.flatnonzero(result.finished).tolist(), 1)
    for held, worker in zip(gateway.held, fleet, strict=True):
        assert len(held) <= worker.kv_blocks


def counted_hits(workload: Workload, order: Sequence[int]) -> int:
    """Tokens that a cache without limit has when requests are served one after the other, in `order`."""
    known: set[int] = set()
    tokens = 0
    for row in order:
        prompt = workload.prompt(row).tolist()
        length, output = int(workload.prompt_tokens[row]), int(workload.output_tokens[row])
        # At least one token of a prompt is computed.
        findable = prompt[: (length - 1) // workload.block_size]
        tokens += workload.block_size * next(
            (at for at, block in enumerate(findable) if block not in known), len(findable)
        )
        # The last token of an answer is not: nothing comes behind it.
        filled = (length + output - 1) // workload.block_size - len(prompt)
        known.update(prompt, workload.answer(row).tolist()[:filled])
    return tokens


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_an_infinite_cache_has_the_hits_that_can_be_counted(name: str) -> None:
    workload = build(name, seed=5, count=80)
    # One request, or one session, after the other: nothing is computed twice side by side.
    apart = replace(workload, arrival_s=workload.arrival_s + np.arange(len(workload)) * 1e5)
    silent = Signals(scrape_interval_s=float("inf"))
    for commit in ("schedule", "step_end"):
        endless = FleetSpec.parse("h100", kv_tokens=5_000_000, commit=commit)
        result = simulate(apart, endless, "round-robin", signals=silent, sample_interval_s=float("inf"))
        assert result.finished.all()
        assert result.evicted_blocks.sum() == 0
        hits = int(result.cached_tokens.sum(dtype=np.int64))
        assert hits == counted_hits(apart, np.argsort(result.arrival_s, kind="stable").tolist())
        prompts = int(workload.prompt_tokens.sum(dtype=np.int64))
        assert hits / prompts == pytest.approx(PoolProfile(apart).hits().token_rate, abs=2e-3)


@pytest.mark.parametrize(("options", "got"), [({"gateways": 2}, "gateways=2"), ({"sharing": True}, "sharing=True")])
def test_a_gateway_of_its_own_stands_alone(options: dict[str, Any], got: str) -> None:
    with pytest.raises(ValueError, match=rf"a gateway of your own stands alone, got .*{got}"):
        simulate(build("rag", count=3), FleetSpec.parse("a30"), gateway=Anywhere(1), **options)
