"""Routes that are learned at one router and followed at others, and facts that routers agree on without messages."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.library.state.transports import MeshFleet, routers
from tests.routers import flat_router
from tests.waiting import wait_until

from cachelb import Decision, Router
from cachelb.metrics import PrometheusCollector

STORY = list(range(640))
ENDS = [160, 320, 640]
LEARNING: dict[str, Any] = {"policy": "boundary-learning"}


def ask(router: Router[str], tokens: list[int] = STORY, ends: list[int] = ENDS, **options: Any) -> Decision[str]:
    return router.select_worker(tokens=tokens, boundaries=[end for end in ends if end <= len(tokens)], **options)


def trusted(router: Router[str]) -> tuple[int, int]:
    """Count the routes learned here and those received."""
    router.validate()
    stats = router.stats()
    return stats.routes - stats.remote_routes, stats.remote_routes


def test_others_follow_a_route_and_have_learned_it_once_they_did() -> None:
    with routers(MeshFleet(), 3, make=LEARNING) as found:
        (router, _), (other, other_mesh), (third, _) = found
        decision = ask(router, among=["gpu2"])
        assert trusted(router) == (0, 0), "nothing is learned before the answer"
        decision.on_first_token()
        wait_until(lambda: trusted(other) == trusted(third) == (0, 3))
        decision.on_complete()
        # Not three exactly: the answer of a peer to "tell me all" may come late and repeat them.
        assert other_mesh.stats().routes >= 3
        assert trusted(router) == (3, 0)
        # Another question behind the same system prompt, at another router.
        next_one = ask(other, [*STORY[:320], *range(9000, 9200)])
        assert (next_one.worker, next_one.reason) == ("gpu2", "prefix")
        next_one.on_complete()
        assert trusted(other) == (2, 1)
        registry = CollectorRegistry()
        registry.register(PrometheusCollector(other))
        metrics = [registry.get_sample_value("cachelb_routes", {"trust": trust}) for trust in ("local", "remote")]
        assert metrics == [2, 1]
        assert all(mesh.stats().strangers == mesh.stats().stale == 0 for _, mesh in found)


@pytest.mark.parametrize("policy", ["prefix-affinity", "cache-aware"])
def test_policies_that_keep_prompts_say_so_and_share_load(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"policy": policy}
    if policy == "cache-aware":
        options["index"] = "radix"
    with routers(MeshFleet(), 2, make=options) as ((router, _), (other, mesh)):
        assert f"policy {policy} keeps prompts in a tree" in caplog.text
        with router.select_worker(tokens=STORY):
            wait_until(lambda: router.loads() == other.loads())
            assert sum(other.loads().values()) == 1
        wait_until(lambda: sum(other.loads().values()) == 0)
        assert mesh.stats().strangers == 0
        text = "".join(chr(97 + at % 26) for at in range(4000))
        router.select_worker(text=text).on_complete()
        told = b"".join(router._fleet.publish_all())
        assert text[:64].encode() not in told
        assert b"".join(token.to_bytes(4, "little") for token in STORY[:8]) not in told


EIGHT = [f"gpu{at}" for at in range(8)]


def picks(seed: int, options: dict[str, Any], others: int) -> list[str]:
    """Workers of the same conversations at one router, which was asked for others before."""
    router = flat_router(EIGHT, options, seed=seed, hash_seed=7)
    for at in range(others):
        router.select_worker(tokens=[5000 + at] * 700, session=f"other {at}").on_complete()
    found = []
    for at in range(100):
        with router.select_worker(tokens=[at] * 700, session=f"chat {at}") as decision:
            found.append(decision.worker)
    return found


BY_HASH: list[dict[str, Any]] = [
    {"policy": "rendezvous"},
    {"policy": "consistent-hash"},
    {"policy": "prefix-hash"},
    {"policy": "session", "mode": "hash"},
    {"policy": "boundary-learning"},
]


@pytest.mark.parametrize("options", BY_HASH, ids=lambda options: options["policy"])
def test_policies_that_pick_by_hash_agree_without_being_told(options: dict[str, Any]) -> None:
    found = picks(1, options, others=0)
    assert found == picks(2, options, others=13)
    assert len(set(found)) > 4, "and they do spread"


def test_bound_sessions_are_each_routers_own() -> None:
    assert picks(1, {"policy": "session"}, others=0) != picks(2, {"policy": "session"}, others=13)
