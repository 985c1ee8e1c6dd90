"""The admin address: who may use it, and its state of the router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.commands import app
from tests.gateways import Served, serving
from tests.http_client import connect, send

from cachelb import Router
from cachelb.metrics import CONTENT_TYPE
from cachelb_fakes import FakeFleet

TOKENS = list(range(100))
URLS = ["http://gpu0:8000", "http://gpu1:8000"]
TOKEN = "a token of the tests"  # noqa: S105 - of these tests


@pytest.fixture
def router() -> Router[str]:
    return Router(URLS, seed=1)


@pytest.fixture
def served(router: Router[str]) -> Iterator[Served]:
    with serving(router) as found:
        yield found


def call(served: Served, method: str, path: str, body: object = None) -> int:
    connection = connect(served.admin_url)
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_metrics_page_is_what_watch_reads(served: Served, router: Router[str]) -> None:
    router.select_worker(tokens=TOKENS).on_complete()
    page = send(served.admin_url, "/metrics")
    shown = json.loads(CliRunner().invoke(app, ["watch", served.admin_url, "--once", "--json"]).output)
    assert page.headers["Content-Type"] == CONTENT_TYPE
    assert [worker["worker"] for worker in shown["workers"]] == URLS
    assert shown["decisions"] == [{"policy": "adaptive", "reason": "cold", "count": 1}]


def test_dump_has_statistics_and_workers(served: Served, router: Router[str]) -> None:
    with router.select_worker(tokens=TOKENS) as decision:
        dump = send(served.admin_url, "/dump").json
    assert [row["endpoint"] for row in dump["workers"]] == URLS
    assert {row["endpoint"]: row["inflight"] for row in dump["workers"]}[decision.key] == 1
    assert dump["stats"]["decisions"] == {"adaptive/cold": 1}
    assert dump["stats"]["open_requests"] == 1


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"bearer {TOKEN}", TOKEN, "Bearer é"])
def test_token_is_asked_for_on_every_path(given: str | None) -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls), token=TOKEN) as served:
        headers = {} if given is None else {"Authorization": given}
        for path in ("/metrics", "/dump", "/health", "/ready", "/none"):
            assert send(served.admin_url, path, headers=headers).status == 401
        assert send(served.admin_url, "/capture", {"seconds": 1}, headers).status == 401
        assert send(served.admin_url, "/dump", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        result = CliRunner().invoke(app, ["watch", served.admin_url, "--once"])
        assert "HTTP 401" in result.output


def test_watch_sends_the_token(tmp_path: Any) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with FakeFleet(1) as fleet, serving(Router(fleet.urls), token=TOKEN) as served:
        words = ["watch", served.admin_url, "--once", "--json", "--token-file", str(tmp_path / "token")]
        shown = json.loads(CliRunner().invoke(app, words).stdout)
        assert [worker["worker"] for worker in shown["workers"]] == fleet.urls


def test_page_in_a_browser_is_refused(served: Served) -> None:
    assert send(served.admin_url, "/dump", headers={"Origin": "http://evil"}).status == 403


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 50_000, b'{"seconds": ' + b"[1," * 2000])
def test_bodies_that_are_no_objects_are_refused(router: Router[str], body: bytes) -> None:
    with serving(router, capture=True) as served:
        assert send(served.admin_url, "/capture", body).status == 400
        assert send(served.admin_url, "/capture", b" " * (1 << 17)).status == 413


def test_unknown_paths_and_methods(served: Served) -> None:
    paths = ("/", "/v1/models", "/select", "/dump/a", "/capture")
    assert [call(served, "GET", path) for path in paths] == [404, 404, 404, 404, 405]
    assert call(served, "POST", "/metrics") == 405
    assert call(served, "POST", "/select_and_reserve") == 404
