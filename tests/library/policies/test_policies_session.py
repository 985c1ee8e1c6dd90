"""The session policy: what a session is bound to, when it moves, and what is remembered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import cachelb
from cachelb import policies
from cachelb.policies import CacheAware, RoundRobin, Session

WORKERS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def serve(policy: Session, session: str, workers: list[str] = WORKERS) -> tuple[str, str]:
    """Route and serve one request; return the worker and the reason."""
    decision = policy.select_worker(workers, session=session, by_load=True)
    decision.on_first_token()
    decision.on_complete()
    return decision.key, decision.reason


def test_the_idlest_session_makes_room() -> None:
    policy = Session(max_sessions=2)
    for session in ("a", "b", "a", "c"):
        serve(policy, session)
    assert [policy.finish_session(session) for session in "abc"] == [True, False, True]
    with pytest.raises(TypeError):
        policy.finish_session(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("base", ["round-robin", RoundRobin(start="first")])
def test_a_base_policy_places_new_sessions(base: Any) -> None:
    policy = Session(base=base)
    homes = [serve(policy, str(i)) for i in range(8)]
    assert [reason for _, reason in homes] == ["round-robin"] * 8
    assert Counter(worker for worker, _ in homes) == dict.fromkeys(WORKERS, 2)
    assert serve(policy, "0") == (homes[0][0], "session")


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


def test_hash_mode_agrees_with_rendezvous() -> None:
    policy, draw = Session(mode="hash", seed=3), policies.make("rendezvous", seed=3)
    for i in range(50):
        ours, theirs = (p.select_worker(WORKERS, session=str(i), dry_run=True, by_load=True) for p in (policy, draw))
        assert (ours.key, ours.reason) == (theirs.key, "hash")
    assert policy.finish_session("0") is False


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
