"""The session policy: what a session is bound to, when it moves, and what is remembered."""

from __future__ import annotations

import cachelb
from cachelb.policies import CacheAware, Session

WORKERS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def test_a_cache_aware_base_places_by_prefix_and_keeps_its_own_options() -> None:
    tokens = range(640)
    policy = Session(base=CacheAware(block_size=32, max_blocks_per_worker=5, hash_seed=7), ttl_s=60)
    with policy.select_worker(WORKERS, tokens=tokens, session="a") as first:
        assert first.reason == "cold"
    assert policy.block_count() == 5
    other = policy.select_worker(WORKERS, tokens=range(200), session="b")
    assert (other.key, other.reason, other.matched_tokens) == (first.key, "prefix", 160)
    by_blocks = policy.select_worker(
        WORKERS, blocks=cachelb.index.hash_blocks(range(320), 32, seed=7), session="c", dry_run=True
    )
    assert by_blocks.matched_tokens == 160


def test_a_router_binds_each_model_and_role_apart_and_finishes_all() -> None:
    with cachelb.Router(WORKERS, policy="session", seed=3, models={"small": 16, "large": 32}) as router:
        first = {model: router.select_worker(session="chat", model=model, by_load=True) for model in ("small", "large")}
        assert {decision.reason for decision in first.values()} == {"least-loaded"}
        again = {model: router.select_worker(session="chat", model=model, by_load=True) for model in first}
        assert {model: decision.key for model, decision in again.items()} == {
            model: decision.key for model, decision in first.items()
        }
        assert router.finish_session("chat") is True
        assert router.finish_session("chat") is False
        assert router.select_worker(session="chat", model="small", by_load=True).reason == "least-loaded"


def test_a_router_splits_a_hashing_policys_absolute_margin_among_replicas() -> None:
    def overflow(replicas: int) -> int:
        with cachelb.Router(WORKERS, policy="prefix-hash", replicas=replicas) as router:
            held = [router.select_worker(session="chat", by_load=True)]
            while held[-1].reason == "hash":
                held.append(router.select_worker(session="chat", by_load=True))
            return len(held)

    assert (overflow(1), overflow(2)) == (15, 9), "margins of 10 and of 5 above the average"
