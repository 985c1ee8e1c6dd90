"""Well-formed input that contradicts itself: refused whole, counted, or taken in so that everything still adds up.

Block hashes are drawn from a dozen, so chains rejoin, repeat a block, run in circles, and have one block under several
parents, which no engine and no router of one secret sends.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cachelb import Router, policies
from cachelb_fakes.events import cleared, encode_batch, removed, stored

WORKERS = ("a", "b", "c")
SECRET = "known to all gateways"  # noqa: S105 - of these tests

hashes = st.integers(1, 12)
chains = st.lists(hashes, max_size=7)
workers = st.sampled_from(WORKERS)
parents = st.none() | hashes
ends = st.sampled_from(["complete", "error", "open"])


tokens = st.integers(1, 4).flatmap(lambda blocks: st.lists(st.integers(0, 1), min_size=blocks, max_size=blocks))
stores = st.builds(
    lambda names, content, parent, medium: stored(names, content, block_size=1, parent=parent, medium=medium),
    st.lists(hashes, max_size=4),
    tokens,
    parents,
    st.sampled_from(["GPU", "CPU", "disk"]),
)
removals = st.builds(removed, st.lists(hashes, max_size=4))
events = st.lists(st.one_of(stores, stores, removals, st.just(cleared())), max_size=4)
calls = st.one_of(
    st.tuples(st.just("select"), workers, chains, ends),
    st.tuples(st.just("select"), workers, chains, ends),
    st.tuples(st.just("events"), workers, events),
    st.tuples(st.just("reset"), workers),
    st.tuples(st.just("restore")),
    st.tuples(st.just("other"), workers, chains),
)


def make(policy: str) -> Router[str]:
    return Router(WORKERS, policy=policies.make(policy, max_blocks_per_worker=9), block_size=1, seed=1, secret=SECRET)


@example("cache-aware", [("other", "a", [4, 2, 5]), ("select", "a", [1, 2, 3], "complete"), ("restore",)])
@example("kv-aware", [("select", "a", [1, 2, 1], "open"), ("other", "a", [2, 1]), ("restore",), ("reset", "a")])
@given(st.sampled_from(["cache-aware", "kv-aware"]), st.lists(calls, max_size=25))
def test_router_adds_up_after_contradictory_blocks_events_and_snapshots(
    policy: str, steps: list[tuple[Any, ...]]
) -> None:
    router, other, open_requests = make(policy), make("cache-aware"), []
    for step in steps:
        match step:
            case ("select", worker, chain, end):
                decision = router.select_worker(blocks=chain, among=[worker])
                open_requests.append(decision)
                if end != "open":
                    open_requests.pop().on_complete() if end == "complete" else open_requests.pop().on_error(500)
            case ("events", worker, batch):
                router.event_sink.apply_events(worker, encode_batch(batch, ts=1.0))
            case ("reset", worker):
                router.load_sink.reset_cache(worker)
            case ("other", worker, chain):
                other.select_worker(blocks=chain, among=[worker]).on_complete()
            case _:
                router.shared_state.restore(other.shared_state.snapshot())
                router.shared_state.restore(router.shared_state.snapshot())
        router.validate()
    for decision in open_requests:
        decision.on_error(503)
        router.validate()
    assert router.stats().open_requests == 0
