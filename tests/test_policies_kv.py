"""`least-kv` picks by free KV memory."""

from __future__ import annotations

import cachelb


def test_the_emptiest_cache_is_picked_by_reports_where_sizes_are_unknown() -> None:
    router = cachelb.Router(["a", "b", "c"], policy="least-kv", seed=1)
    for worker, used in (("a", 0.5), ("b", 0.2), ("c", 0.4)):
        router.update_load(worker, kv_usage=used)
    assert [router.select_worker().key for _ in range(3)] == ["b"] * 3


def test_below_the_ignored_share_workers_take_turns() -> None:
    router = cachelb.Router(["a", "b", "c"], policy=cachelb.policies.LeastKv(seed=1, ignored_share=0.45))
    for worker, used in (("a", 0.5), ("b", 0.2), ("c", 0.4)):
        router.update_load(worker, kv_usage=used)
    assert {router.select_worker().key for _ in range(8)} == {"b", "c"}
