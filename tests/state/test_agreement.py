"""What routers agree on that tell each other nothing: the table in docs/sharing.md."""

from __future__ import annotations

from typing import Any

import pytest

from cachelb import Router

WORKERS = [f"gpu{at}" for at in range(8)]


def picks(seed: int, options: dict[str, Any], others: int) -> list[str]:
    """Workers of the same conversations at one router, which was asked for others before."""
    router = Router(WORKERS, seed=seed, hash_seed=7, **options)
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
