"""A forked child shares as a router of its own, over connections of its own."""

from __future__ import annotations

import sys

import pytest
from tests.state.transports import STORY, RedisFleet, load, matched, routers
from tests.test_router_fork import in_child
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is no fork"),
    # Forking beside threads is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def test_children_of_a_fork_are_routers_of_their_own(redis_fleet: RedisFleet) -> None:
    with routers(redis_fleet, 2, peer_timeout_s=60.0) as found:
        (router, state), (other, _) = found
        with router.select_worker(tokens=STORY):
            wait_until(lambda: load(other) == 1)
            origins = {each.stats().origin for _, each in found}

            def child() -> None:
                decisions = [each.select_worker(tokens=[at, *STORY]) for at, (each, _) in enumerate(found, 1)]
                # Both routers were forked; each hears the other, and both of the parent.
                wait_until(lambda: len(state.stats().peers) == 3)
                assert {peer.origin for peer in state.stats().peers} > origins
                assert state.stats().origin not in origins
                wait_until(lambda: load(router) == load(other) == 3)
                assert len(decisions) == 2

            in_child(child)
            wait_until(lambda: load(router) == load(other) == 3)
            wait_until(lambda: matched(other, [1, *STORY]) == matched(router, [2, *STORY]) == 992)
            assert state.stats().failures == 0, "its connections are still its own"
