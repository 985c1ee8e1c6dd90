"""The poller against real servers on loopback: what it reports, and what misbehaving workers do to it."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.models.metrics_pages import sglang_page, vllm_page
from tests.models.metrics_server import DEADLINE_S, FakeEngine, RecordingRouter, eventually, polling, reserved_port

from cachelb.sources import MetricsSource
from cachelb.sources.poller import pause_s

Attach = Callable[..., MetricsSource]


@pytest.fixture
def attach() -> Iterator[Attach]:
    """Start sources, and see that stopping them leaves no thread."""
    with contextlib.ExitStack() as stack:
        yield lambda router, **options: stack.enter_context(polling(router, **options))
    gc.collect()  # a socket that was left open would warn here
    assert [thread.name for thread in threading.enumerate() if thread.name == "cachelb-metrics"] == []


def test_reports_of_every_worker_arrive_with_their_age(attach: Attach) -> None:
    with FakeEngine(vllm_page(running=(3.0,))) as first, FakeEngine(sglang_page(running=7.0)) as second:
        router = RecordingRouter(first.key, second.key)
        source = attach(router)
        report = router.wait_for(first.key, running=3, waiting=1, kv_usage=0.25, queued_tokens=None)
        assert 0.0 < report["age_s"] < DEADLINE_S
        router.wait_for(second.key, running=7, waiting=2)
        assert {key: worker.engine for key, worker in source.stats().workers.items()} == {
            first.key: "vllm",
            second.key: "sglang",
        }


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        pytest.param(b"<html>secret</html>", "no metrics page", id="another page"),
        pytest.param(b"\n", "empty page", id="empty"),
        pytest.param(b'secret{secret="secret"} 1\n', "no known metrics", id="metrics of something else"),
    ],
)
def test_page_without_a_known_metric_is_counted_and_logged_once_and_is_no_failure(
    attach: Attach, caplog: pytest.LogCaptureFixture, page: bytes, fault: str
) -> None:
    with FakeEngine(page) as engine, FakeEngine(page) as other:
        router = RecordingRouter(engine.key, other.key)
        source = attach(router)
        eventually(lambda: sum(worker.unknown >= 3 for worker in source.stats().workers.values()) == 2)
        polls = source.stats().workers[engine.key]
        assert (polls.failures, polls.readable, polls.last_error, polls.engine) == (0, False, fault, None)
        assert router.reports == []
        engine.page = vllm_page()
        router.wait_for(engine.key, running=3)
        engine.page = page
        seen = polls.unknown
        eventually(lambda: source.stats().workers[engine.key].unknown > seen + 1)
    said = [record.message for record in caplog.records if record.levelname == "WARNING" and fault in record.message]
    assert sorted(key for key in (engine.key, other.key) for message in said if key in message) == sorted(
        (engine.key, other.key)
    )
    assert "secret" not in caplog.text


def test_age_counts_from_the_request_when_the_answer_is_late(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        engine.may_answer.clear()
        router = RecordingRouter(engine.key)
        attach(router)
        eventually(lambda: len(engine.requests) == 1)
        threading.Timer(0.2, engine.may_answer.set).start()
        assert router.wait_for(engine.key)["age_s"] >= 0.1


def test_one_connection_serves_many_polls(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        attach(RecordingRouter(engine.key))
        eventually(lambda: len(engine.requests) >= 10)
        assert len(engine.connections) == 1


def test_server_that_closes_after_each_answer_is_polled_without_failures(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        engine.closes_after_answer = True
        source = attach(RecordingRouter(engine.key))
        eventually(lambda: len(engine.connections) >= 5)
        assert source.stats().failures == 0


def test_slow_worker_delays_only_itself(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as slow, FakeEngine(vllm_page()) as quick:
        slow.may_answer.clear()
        router = RecordingRouter(slow.key, quick.key)
        attach(router)
        eventually(lambda: len(slow.requests) == 1)
        for _ in range(5):
            router.wait_for(quick.key)
        assert router.count(slow.key) == 0
        slow.may_answer.set()
        router.wait_for(slow.key)


def test_hanging_worker_times_out_and_comes_back(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cachelb.sources.metrics")
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter(engine.key)
        source = attach(router, timeout_s=0.5)
        router.wait_for(engine.key)
        engine.may_answer.clear()
        eventually(lambda: source.stats().workers[engine.key].readable is False and source.stats().failures >= 2)
        assert source.stats().workers[engine.key].last_error == "TimeoutError"
        engine.may_answer.set()
        router.wait_for(engine.key)
        eventually(lambda: source.stats().workers[engine.key].readable is True)
    assert [record.levelname for record in caplog.records][:2] == ["WARNING", "INFO"]


def test_dead_worker_is_logged_once_and_keeps_nobody_waiting(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    with reserved_port() as port, FakeEngine(vllm_page()) as alive:
        dead = f"http://127.0.0.1:{port}"
        router = RecordingRouter(dead, alive.key)
        source = attach(router)
        eventually(lambda: source.stats().failures >= 4)
        for _ in range(5):
            router.wait_for(alive.key)
        assert source.stats().workers[dead].last_error == "ConnectionRefusedError"
        assert source.stats().workers[alive.key].failures == 0
        assert router.count(dead) == 0
    assert [record.message for record in caplog.records if dead in record.message] == [
        f"the metrics page of {dead} is not readable: ConnectionRefusedError"
    ]


@pytest.mark.parametrize(
    ("interval_s", "took_s", "failures", "expected"),
    [
        pytest.param(0.1, 0.02, 0, 0.08, id="the rest of the interval"),
        pytest.param(0.1, 0.07, 0, 0.07, id="a slow page: at most half of the time"),
        pytest.param(0.1, 0.3, 0, 0.3, id="slower than the interval"),
        pytest.param(0.1, 1.0, 1, 0.2, id="first failure"),
        pytest.param(0.1, 1.0, 3, 0.8, id="doubled each time"),
        pytest.param(0.1, 1.0, 99, 5.0, id="up to five seconds"),
        pytest.param(30.0, 1.0, 9, 30.0, id="never below the interval"),
    ],
)
def test_pause_between_two_polls(interval_s: float, took_s: float, failures: int, expected: float) -> None:
    assert pause_s(interval_s, took_s, failures) == pytest.approx(expected)


def test_workers_added_and_removed_are_followed(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as first, FakeEngine(vllm_page()) as second:
        router = RecordingRouter(first.key)
        source = attach(router)
        router.wait_for(first.key)
        router.current = [second.key]
        router.wait_for(second.key)
        eventually(lambda: list(source.stats().workers) == [second.key])
        polled = len(first.requests)
        for _ in range(5):
            router.wait_for(second.key)
        assert len(first.requests) <= polled + 1
        assert source.stats().polls > source.stats().workers[second.key].polls


@pytest.mark.parametrize(
    ("page", "status", "error"),
    [
        pytest.param(b"busy", 503, "HTTP 503", id="status"),
        pytest.param(b"", 204, "HTTP 204", id="nothing"),
    ],
)
def test_answer_without_metrics_is_a_named_failure(attach: Attach, page: bytes, status: int, error: str) -> None:
    with FakeEngine(page) as engine:
        engine.status = status
        router = RecordingRouter(engine.key)
        source = attach(router)
        eventually(lambda: source.stats().failures >= 2)
        assert source.stats().workers[engine.key].last_error == error
        assert router.reports == []


def test_facts_are_told_once_and_again_when_they_change(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter(engine.key)
        attach(router)
        for _ in range(3):
            router.wait_for(engine.key)
        assert router.facts == [(engine.key, 4096, 16)]
        engine.page = vllm_page(config='block_size="16",num_gpu_blocks="5000"')
        eventually(lambda: router.facts[1:] == [(engine.key, 5000, 16)])


def test_refused_facts_are_logged_once_and_polling_goes_on(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter(engine.key, block_size=32)
        source = attach(router)
        for _ in range(3):
            router.wait_for(engine.key)
        assert (source.stats().workers[engine.key].refused, source.stats().failures) == (1, 0)
    assert [record.message for record in caplog.records if "block size" in record.message] == [
        (
            f"the router refuses what the engine of {engine.key} states: "
            f"block size 16 of {engine.key} is not the router's 32"
        )
    ]


def test_router_that_fails_on_a_report_is_logged_once_and_polling_goes_on(
    attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(RecordingRouter):
        def update_load(self, worker: str, **report: Any) -> None:
            raise TypeError("no such argument")

    with FakeEngine(vllm_page()) as engine:
        source = attach(Failing(engine.key))
        eventually(lambda: source.stats().polls >= 3)
        assert source.stats().workers[engine.key].refused >= 2
    assert [bool(record.exc_info) for record in caplog.records if "no such argument" in record.message] == [True]


def test_rates_come_from_the_counters_of_successive_pages(attach: Attach) -> None:
    with FakeEngine(vllm_page(prefill=(1_000.0, 2.0))) as engine:
        router = RecordingRouter(engine.key)
        attach(router)
        assert router.wait_for(engine.key)["prefill_tps"] is None
        engine.page = vllm_page(prefill=(9_000.0, 4.0))
        assert router.wait_for(engine.key, prefill_tps=4_000.0)["prefill_tps"] == 4_000.0


def test_stop_returns_while_a_worker_hangs(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        engine.may_answer.clear()
        source = attach(RecordingRouter(engine.key), timeout_s=600.0)
        eventually(lambda: len(engine.requests) == 1)
        stopper = threading.Thread(target=source.stop)
        stopper.start()
        stopper.join(DEADLINE_S)
        assert not stopper.is_alive()
        assert not any(thread.name == "cachelb-metrics" for thread in threading.enumerate())


def test_a_report_may_stop_the_source_it_comes_from() -> None:
    class Stopping(RecordingRouter):
        def update_load(self, worker: str, **report: Any) -> None:
            source.stop()
            super().update_load(worker, **report)

    source = MetricsSource(interval_s=0.005, timeout_s=20.0)
    with FakeEngine(vllm_page()) as engine:
        router = Stopping(engine.key)
        source.start(router)
        eventually(lambda: all(thread.name != "cachelb-metrics" for thread in threading.enumerate()))
        assert router.count(engine.key) == 1


def test_source_stops_twice_and_starts_again(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter(engine.key)
        source = attach(router)
        router.wait_for(engine.key)
        with pytest.raises(RuntimeError, match="one MetricsSource per router"):
            source.start(router)
        source.stop()
        source.stop()
        assert source.stats().polls == 0
        source.start(router)
        router.wait_for(engine.key)


def test_password_and_headers_are_sent_and_never_logged(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeEngine(vllm_page()) as engine:
        key = engine.key.replace("http://", "http://user:hunter2@")
        router = RecordingRouter(key)
        attach(router, headers={"X-Token": "s3cret"})
        router.wait_for(key)
        engine.status = 500
        eventually(lambda: "not readable: HTTP 500" in caplog.text)
        assert engine.requests[0]["Authorization"] == "Basic dXNlcjpodW50ZXIy"
        assert (engine.requests[0]["X-Token"], engine.paths[0]) == ("s3cret", "/metrics")
    assert "hunter2" not in caplog.text
    assert "s3cret" not in caplog.text
    assert f"127.0.0.1:{engine.port}" in caplog.text


def test_url_function_says_where_the_page_is(attach: Attach) -> None:
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter("gpu0", "gpu1")
        source = attach(router, url={"gpu0": f"{engine.key}/prometheus/metrics?x=1", "gpu1": None}.get)
        router.wait_for("gpu0")
        assert set(engine.paths) == {"/prometheus/metrics?x=1"}
        assert source.stats().workers["gpu1"].polls == 0
        assert source.stats().workers["gpu1"].failures == 0


@pytest.mark.parametrize("key", ["gpu0", "http://user:hunter2@[x", "http://gpu0:x"])
def test_key_that_is_no_address_is_named_and_others_are_polled(
    attach: Attach, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    with FakeEngine(vllm_page()) as engine:
        router = RecordingRouter(key, engine.key)
        source = attach(router)
        eventually(lambda: source.stats().failures >= 1)
        router.wait_for(engine.key)
        assert source.stats().workers[key].last_error == "no metrics URL"
    assert f"of {key.replace('user:hunter2@', '')} is not readable" in caplog.text
    assert "hunter2" not in caplog.text


def test_router_that_breaks_once_does_not_end_polling(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(RecordingRouter):
        errors = 2

        def keys(self) -> list[str]:
            if self.errors:
                self.errors -= 1
                raise RuntimeError("not now")
            return super().keys()

    with FakeEngine(vllm_page()) as engine:
        router = Breaking(engine.key)
        attach(router)
        router.wait_for(engine.key)
    assert sum("not now" in (record.exc_text or "") for record in caplog.records) == 1
