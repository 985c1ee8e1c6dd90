"""Metrics of a router, through the real clients: names, values, series that vanish, nothing per request."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cachelb import Router
from cachelb.common.measure import measures
from cachelb.metrics import PrometheusCollector, instrument
from cachelb.metrics.families import families
from cachelb.stats.events import KvEventStats

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def router() -> Router[str]:
    return Router(["a", "b"], policy="cache-aware", seed=1, shadow=["random", "random"])


@pytest.fixture
def registry(router: Router[str]) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(PrometheusCollector(router))
    return made


def scrape(registry: CollectorRegistry) -> Samples:
    page = generate_latest(registry).decode()
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def exercise(router: Router[str]) -> Any:
    router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
    router.select_worker(tokens=range(100)).on_complete(cached_tokens=90)
    router.select_worker(tokens=range(500, 600)).on_error(500)
    router.load_sink.update_load("a", running=3, waiting=1, kv_usage=0.5)
    router.set_ready("b", False)
    return router.select_worker(tokens=range(64), among=["a"])


def test_the_page_says_what_happened(router: Router[str], registry: CollectorRegistry) -> None:
    open_decision = exercise(router)
    page = scrape(registry)
    for name, labels, value in (
        ("cachelb_funnel_requests_total", {}, 2),
        ("cachelb_funnel_tokens_total", {"step": "prompt"}, 200),
        ("cachelb_funnel_tokens_total", {"step": "best_matched"}, 96),
        ("cachelb_funnel_tokens_total", {"step": "selected_matched"}, 96),
        ("cachelb_funnel_tokens_total", {"step": "engine_cached"}, 90),
        ("cachelb_decisions_total", {"policy": "cache-aware", "reason": "prefix"}, 1),
        ("cachelb_requests_total", {"outcome": "completed"}, 2),
        ("cachelb_requests_total", {"outcome": "failed"}, 1),
        ("cachelb_abandoned_total", {}, 0),
        ("cachelb_no_worker_total", {}, 0),
        ("cachelb_open_requests", {}, 1),
        ("cachelb_inflight", {"worker": "a"}, 1),
        ("cachelb_inflight", {"worker": "b"}, 0),
        ("cachelb_worker_running", {"worker": "a"}, 3),
        ("cachelb_worker_kv_usage", {"worker": "a"}, 0.5),
        ("cachelb_worker_state", {"worker": "a", "state": "ready"}, 1),
        ("cachelb_worker_state", {"worker": "b", "state": "not ready"}, 1),
        ("cachelb_evictions_total", {"cause": "failed"}, 6),
        ("cachelb_kv_dropped_total", {"reason": "conflict"}, 0),
        ("cachelb_shadow_decisions_total", {"policy": "random"}, 4),
        ("cachelb_shadow_decisions_total", {"policy": "random#2"}, 4),
        ("cachelb_select_seconds_count", {}, 1),
        ("cachelb_select_seconds_bucket", {"le": "+Inf"}, 1),
    ):
        assert page[of(name, **labels)] == value, (name, labels)
    blocks = router.stats().workers[0].index_blocks
    assert page[of("cachelb_index_blocks", worker="a", medium="gpu", state="speculative")] == blocks["gpu"]
    assert of("cachelb_worker_running", worker="b") not in page
    assert page[of("cachelb_index_bytes")] > 0
    open_decision.cancel()


def test_buckets_add_up(router: Router[str], registry: CollectorRegistry) -> None:
    for _ in range(20):
        router.select_worker(by_load=True).cancel()
    page = scrape(registry)
    histogram = router.stats().select_seconds
    cumulated = [page[of("cachelb_select_seconds_bucket", le=str(bound))] for bound in histogram.bounds]
    assert cumulated == [sum(histogram.counts[: i + 1]) for i in range(len(histogram.bounds))]
    assert page[of("cachelb_select_seconds_sum")] == histogram.sum
    assert page[of("cachelb_select_seconds_count")] == 3


def test_the_page_is_valid_openmetrics_too(router: Router[str], registry: CollectorRegistry) -> None:
    exercise(router).cancel()
    page = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]  # typed in part
    assert page.endswith("# EOF\n")
    assert 'cachelb_requests_total{outcome="completed"} 2.0' in page


def test_ranks_of_a_worker_are_told_apart(registry: CollectorRegistry, router: Router[str]) -> None:
    router.add_worker("c", dp_size=2)
    page = scrape(registry)
    assert page[of("cachelb_inflight", worker="c", dp_rank="0")] == 0
    assert page[of("cachelb_inflight", worker="c", dp_rank="1")] == 0


def test_every_family_has_its_own_name_and_one_row_per_set_of_labels(router: Router[str]) -> None:
    exercise(router).cancel()
    told = list(families(router.stats()))
    assert len({family.name for family in told}) == len(told)
    for family in told:
        labels = [row[0] for row in family.rows]
        assert len(set(labels)) == len(labels), family.name
        assert all(len(values) == len(family.labels) for values in labels), family.name


def test_help_is_the_description_of_the_field_however_its_docstring_is_indented() -> None:
    measured = measures(KvEventStats)
    assert measured[0].help.startswith('"starting" until the first replay is over;')
    assert measured[0].help.endswith('"refused" if no event of the engine can be used.')
    dedented = type("Dedented", (KvEventStats,), {"__doc__": cleandoc(KvEventStats.__doc__ or "")})
    assert measures(dedented) == measured


def test_nothing_is_read_until_somebody_asks() -> None:
    router = Router(["a"])
    counting = Mock(stats=Mock(side_effect=router.stats))
    collector = PrometheusCollector(counting)
    reader = InMemoryMetricReader()
    instrument(counting, MeterProvider([reader]).get_meter("cachelb"))
    counting.stats.reset_mock()
    router.select_worker(by_load=True).on_complete()
    assert counting.stats.call_count == 0
    list(collector.collect())
    assert counting.stats.call_count == 1
    for collection in (2, 3):
        reader.collect()
        assert counting.stats.call_count == collection


# --- OpenTelemetry ---


@pytest.fixture
def reader(router: Router[str]) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instrument(router, provider.get_meter("cachelb"))
    yield reader
    provider.shutdown()


def collect(reader: InMemoryMetricReader) -> Samples:
    data: Any = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    return {
        (metric.name, frozenset((key, str(value)) for key, value in (point.attributes or {}).items())): point.value
        for scope in scopes
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_opentelemetry_says_the_same_as_prometheus(
    router: Router[str], registry: CollectorRegistry, reader: InMemoryMetricReader
) -> None:
    def renamed(name: str) -> str:
        return (
            name.removesuffix("_total").replace("cachelb_", "cachelb.", 1).replace("select_seconds_", "select_seconds.")
        )

    def assert_equal(*, with_b: bool) -> None:
        told = scrape(registry)
        prometheus = {(renamed(name), labels): told[name, labels] for name, labels in told if "age_seconds" not in name}
        assert {key: value for key, value in collect(reader).items() if "age_seconds" not in key[0]} == prometheus
        assert any(("worker", "b") in labels for _, labels in prometheus) == with_b

    exercise(router).cancel()
    assert_equal(with_b=True)
    router.remove_worker("b")
    assert_equal(with_b=False)


def test_a_meter_does_not_keep_a_router_alive() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    router = Router(["a"])
    instrument(router, provider.get_meter("cachelb"))
    assert collect(reader)
    del router
    assert collect(reader) == {}
    provider.shutdown()
