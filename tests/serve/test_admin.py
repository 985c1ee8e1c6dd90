"""The admin address: who may use it, and selections in the shapes of Dynamo's selector."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.gateways import Served, serving, wait_until
from tests.http_client import complete, connect, send

from cachelb import Router
from cachelb.cli.app import app
from cachelb.metrics import CONTENT_TYPE
from cachelb.serve.selector import Selector, worker_id
from cachelb.testing import FakeFleet

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


def post(served: Served, path: str, **fields: object) -> Any:
    answer = send(served.admin_url, path, fields)
    assert answer.status in {200, 201}, answer.body
    return answer.json


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
    assert [row["worker_id"] for row in dump["workers"]] == [worker_id(url) for url in URLS]
    assert {row["endpoint"]: row["inflight"] for row in dump["workers"]}[decision.key] == 1
    assert dump["stats"]["decisions"] == {"adaptive/cold": 1}
    assert dump["stats"]["open_requests"] == 1


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"bearer {TOKEN}", TOKEN, "Bearer é"])
def test_token_is_asked_for_on_every_path(given: str | None) -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls), token=TOKEN) as served:
        headers = {} if given is None else {"Authorization": given}
        for path in ("/metrics", "/dump", "/health", "/ready", "/none"):
            assert send(served.admin_url, path, headers=headers).status == 401
        assert send(served.admin_url, "/select", {"token_ids": [1]}, headers).status == 401
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
    assert send(served.admin_url, "/select", {"token_ids": [1]}, {"Origin": "http://evil"}).status == 403


def test_select_books_nothing_and_its_id_can_be_reserved(served: Served, router: Router[str]) -> None:
    router.select_worker(tokens=TOKENS).on_complete()
    selected = post(served, "/select", selection_id="s1", token_ids=TOKENS)
    assert router.stats().open_requests == 0
    holder = router.recent(1)[0].key
    assert selected == {
        "selection_id": "s1",
        "model_name": "default",
        "routing_group": "default",
        "worker_id": worker_id(holder),
        "dp_rank": 0,
        "endpoint": holder,
        "block_size": 16,
        "overlap": {"longest_matched": 96, "gpu": 96, "dp": {"0": 96}, "cpu": 96, "disk": 96},
        "isl_tokens": 100,
        "effective_prefill_tokens": 4,
        "reason": "prefix",
    }
    reserved = post(served, "/reservations", selection_id="s1")
    assert reserved == {name: selected[name] for name in reserved}
    assert router.loads()[holder] == 1
    assert call(served, "DELETE", "/reservations/s1") == 200
    assert call(served, "DELETE", "/reservations/s1") == 404
    assert router.stats().open_requests == 0
    assert send(served.admin_url, "/reservations", {"selection_id": "s1"}).status == 404


def test_life_of_a_reservation(served: Served, router: Router[str]) -> None:
    one = post(served, "/select_and_reserve", token_ids=TOKENS, selection_id="a/b")
    (row,) = [row for row in router.stats().workers if row.key == one["endpoint"]]
    assert (row.inflight, row.pending_prefill_tokens) == (1, 100)
    assert send(served.admin_url, "/select_and_reserve", {"token_ids": TOKENS, "selection_id": "a/b"}).status == 409
    assert call(served, "POST", "/reservations/a%2Fb/prefill_complete") == 200
    assert call(served, "POST", "/reservations/a%2Fb/output_block", {}) == 200
    (row,) = [row for row in router.stats().workers if row.key == one["endpoint"]]
    assert (row.pending_prefill_tokens, row.decode_blocks > 6) == (0, True)
    usage = {"cached_tokens": 16, "prompt_tokens": 100, "output_tokens": 9}
    assert call(served, "POST", "/reservations/a%2Fb/complete", usage) == 200
    (record,) = router.recent(1)
    assert (record.outcome, record.cached_tokens, record.output_tokens) == ("completed", 16, 9)
    other = post(served, "/select_and_reserve", token_ids=TOKENS)
    assert other["endpoint"] == one["endpoint"]
    assert len(other["selection_id"]) == 36


def test_reservation_names_its_worker(served: Served, router: Router[str]) -> None:
    for number, url in enumerate(URLS):
        fields: dict[str, Any] = {
            "selection_id": str(number),
            "worker_id": worker_id(url),
            "dp_rank": 0,
            "isl_tokens": 64,
        }
        reserved = post(served, "/reservations", sequence_hashes=[-1, 2, 3, 4], effective_prefill_tokens=9, **fields)
        assert reserved["endpoint"] == url
    assert router.loads() == dict.fromkeys(URLS, 1)
    asked = {"selection_id": "x", "worker_id": 5, "token_ids": [1]}
    assert send(served.admin_url, "/reservations", asked).status == 404


def test_prompts_as_bodies_and_hashes_and_choices_of_workers(served: Served) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "word " * 200}]}
    first = post(served, "/select_and_reserve", body=body)
    assert post(served, "/select", body=body)["overlap"]["longest_matched"] > 100
    for url in URLS:
        chosen: list[dict[str, Any]] = [
            {"pinned_worker": {"worker_id": worker_id(url), "dp_rank": 0}},
            {"allowed_worker_ids": [worker_id(url)]},
        ]
        for choice in chosen:
            assert post(served, "/select", body=body, **choice)["endpoint"] == url
    assert first["endpoint"] in URLS


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "one of token_ids"),
        ({"token_ids": "abc"}, "tokens"),
        ({"token_ids": [-1]}, "token"),
        ({"sequence_hashes": [1]}, "isl_tokens is required"),
        ({"sequence_hashes": ["x"], "isl_tokens": 16}, "sequence_hashes must be a list of integers"),
        ({"sequence_hashes": [10**40], "isl_tokens": 16}, "sequence_hashes must be a list of integers"),
        ({"token_ids": [1], "selection_id": "x" * 300}, "selection_id must be"),
        ({"token_ids": [1], "selection_id": 3}, "selection_id must be"),
        ({"token_ids": [1], "model_name": 3}, "model_name must be"),
        ({"token_ids": [1], "session_context": []}, ""),
        ({"token_ids": [1], "session_context": "x"}, "session_context must be"),
        ({"token_ids": [1], "expected_output_tokens": -1}, "expected_output_tokens"),
        ({"token_ids": [1], "strict_priority": "high"}, "priority"),
        ({"body": [1]}, "body must be an object"),
    ],
)
def test_bad_requests_name_what_is_wrong(served: Served, router: Router[str], fields: Any, word: str) -> None:
    answer = send(served.admin_url, "/select_and_reserve", fields)
    assert answer.status == (400 if word else 200)
    assert word in answer.json.get("error", "")
    assert router.stats().open_requests == (not word)


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"token_ids": ' + b"[1," * 2000])
def test_bodies_that_are_no_objects_are_refused(served: Served, body: bytes) -> None:
    assert send(served.admin_url, "/select", body).status == 400


def test_unknown_paths_and_methods(served: Served) -> None:
    assert [call(served, "GET", path) for path in ("/", "/v1/models", "/select", "/reservations/a")] == [
        404,
        404,
        405,
        405,
    ]
    assert call(served, "POST", "/metrics") == 405
    assert call(served, "POST", "/reservations/a/none") == 404


def test_without_workers_there_is_a_time_to_wait(served: Served, router: Router[str]) -> None:
    for url in URLS:
        router.set_ready(url, False)
    answer = send(served.admin_url, "/select_and_reserve", {"token_ids": [1]})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "gpu0" in answer.json["error"]


def test_reservations_end_with_the_gateway(router: Router[str]) -> None:
    with serving(router) as served:
        post(served, "/select_and_reserve", token_ids=TOKENS)
        assert router.stats().open_requests == 1
    assert router.stats().open_requests == 0


def test_forgotten_reservations_end_by_themselves_and_their_number_is_bounded(router: Router[str]) -> None:
    selector, begun = Selector(router, ttl_s=0.01, max_reservations=2), time.monotonic()
    selector.select_and_reserve({"token_ids": [1]})
    wait_until(lambda: time.monotonic() > begun + 0.02)
    selector.select_and_reserve({"token_ids": [1]})
    assert (len(selector), router.stats().open_requests) == (1, 1)
    selector = Selector(router, max_reservations=1)
    selector.select_and_reserve({"token_ids": [1]})
    with pytest.raises(Exception, match="1 reservations are held already"):
        selector.select_and_reserve({"token_ids": [1]})
    selector.close()


def test_gateway_and_selector_share_one_book() -> None:
    with FakeFleet(1) as fleet, serving(router := Router(fleet.urls)) as served:
        post(served, "/select_and_reserve", token_ids=TOKENS)
        complete(served.url, "word " * 100, max_tokens=1)
        assert router.stats().open_requests == 1
