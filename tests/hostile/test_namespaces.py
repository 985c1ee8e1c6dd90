"""Clients that choose adapter, model and salt, and want what belongs to another tenant.

The forged names were found in eight seconds each, by a generalised-birthday search over the eight parts that XXH3 adds
up for 128 bytes: `xxh3(ADAPTER, 0) + xxh3(OWN, 1) == xxh3(VICTIM, 1)`, and `xxh3(MODEL, 2)` in the place of the first.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.routers import flat_router

from cachelb import NoWorkerAvailable, Router
from cachelb.index import Namespace, hash_blocks
from cachelb.policies import CacheAware

VICTIM, OWN = "tenant-victim", "tenant-attacker"
ADAPTER = (
    "kpwxiGzqR0KumNzNmHwhgOZ3bSGdVqKKws-7fy34NBcA38BH6-RM5MV8v_KlL7XCrwWNicXtUKxd646GrD_9ORXZDLaszDnUuqNJvIor75440aSD8z72k5sl"
    "NBU2fwM_"
)
MODEL = (
    "6eOO0K0lwR7qCwJMOiyuIeh_cxpq9g_P0bY1iwZ8nJqf8CdzjVlTJ_AbbXpY-Vzv1LqQQge6l3TZedUo_DRkgfGoul-djCon7Ep7H6CszAunpNLHiiQKN1nf"
    "Qu-3oA9t"
)
SECRET = "known to all gateways"  # noqa: S105 - of these tests
PROMPT = list(range(512))
FORGERIES: dict[str, dict[str, Any]] = {
    "adapter": {"lora": ADAPTER, "cache_salt": OWN},
    "model": {"model": MODEL, "cache_salt": OWN},
}
POLICIES: dict[str, dict[str, Any]] = {
    "blocks": {"policy": "cache-aware"},
    "tree": {"policy": "cache-aware", "index": "radix"},
    "prompts": {"policy": "prefix-affinity"},
}


@pytest.mark.parametrize("options", [{}, {"hash_seed": 1337}, {"secret": SECRET}], ids=str)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
def test_forged_name_matches_nothing_of_another_tenant(
    forged: dict[str, Any], policy: dict[str, Any], options: dict[str, Any]
) -> None:
    with flat_router(["gpu0"], policy, **options) as router:
        router.select_worker(tokens=PROMPT, cache_salt=VICTIM).on_complete()
        assert router.select_worker(tokens=PROMPT, **forged).matched_tokens == 0
        assert router.select_worker(tokens=PROMPT, cache_salt=VICTIM).matched_tokens >= 496, "the tenant's own stays"


def test_forged_name_matches_nothing_in_a_policy_alone() -> None:
    policy = CacheAware()
    policy.select_worker(["gpu0"], tokens=PROMPT, cache_salt=VICTIM).on_complete()
    assert policy.select_worker(["gpu0"], tokens=PROMPT, lora=ADAPTER, cache_salt=OWN).matched_tokens == 0
    assert policy.select_worker(["gpu0"], tokens=PROMPT, cache_salt=VICTIM).matched_tokens == 496


def test_published_rule_is_forged_by_the_same_name_and_a_secret_ends_that() -> None:
    forged, victim = Namespace(ADAPTER, salt=OWN), Namespace(salt=VICTIM)
    assert (hash_blocks(PROMPT, namespace=forged) == hash_blocks(PROMPT, namespace=victim)).all()
    for scheme in ("chained", "eagle", "positional"):
        hashes = [
            hash_blocks(PROMPT, namespace=namespace, scheme=scheme, secret=SECRET) for namespace in (forged, victim)
        ]
        assert not set(hashes[0].tolist()) & set(hashes[1].tolist())


def test_parts_do_not_run_into_each_other_in_a_router() -> None:
    """Absent and empty are one; every other division of the same characters is another tenant."""
    kinds = ("model", "lora", "cache_salt")
    parts = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("abcd", "", ""), ("", "abcd", ""), ("", "", "abcd")]
    with Router(["gpu0"], secret=SECRET) as router:
        for divided in parts:
            given: dict[str, Any] = dict(zip(kinds, divided, strict=True))
            first = router.select_worker(tokens=PROMPT, **given)
            assert first.matched_tokens == 0, divided
            first.on_complete()
            present = {kind: part for kind, part in given.items() if part}
            assert router.select_worker(tokens=PROMPT, **present).matched_tokens == 496, divided


def test_where_all_workers_name_their_models_other_names_open_nothing() -> None:
    with Router[str](max_memory_mb=16) as router:
        for at in range(2):
            router.add_worker(f"gpu{at}", models=["chat"])
        router.select_worker(tokens=PROMPT, model="chat").on_complete()
        before = router.stats().index_bytes, router._fleet.models()
        for at in range(2_000):
            with pytest.raises(NoWorkerAvailable):
                router.select_worker(tokens=[at, *PROMPT], model=f"{MODEL}{at}", cache_salt=OWN)
        assert (router.stats().index_bytes, router._fleet.models()) == before
        assert router.select_worker(tokens=PROMPT, model="chat").matched_tokens == 496


def test_namespaces_without_end_are_no_memory_without_end() -> None:
    """Every request brings another salt; trees number them, and remember some of the numbers."""
    with Router(["gpu0"], policy=CacheAware(index="radix"), max_memory_mb=2) as router:
        for at in range(20_000):
            router.select_worker(tokens=[1, 2, 3, 4], cache_salt=f"salt {at}").on_complete()
        assert router.stats().index_bytes <= 2 << 20
        salts = (f"salt {at}", VICTIM)
        matched = [router.select_worker(tokens=[1, 2, 3, 4], cache_salt=salt).matched_tokens for salt in salts]
        assert matched == [3, 0], "a token is always left to compute"
