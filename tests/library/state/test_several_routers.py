"""Two routers in processes of their own behind round robin, on real traffic: as good as one that sees everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.herd.processes import herd
from tests.herd.replay import Played, play
from tests.herd.served import Evenness, Served
from tests.herd.true_workers import TrueWorkers
from tests.herd.views import Views
from tests.library.state.transports import SECRET

from cachelb import Router
from cachelb_lab.sim.workloads import Draft, Plan
from cachelb_lab.sim.workloads.files.traces import read_mooncake

WORKERS = [f"gpu{at}" for at in range(8)]
MAX_BLOCKS = 50_000
REQUESTS = 500
FACTOR = 25.0
"""Requests last half a second, and as many are open at a time as were when the trace was taken."""


def played(trace: Path, count: int) -> Played:
    # The timestamps of the trace come in batches of three seconds.
    requests = read_mooncake(trace, limit=REQUESTS).jitter(3.0, seed=1)
    with herd(count, WORKERS, max_blocks_per_worker=MAX_BLOCKS) as routers:
        return play(requests, routers, TrueWorkers(WORKERS, max_blocks=MAX_BLOCKS), factor=FACTOR)


@pytest.fixture(scope="module")
def two(conversation_trace: Path) -> Played:
    return played(conversation_trace, 2)


def test_two_routers_find_as_much_as_one(conversation_trace: Path, two: Played) -> None:
    one = played(conversation_trace, 1)
    assert one.hit_rate > 0.1, "there is something to find"
    assert two.hit_rate > one.hit_rate - 0.02
    assert two.known_rate > two.hit_rate - 0.005, "what is found was known when the worker was picked"


def test_both_see_the_load_of_all(two: Played) -> None:
    # Alone, each would see half of it: two views of three would be wrong.
    assert two.views.share_within(0.2) > 0.95
    assert two.views.share_within(2.0) == 1.0


def test_a_block_takes_less_than_24_bytes(two: Played) -> None:
    assert 8.0 <= two.bytes_per_block < 24.0
    assert all(each.refused == each.strangers == each.dropped == 0 for each in two.stats)


def test_what_follow_ups_find_and_how_even_the_load_is() -> None:
    draft = Draft("two", Plan(seed=1, count=4))
    for at in range(2):
        first, answer = draft.piece(64), draft.piece(32)
        parent = draft.request([first], answer, arrival_s=float(at))
        draft.request([first, answer, draft.piece(16)], 1, parent=parent)
    served = Served.empty(draft.finish(), ["a", "b"])
    for row, (worker, begin_s, held) in enumerate([("a", 0.0, 0), ("b", 0.5, 64), ("a", 1.0, 0), ("a", 3.0, 48)]):
        served.note(row, worker, begin_s, held)
    served.end_s[:] = [0.5, 4.0, 2.0, 5.0]
    assert served.follow_up_hits() == 0.5
    assert (served.findable(answers=False), served.findable(answers=True)) == (128 / 224, 192 / 224)
    # One request begins from 0.5 s on, before 1 s, on b; and only it is in flight.
    assert served.evenness() == Evenness(open_now=1.0, open_mean=1.0, tokens=1.0)
    found = {how: served.dispatched(how).worker.tolist() for how in ("in turn", "least loaded", "conversations stay")}
    assert found == {"in turn": [0, 1, 0, 1], "least loaded": [0, 1, 0, 0], "conversations stay": [0, 0, 1, 1]}


def test_first_tokens_and_ends_wait_for_a_booking() -> None:
    router = Router(WORKERS, secret=SECRET)
    router._fleet.share(1, 60.0, 1 << 20)
    decision = router.select_worker(tokens=range(100))
    assert router._fleet.is_urgent()
    assert router._fleet.publish()
    decision.on_first_token()
    decision.on_complete()
    assert not router._fleet.is_urgent()
    assert router._fleet.heartbeat(7) is None, "it would announce entries that were not sent"
    router.select_worker(tokens=range(100)).on_complete()
    assert router._fleet.is_urgent()
    assert len(router._fleet.publish()) == 1


def test_a_view_is_as_old_as_the_truth_it_shows() -> None:
    rising = [(float(at), "a", 1) for at in range(1, 11)]  # The load is 1 from second 1 on, and 10 from second 10 on.
    looks = [(10.5, {"a": seen}) for seen in (10, 9, 8, 2, 0)] + [(0.5, {"a": 3}), (10.5, {"b": 1}), (10.5, {"b": 2})]
    infinite = float("inf")
    views = Views([rising[::2], rising[1::2]], [looks])
    assert views.ages(most_s=6.0) == [0.0, 0.0, 0.5, infinite, infinite, infinite, 0.0, infinite]
    assert views.ages(most_s=6.0, exact=True) == [0.0, 0.5, 1.5, infinite, infinite, infinite, infinite, infinite]
