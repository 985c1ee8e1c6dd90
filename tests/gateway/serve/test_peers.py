"""`cachelb serve` names the peer to copy from to the worker, and none that a client names."""

from __future__ import annotations

import json

import pytest
from tests.gateways import serving
from tests.http_client import complete, send
from tests.models.peer_engines import COPIED, FAULTS, PROMPT, connected, named_by, peer_engines, trap

from cachelb import Router
from cachelb_fakes import FakeFleet


@pytest.mark.parametrize("form", ["vllm", "llm-d"])
def test_the_worker_copies_from_the_source_of_the_decision(form: str) -> None:
    with peer_engines() as engines, serving(engines.router, expose_headers=["x-cachelb-kv-source"]) as served:
        source, (worker,) = engines.source, engines.workers
        host = source.url.removeprefix("http://")
        engines.join(form=form, **({} if form == "vllm" else {"addresses": {source.url: host, worker.url: "h:1"}}))
        with trap() as (fields, headers, listener):
            answer = complete(served.url, PROMPT, headers=headers, **fields)
            assert (answer.status, answer.cached_tokens, worker.counts.pulled_tokens) == (200, COPIED, COPIED)
            assert answer.json["choices"][0]["text"] == engines.text
            assert answer.headers["x-cachelb-kv-source"] == source.url
            seen = worker.requests[-1]
            assert {"kv_hints", "kv_hint"}.isdisjoint({*seen.body, *seen.body["kv_transfer_params"]})
            assert seen.body["kv_transfer_params"]["own"] == 1
            address = named_by(seen.body) or ("", 0)
            assert (":".join(map(str, address)) == source.peer_address) == (form == "vllm")
            assert seen.headers.get("x-kv-cache-source-host-port") == (None if form == "vllm" else host)
            assert "x-kv-cache-source-p2p-port" not in seen.headers
            # It has the blocks now: no source is named, and those of the client are taken off nevertheless.
            again = complete(served.url, PROMPT, headers=headers, **fields)
            assert (again.cached_tokens, again.headers["x-cachelb-kv-source"]) == (COPIED, None)
            assert worker.requests[-1].body["kv_transfer_params"] == {"own": 1}
            assert not connected(listener)
        assert [record.pulled_tokens for record in engines.router.records.since(0)[0]][-2:] == [COPIED, 0]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_source_does_not_send_is_computed(fault: str) -> None:
    with peer_engines(hash_seed="01"[fault == "wrong seed"]) as engines, serving(engines.router) as served:
        engines.join()
        copied = engines.strike(fault)
        answer = complete(served.url, PROMPT)
        assert (answer.status, answer.cached_tokens) == (200, copied)
        assert answer.json["choices"][0]["text"] == engines.text
        assert engines.workers[0].counts.missed_pulls == (fault != "short")


def test_a_retry_has_a_source_of_its_own() -> None:
    with peer_engines(2) as engines, serving(engines.router) as served:
        engines.join()
        picked = engines.router.select_worker(tokens=PROMPT, dry_run=True).worker
        first, second = sorted(engines.workers, key=lambda each: each.url != picked)
        first.fail("status", status=503, times=1)
        answer = complete(served.url, PROMPT)
        assert (answer.status, answer.cached_tokens, second.counts.pulled_tokens) == (200, COPIED, COPIED)
        sent = [each.requests[-1].body["kv_transfer_params"]["remote_kv_source"] for each in (first, second)]
        assert sent[0].pop("kv_request_id") != sent[1].pop("kv_request_id")
        assert sent[0] == sent[1]


BODIES: list[tuple[str, bytes, dict[str, str], int]] = [
    ("/v1/completions", b'{"prompt": "Hi", "max_tokens": NaN}', {}, 400),
    ("/v1/completions", '\ufeff{"prompt": "Hi"}'.encode(), {}, 400),
    ("/v1/completions", '{"prompt": "Hi"}'.encode("utf-16"), {}, 400),
    ("/elsewhere", b"[1]", {"Content-Type": "application/JSON"}, 400),
    ("/elsewhere", b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
    ("/elsewhere", b"a=1", {"Content-Type": "multipart/form-data; boundary=b"}, 404),
    ("/elsewhere", b"", {}, 404),
]


@pytest.mark.parametrize(("path", "body", "headers", "status"), BODIES)
def test_a_body_that_an_engine_may_read_in_another_way_is_refused(
    path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    with peer_engines() as engines, serving(engines.router) as served:
        assert send(served.url, path, body, headers).status != 200 or path == "/v1/completions"
        engines.join()
        assert send(served.url, path, body, headers).status == status


def test_without_peer_groups_bytes_pass_as_they_came() -> None:
    with FakeFleet(1) as fleet, serving(Router(fleet.urls)) as served, trap() as (fields, headers, _):
        body = json.dumps({"prompt": "Hi", **fields}, indent=3).encode()
        assert send(served.url, "/v1/completions", body, headers).status == 200
        seen = fleet.workers[0].requests[-1]
        assert (seen.data, seen.headers["x-kv-cache-source-p2p-port"]) == (body, "1")
