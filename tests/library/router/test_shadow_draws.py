"""Shadows draw for themselves: neither with the policy that picks nor with one another."""

from __future__ import annotations

from cachelb import Router

KEYS = ["gpu0", "gpu1", "gpu2", "gpu3"]
REQUESTS = 2_000


def picks(router: Router[str]) -> list[tuple[str, ...]]:
    """Picks of the policy and its shadows for one request after the other."""
    for _ in range(REQUESTS):
        with router.select_worker(by_load=True):
            pass
    records, _, lost = router.records.since(0)
    assert lost == 0
    return [(record.key, *(shadow.key for shadow in record.shadows)) for record in records]


def test_random_beside_random_agrees_by_chance_only() -> None:
    router: Router[str] = Router(KEYS, policy="random", shadow=["random", "random"], seed=7)
    rows = picks(router)
    assert len(rows) == REQUESTS
    for one, other in ((0, 1), (0, 2), (1, 2)):
        alike = sum(row[one] == row[other] for row in rows)
        # A quarter is expected, give or take 19.
        assert 400 < alike < 600, (one, other)
