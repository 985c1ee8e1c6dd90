"""A load source attached to the router."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from tests.library.router.test_router_fork import in_child
from tests.models.metrics_pages import vllm_page
from tests.models.metrics_server import DEADLINE_S, FakeEngine, eventually

from cachelb import Router
from cachelb.metrics.families import families
from cachelb.sources import MetricsSource


def polling_thread_runs() -> bool:
    return any(thread.name == "cachelb-metrics" for thread in threading.enumerate())


def test_router_knows_what_the_engine_reports_until_it_is_closed() -> None:
    page = vllm_page(running=(5.0,), waiting=(2.0,), usage=(0.5,))
    with FakeEngine(page) as engine, Router([engine.key], block_size=16) as router:
        router.attach(MetricsSource(interval_s=0.005, timeout_s=20.0))
        eventually(lambda: router.stats().workers[0].running is not None)
        worker = router.stats().workers[0]
        assert (worker.running, worker.waiting, worker.kv_usage) == (5, 2, 0.5)
        assert worker.report_age_s is not None
        assert 0.0 <= worker.report_age_s < DEADLINE_S
        assert polling_thread_runs()
    assert not polling_thread_runs()


@pytest.mark.parametrize(
    ("dp_size", "page_ranks", "kv_blocks"), [(1, 1, 4096), (1, 2, 8192), (2, 2, 4096), (2, 1, 4096)]
)
def test_each_rank_of_a_router_has_the_blocks_of_one(dp_size: int, page_ranks: int, kv_blocks: int) -> None:
    learned: list[int] = []

    class Recorder(Router[str]):
        @property
        def load_sink(self) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(super().load_sink, name)

        def learn_worker(self, worker: str, **facts: Any) -> None:
            super().load_sink.learn_worker(worker, **facts)
            learned.extend(facts[name] for name in ("kv_blocks",) if name in facts)

    page = vllm_page(running=(1.0,) * page_ranks, waiting=(0.0,) * page_ranks, usage=(0.0,) * page_ranks)
    with FakeEngine(page) as engine, Recorder(block_size=16) as router:
        router.add_worker(engine.key, dp_size=dp_size)
        router.attach(MetricsSource(interval_s=0.005, timeout_s=20.0))
        eventually(lambda: learned != [])
    assert learned == [kv_blocks]


def test_polls_of_attached_sources_are_counted_and_exported() -> None:
    with FakeEngine(vllm_page()) as one, FakeEngine(b"") as other, Router([one.key, other.key]) as router:
        assert router.stats().polls == {}
        source = MetricsSource(interval_s=0.005, timeout_s=20.0)
        router.attach(source)
        eventually(lambda: [router.stats().polls.get(key) is not None for key in (one.key, other.key)] == [True, True])
        eventually(lambda: router.stats().polls[one.key].readable and router.stats().polls[other.key].unknown > 1)
        rows = {family.name: dict(family.rows) for family in families(router.stats())}
        assert rows["poll_unknown"][other.key,] >= 2
        assert (rows["poll_unknown"][one.key,], rows["poll_failures"][other.key,]) == (0, 0)
        assert rows["worker_engine"] == {(one.key, "", "vllm"): 1}
        router.detach(source)
        assert router.stats().polls == {}


def test_engine_with_another_block_size_is_named_and_its_load_still_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "cachelb.sources.metrics")
    with FakeEngine(vllm_page()) as engine, Router([engine.key], block_size=24) as router:
        source = MetricsSource(interval_s=0.005, timeout_s=20.0)
        router.attach(source)
        eventually(lambda: source.stats().workers.get(engine.key) is not None and source.stats().polls > 3)
        assert source.stats().workers[engine.key].refused == 1
        assert (router.stats().workers[0].running, router.stats().workers[0].engine) == (3, "vllm")
    assert [record.message for record in caplog.records if "blocks of 16 tokens" in record.message] != []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # threads at a fork are what this is about
def test_forked_child_polls_for_its_own_router() -> None:
    with FakeEngine(vllm_page()) as engine, Router([engine.key]) as router:
        router.attach(MetricsSource(interval_s=0.005, timeout_s=20.0))
        eventually(lambda: router.stats().workers[0].running is not None)
        engine.page = vllm_page(running=(8.0,))

        def child() -> None:
            eventually(lambda: router.stats().workers[0].running == 8)
            router.close()

        in_child(child)
        eventually(lambda: router.stats().workers[0].running == 8)
