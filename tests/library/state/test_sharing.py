"""Routers that share their state, over every transport."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
from tests.library.router.test_router_fork import in_child
from tests.library.state.transports import (
    OTHER,
    SECRET,
    STORY,
    Fleet,
    RedisFleet,
    load,
    make_router,
    matched,
    routers,
    same_loads,
)
from tests.models.kv_streams import open_files
from tests.waiting import wait_until


def test_load_and_placements_of_one_are_known_to_all(fleet: Fleet) -> None:
    with routers(fleet, 3) as found:
        decisions = [router.select_worker(tokens=[at, *STORY]) for at, (router, _) in enumerate(found)]
        wait_until(lambda: all(load(router) == 3 for router, _ in found) and same_loads(found))
        wait_until(lambda: all(matched(router, [at, *STORY]) == 992 for router, _ in found for at in range(3)))
        for decision in decisions:
            decision.on_first_token()
        wait_until(
            lambda: all(sum(w.pending_prefill_tokens for w in router.stats().workers) == 0 for router, _ in found)
        )
        wait_until(lambda: all(sum(w.decode_blocks for w in router.stats().workers) == 3 * 62 for router, _ in found))
        for decision in decisions:
            decision.on_complete()
        wait_until(lambda: all(load(router) == 0 for router, _ in found))
        assert all(sum(router.stats().endings.values()) == 1 for router, _ in found), "each counts its own requests"
        assert all(state.stats().strangers == state.stats().orphans == 0 for _, state in found)


def test_new_router_is_told_what_the_others_know_before_it_is_attached(fleet: Fleet) -> None:
    with routers(fleet, 2) as found:
        (router, _), (other, _) = found
        open_decision = router.select_worker(tokens=STORY)
        other.select_worker(tokens=[5, *STORY]).on_complete()
        wait_until(lambda: matched(router, [5, *STORY]) == matched(other) == 992)
        with make_router() as third:
            state = fleet.member(warm_start_s=60.0)
            third.attach(state)
            assert state.stats().start == "warm: received from another router"
            # One of them sent its state; the other sends its own requests.
            assert matched(third) == matched(third, [5, *STORY]) == 992
            wait_until(lambda: load(third) == 1)
            open_decision.on_complete()


def test_router_that_nobody_tells_anything_starts_cold_with_a_reason(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    with make_router() as router:
        state = fleet.member(warm_start_s=0.2)
        router.attach(state)
        assert state.stats().start == "cold: no peer sent state within 0.2 s"
    assert "starts cold" in caplog.text


def test_who_does_not_know_the_secret_hears_and_tells_nothing(fleet: Fleet) -> None:
    with routers(fleet, 2) as found:
        with make_router(secret=OTHER) as stranger:
            state = fleet.member(warm_start_s=0.7)
            stranger.attach(state)
            stranger.select_worker(tokens=STORY)
            found[0][0].select_worker(tokens=[1, *STORY]).on_complete()
            time.sleep(0.3)
            assert state.stats().received == 0
            assert matched(stranger, [1, *STORY]) == 0
        assert all(matched(router) == 0 for router, _ in found)


def test_a_fleet_changes_its_secret_one_router_after_the_other(fleet: Fleet) -> None:
    """Load is shared across every step, in both directions; blocks where both make their hashes with one secret."""
    later = "known to them since today"
    steps: list[tuple[list[str], list[str]]] = [([SECRET], [SECRET, later]), ([SECRET, later], [later, SECRET])]
    for one, two in steps:
        with make_router(secret=one) as router, make_router(secret=two) as other:
            for each in (router, other):
                each.attach(fleet.member())
            for teller, hearer in ((router, other), (other, router)):
                with teller.select_worker(tokens=STORY):
                    wait_until(lambda hearer=hearer: load(hearer) == 1)  # type: ignore[misc]
                wait_until(lambda hearer=hearer: load(hearer) == 0)  # type: ignore[misc]
            state = router.stats().state
            assert state is not None
            assert (state.strangers == 0) is (one[0] == two[0])


def test_router_that_dies_takes_its_load_along(fleet: Fleet) -> None:
    with routers(fleet, 2, peer_timeout_s=1.0) as found:
        (router, state), (other, other_state) = found
        decision = router.select_worker(tokens=STORY)
        wait_until(lambda: load(other) == 1 and matched(other) == 992)
        router.detach(state)
        wait_until(lambda: load(other) == 0)
        assert other_state.stats().peers == ()
        assert matched(other) == 992, "what it placed is still cached"
        decision.on_complete()


def test_load_of_others_goes_when_sharing_ends(fleet: Fleet) -> None:
    with routers(fleet, 2) as found:
        (router, _), (other, other_state) = found
        decision = router.select_worker(tokens=STORY)
        wait_until(lambda: load(other) == 1)
        other.detach(other_state)
        assert load(other) == 0
        decision.on_complete()


def test_other_hash_seed_shares_load_only(fleet: Fleet) -> None:
    with make_router() as router, make_router(hash_seed=8) as other:
        router.attach(fleet.member())
        state = fleet.member()
        other.attach(state)
        wait_until(lambda: len(state.stats().peers) == 1)
        with router.select_worker(tokens=STORY):
            wait_until(lambda: state.stats().strangers > 0)
        assert matched(other) == 0


def test_partition_heals(fleet: Fleet) -> None:
    with make_router() as router, make_router() as other:
        router.attach(fleet.member(peer_timeout_s=1.0))
        state, proxy = fleet.cut_off(peer_timeout_s=1.0)
        try:
            other.attach(state)
            wait_until(lambda: len(state.stats().peers) == 1)
            before = router.select_worker(tokens=STORY)
            wait_until(lambda: load(other) == 1)
            proxy.cut()
            decisions = [router.select_worker(tokens=[at, *STORY]) for at in range(50)]
            # A peer leaves the statistics a moment before its load expires.
            wait_until(lambda: not state.stats().peers and load(other) == 0)
            for decision in [before, *decisions[10:]]:
                decision.on_complete()
            proxy.heal()
            wait_until(lambda: router.loads() == other.loads() and load(other) == 10)
            wait_until(lambda: all(matched(other, [at, *STORY]) == 992 for at in range(50)))
            for decision in decisions[:10]:
                decision.on_complete()
            wait_until(lambda: load(other) == 0)
            assert state.stats().gaps > 0
        finally:
            other.detach(state)
            proxy.close()


def test_no_thread_and_no_file_is_left(fleet: Fleet) -> None:
    with routers(fleet, 2):
        pass
    before = open_files()
    for _ in range(3):
        with routers(fleet, 2) as found:
            found[0][0].select_worker(tokens=STORY)
    wait_until(lambda: open_files() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name == "cachelb-state"]


def test_changes_of_the_fleet_are_told_by_every_transport(fleet: Fleet) -> None:
    with routers(fleet, 2, share_fleet=True) as found:
        (router, _), (other, _) = found
        router.add_worker("new", weight=2.0)
        router.set_ready("gpu0", ready=False)
        wait_until(lambda: "new" in other.keys())  # noqa: SIM118 - a router is no dictionary
        wait_until(lambda: {row.key: row.state for row in other.stats().workers}["gpu0"] == "not ready")
        assert {row.key: row.weight for row in other.stats().workers}["new"] == 2.0
        other.remove_worker("gpu1")
        wait_until(lambda: "gpu1" not in router.keys())  # noqa: SIM118


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_children_of_a_fork_are_routers_of_their_own(redis_fleet: RedisFleet) -> None:
    with routers(redis_fleet, 2, peer_timeout_s=60.0) as found:
        (router, state), (other, _) = found
        with router.select_worker(tokens=STORY):
            wait_until(lambda: load(other) == 1)
            origins = {each.stats().origin for _, each in found}
            reading, writing = os.pipe()

            def child() -> None:
                os.close(writing)
                decisions = [each.select_worker(tokens=[at, *STORY]) for at, (each, _) in enumerate(found, 1)]
                # Both routers were forked; each receives from the other, and both from the parent.
                wait_until(lambda: len(state.stats().peers) == 3)
                assert {peer.origin for peer in state.stats().peers} > origins
                assert state.stats().origin not in origins
                wait_until(lambda: load(router) == load(other) == 3)
                assert len(decisions) == 2
                os.read(reading, 1)

            def parent() -> None:
                # Messages of a new router count once it has answered a question, which it must be there for.
                with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
                    wait_until(lambda: load(router) == load(other) == 3)
                    pipe.write("seen")

            in_child(child, parent)
            wait_until(lambda: matched(other, [1, *STORY]) == matched(router, [2, *STORY]) == 992)
            assert state.stats().failures == 0, "its connections are still its own"
