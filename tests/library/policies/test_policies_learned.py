"""Learned routing through policies, routers, metrics and the simulator."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.routers import flat_router
from tests.threads import beside

from cachelb import Decision, Router, policies
from cachelb.metrics import PrometheusCollector
from cachelb.policies import Learned, LeastLoaded, PrefixCacheAndLoad
from cachelb.types import LearnedStats
from cachelb_gateway import config

WORKERS = ["fast0", "fast1", "slow0", "slow1"]
FEW: dict[str, Any] = {"n_min": 200, "theta": 200, "model_kind": "linear", "seed": 1}
MODEL = {"learned", "learned-tie", "k-filter"}


class Clock:
    """Seconds that pass when a test advances them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.served = 0

    def __call__(self) -> float:
        return self.now


def fleet(clock: Clock | None = None, **options: Any) -> Router[str]:
    router = flat_router((), options, clock=clock, policy="learned", training="inline", **FEW)
    for worker in WORKERS:
        router.add_worker(worker, gpu=worker.rstrip("01"))
    return router


def serve(router: Router[str], clock: Clock, requests: int, cost: Callable[[str, int], float]) -> list[Decision[str]]:
    """Route requests one after another, each answered after what it costs."""
    decisions = []
    for _ in range(requests):
        # No two prompts share a block.
        i = clock.served = clock.served + 1
        tokens = 64 + 16 * (i * 7 % 40)
        with router.select_worker(tokens=range(i * 1000, i * 1000 + tokens)) as decision:
            began = clock.now
            clock.now = began + cost(decision.worker, tokens)
            decision.on_first_token()
            # One at a time: what follows does not wait for it.
            clock.now = began + 0.05
        decisions.append(decision)
    return decisions


def by_gpu(worker: str, tokens: int) -> float:
    return tokens / (20_000 if worker.startswith("fast") else 4_000)


def share(decisions: list[Decision[str]], reasons: set[str]) -> float:
    return sum(decision.reason in reasons for decision in decisions) / len(decisions)


def test_it_learns_which_device_is_faster_and_says_so() -> None:
    clock = Clock()
    router = fleet(clock)
    first = serve(router, clock, 200, by_gpu)
    assert {decision.reason for decision in first} == {"cold-start"}
    later = serve(router, clock, 1_000, by_gpu)[200:]
    assert share(later, MODEL) > 0.9
    assert sum(decision.worker.startswith("fast") for decision in later) / len(later) > 0.95
    (stats,) = router.policy.learned_stats()
    assert (stats.samples, stats.pending, stats.version > 0, stats.training) == (1_200, 0, True, False)
    assert stats.mae < stats.mean_mae
    assert sum(stats.decisions.values()) == 1_200


@pytest.mark.parametrize("as_path", [True, False])
def test_a_saved_model_begins_where_it_ended(tmp_path: Path, as_path: bool) -> None:
    clock = Clock()
    router = fleet(clock)
    serve(router, clock, 600, by_gpu)
    path = tmp_path / "routing.model"
    router.policy.save_model(path)
    assert [child.name for child in tmp_path.iterdir()] == ["routing.model"]
    copy = fleet(clock, model=path if as_path else path.read_bytes())
    decisions = serve(copy, clock, 100, by_gpu)
    assert share(decisions, MODEL) > 0.9
    assert copy.policy.learned_stats()[0].version == router.policy.learned_stats()[0].version
    again = tmp_path / "again.model"
    copy.policy.save_model(again)
    assert again.read_bytes() == path.read_bytes()


def test_nothing_is_saved_before_there_is_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no model yet"):
        fleet().policy.save_model(tmp_path / "model")
    with pytest.raises(ValueError, match="there is no model yet"):
        Learned().save_model(tmp_path / "model")
    with pytest.raises(ValueError, match=r'model "m" has no pool'):
        fleet().policy.save_model(tmp_path / "model", model="m")
    assert list(tmp_path.iterdir()) == []


