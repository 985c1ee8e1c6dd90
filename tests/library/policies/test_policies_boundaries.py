"""Boundary learning through policies, routers and the simulator."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

import cachelb
from cachelb import policies
from cachelb.metrics import PrometheusCollector
from cachelb.policies import BoundaryLearning
from cachelb_lab.sim import FleetSpec, build, simulate

WORKERS = ["gpu0", "gpu1", "gpu2", "gpu3"]
ENDS = [256, 306, 406, 446]
TURN = array("I", range(446))


def branch(shared: int, length: int = 500) -> array[int]:
    """A prompt that begins as `TURN` does."""
    return array("I", [*range(shared), *range(10_000, 10_000 + length - shared)])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": TURN, "boundaries": [306, 256]}, ValueError, r"boundaries\[1\] is 256 behind 306: they must rise"),
        ({"tokens": TURN, "boundaries": [447]}, ValueError, r"boundaries\[0\] is 447, but the prompt has 446 tokens"),
        ({"text": "né", "boundaries": [3]}, ValueError, r"boundaries\[0\] is 3, but the prompt has 2 characters"),
        ({"blocks": [1, 2], "boundaries": [33]}, ValueError, r"boundaries\[0\] is 33, but the prompt has 32 tokens"),
        ({"tokens": TURN, "boundaries": [-1]}, ValueError, r"boundaries\[0\] must be from 0"),
        ({"tokens": TURN, "boundaries": ["a"]}, TypeError, r"boundaries\[0\]"),
        ({"tokens": TURN, "boundaries": "ab"}, TypeError, "boundaries must be a buffer of uint32 or a sequence of int"),
        ({"boundaries": [1], "by_load": True}, TypeError, "boundaries= goes with tokens=, text= or blocks=; "),
        ({"messages": [], "boundaries": [1]}, TypeError, "those of messages= and body= are where they end"),
    ],
)
@pytest.mark.parametrize("policy", ["boundary-learning", "least-loaded"])
def test_bad_boundaries_are_named(policy: str, arguments: Any, error: type[Exception], message: str) -> None:
    router = cachelb.Router(WORKERS, policy=policy)
    with pytest.raises(error, match=message):
        router.select_worker(**arguments)
    assert router.stats().open_requests == 0


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda ends: array("I", ends)])
def test_a_turn_is_found_at_the_ends_of_its_messages(form: Any) -> None:
    policy = BoundaryLearning(seed=1)
    first = policy.select_worker(WORKERS, tokens=TURN, boundaries=form(ENDS))
    first.on_complete()
    assert policy.stats()["routes"] == 4
    for shared in ENDS:
        found = policy.select_worker(WORKERS, tokens=branch(shared), dry_run=True)
        assert (found.worker, found.reason) == (first.worker, "prefix")
    assert policy.select_worker(WORKERS, tokens=branch(255), dry_run=True).reason == "hash"
    assert policy.stats()["routes"] == 4, "a dry run learns nothing"


def test_other_adapters_and_salts_have_other_routes() -> None:
    policy = BoundaryLearning(seed=1)
    policy.select_worker(WORKERS, tokens=TURN, boundaries=ENDS, lora="a").on_complete()
    reasons = [policy.select_worker(WORKERS, tokens=TURN, **more, dry_run=True).reason for more in IDENTITIES]
    assert reasons == ["hash", "prefix", "hash", "hash"]


IDENTITIES: list[dict[str, Any]] = [{}, {"lora": "a"}, {"lora": "b"}, {"lora": "a", "cache_salt": "s"}]


def test_texts_are_found_at_characters_and_messages_without_being_told() -> None:
    router = cachelb.Router(WORKERS, policy="boundary-learning", seed=1)
    system = "日本\ud800 é " * 100
    first = router.select_worker(text=system + "one question" * 20, boundaries=[len(system), len(system) + 240])
    first.on_complete()
    # 12 bytes of every 7 characters are more than a character each: a block is 64 bytes.
    found = router.select_worker(text=system + "another" * 30)
    assert (found.worker, found.reason, router.stats().routes) == (first.worker, "prefix", 2)
    chat = [{"role": "system", "content": "s" * 700}, {"role": "user", "content": "u" * 300}]
    asked = router.select_worker(messages=chat)
    asked.on_complete()
    assert router.stats().routes == 4
    other = router.select_worker(messages=[chat[0], {"role": "user", "content": "v" * 300}])
    assert (other.worker, other.reason) == (asked.worker, "prefix")


def test_routes_are_counted_in_statistics_and_metrics() -> None:
    router = cachelb.Router(WORKERS, policy=cachelb.policies.BoundaryLearning(max_routes=3), seed=1)
    empty = router.stats().memory_bytes
    router.select_worker(tokens=TURN, boundaries=ENDS).on_complete()
    assert router.stats().routes == 3, "at the cap"
    assert router.stats().memory_bytes > empty
    router.validate()
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))
    assert registry.get_sample_value("cachelb_routes", {"trust": "local"}) == 3
    assert registry.get_sample_value("cachelb_routes", {"trust": "remote"}) == 0


def test_every_way_to_ask_takes_boundaries() -> None:
    router = cachelb.Router(WORKERS, policy="boundary-learning", seed=1)
    for decision in router.select_batch([{"tokens": TURN, "boundaries": ENDS}] * 2):
        decision.on_complete()
    assert router.stats().routes == 4
    assert router.explain(tokens=branch(406), boundaries=[406]).reason == "prefix"
    watching = cachelb.Router(WORKERS, policy="least-loaded", shadow=["boundary-learning"], seed=1)
    watching.select_worker(tokens=TURN, boundaries=ENDS).on_complete()
    assert watching.stats().routes == 4
    based = policies.make("session", base="boundary-learning")
    based.select_worker(WORKERS, tokens=TURN, boundaries=ENDS, session="s").on_complete()
    assert based.stats()["routes"] == 4
    based.validate()


def test_the_simulator_feeds_boundaries() -> None:
    chats, fleet = build("chat", seed=1, count=400), FleetSpec.parse("4xl40s")
    every, first = (simulate(chats, fleet, "boundary-learning", seed=1, multi_depth=many) for many in (True, False))
    assert every.cached_tokens.sum() > 1.03 * first.cached_tokens.sum()
