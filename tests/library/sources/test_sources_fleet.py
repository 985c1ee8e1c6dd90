"""Load sources against the fake fleet: the router receives the load that engines show."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.http_client import complete
from tests.models.metrics_server import RecordingRouter, polling
from tests.threads import one_runs_one_waits

from cachelb.sources import LoadReport, parse_orca
from cachelb_fakes import FakeFleet

PROMPT = "word" * 64


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("uds", [False, True], ids=["tcp", "unix"])
def test_router_hears_who_runs_and_who_waits(engine: Literal["vllm", "sglang"], *, uds: bool) -> None:
    with FakeFleet(2, engine=engine, uds=uds, max_running=1, kv_blocks=10) as fleet:
        busy, idle = fleet.workers
        router = RecordingRouter(busy.url, idle.url)
        with polling(router):
            with one_runs_one_waits(fleet, busy, PROMPT):
                router.wait_for(busy.url, running=1, waiting=1, kv_usage=0.5)
                router.wait_for(idle.url, running=0, waiting=0, kv_usage=0.0)
            router.wait_for(busy.url, running=0, waiting=0, kv_usage=0.0)
        assert sorted(router.facts) == sorted([(busy.url, 10, 16), (idle.url, 10, 16)])


@pytest.mark.parametrize("form", ["JSON", "TEXT"])
def test_response_header_has_the_load_of_the_moment(form: str) -> None:
    with FakeFleet(1) as fleet:
        url = fleet.workers[0].url
        with_report = complete(url, PROMPT, {"endpoint-load-metrics-format": form})
        without = complete(url, PROMPT)
    report = parse_orca(with_report.headers.items())
    assert report is not None
    assert report == LoadReport(waiting=0, kv_usage=report.kv_usage)
    assert report.kv_usage is not None
    assert parse_orca(without.headers.items()) is None