def test_fallbacks_decide_until_there_is_a_model() -> None:
    for fallback in ("least-loaded", LeastLoaded(), PrefixCacheAndLoad(imbalance_threshold=1)):
        policy = Learned(fallback=fallback, seed=1)
        busy = policy.select_worker(["a"], by_load=True)
        decision = policy.select_worker(["a", "b"], tokens=range(64))
        assert (decision.worker, decision.reason) == ("b", "cold-start")
        busy.cancel()


def test_a_policy_of_its_own_learns_too() -> None:
    policy = Learned(training="inline", **FEW)
    for i in range(300):
        with policy.select_worker(["a", "b"], tokens=range(i, i + 64 + i % 5)) as decision:
            decision.on_first_token()
    stats = policy.learned_stats()
    assert isinstance(stats, LearnedStats)
    assert (stats.samples, stats.model, stats.part) == (300, None, "whole")


def test_metrics_show_what_was_learned() -> None:
    clock = Clock()
    router = fleet(clock)
    serve(router, clock, 400, by_gpu)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"cachelb_{name}", {"model": "", "part": "whole", **labels})

    (stats,) = router.policy.learned_stats()
    assert router.stats().learned == (stats,)
    assert value("learned_samples_total") == 400
    assert value("learned_rounds_total", result="swapped") == stats.rounds["swapped"]
    assert value("learned_dropped_rewards_total", reason="missing") == 0
    assert value("learned_model_version") == stats.version
    assert value("learned_holdout_error") == pytest.approx(stats.mae)


def test_configurations_name_its_options(tmp_path: Path) -> None:
    clock = Clock()
    router = fleet(clock)
    serve(router, clock, 250, by_gpu)
    path = tmp_path / "m"
    router.policy.save_model(path)
    document = {"router": {"policy": "learned"}, "policy": {"k": 3, "model": str(path)}, "workers": ["a", "b"]}
    built = config.load(document).build()
    assert (built.policy.name, built.policy.learned_stats()[0].version) == ("learned", 1)
    assert policies.make("learned", tau_sat=0.5).name == "learned"


PF_EXITING = 0x4


def native_threads() -> int:
    """Count the threads that train. One that was joined is listed a moment longer, with the flag of those that exit."""
    count = 0
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # gone by now
            head, _, rest = stat.read_text().rpartition(")")
            count += head.partition("(")[2].startswith("cachelb-learned") and not int(rest.split()[6]) & PF_EXITING
    return count


BUSY: dict[str, Any] = {"n_min": 300, "theta": 300, "training": "background", "seed": 1}


def drive(router: Router[str], begin: int, requests: int) -> None:
    for i in range(begin, begin + requests):
        with router.select_worker(tokens=range(i, i + 64 + 16 * (i % 9))) as decision:
            decision.on_first_token()


def until(router: Router[str], check: Callable[[LearnedStats], bool]) -> None:
    deadline = time.monotonic() + 120
    i = 0
    while not check(router.policy.learned_stats()[0]):
        assert time.monotonic() < deadline
        drive(router, i, 10)
        i += 10


def test_threads_route_while_models_are_trained_and_swapped() -> None:
    router = flat_router(WORKERS, BUSY, policy="learned")
    with beside(partial(drive, router, requests=1_000), range(0, 40_000, 10_000)):
        pass
    router.validate()
    (stats,) = router.policy.learned_stats()
    assert (stats.samples, stats.pending) == (4_000, 0)
    until(router, lambda stats: sum(stats.rounds.values()) > 0)
    assert router.policy.learned_stats()[0].rounds["failed"] == 0
    del router
    gc.collect()
    assert native_threads() == 0


def test_rewards_that_cannot_be_are_counted() -> None:
    clock = Clock()
    router = fleet(clock)
    decision = router.select_worker(tokens=range(64))
    clock.now += 3_500
    decision.on_first_token()
    clock.now += 100
    late = router.select_worker(tokens=range(64))
    clock.now += 3_601
    late.on_first_token()
    (stats,) = router.policy.learned_stats()
    assert (stats.samples, stats.dropped["absurd"]) == (1, 1)
