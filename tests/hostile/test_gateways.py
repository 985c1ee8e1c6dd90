"""Gateways against clients and workers that hold on to them; more of `cachelb serve` is in tests/gateway/serve."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.gateways import GATEWAYS
from tests.http_client import DEADLINE_S, JSON, complete, connect
from tests.programs import example

from cachelb import Router
from cachelb_fakes import FakeFleet

LIMITS = {"starlette": {}, "serve": {"max_body_bytes": 4 << 20}}
PROMPT = "Amazingly few discotheques provide jukeboxes. " * 30


def begin_body(url: str, body: bytes, length: int) -> socket.socket:
    """Send the head of a request and a part of its body."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_sigterm_ends_pairs_with_stalled_workers_within_the_grace_and_keeps_the_snapshot(tmp_path: Path) -> None:
    config, snapshot = tmp_path / "gateway.json", tmp_path / "router.snapshot"
    with FakeFleet(2) as fleet:
        # So that a prompt is always computed by the prefill worker, which stalls.
        options = {"secret": "known to all gateways", "pd_uncached_token_threshold": 0}
        workers = [{"url": url, "role": role} for url, role in zip(fleet.urls, ("prefill", "decode"), strict=True)]
        config.write_text(json.dumps({"router": options, "workers": workers, "load": {}}))
        words = ("--config", str(config), "--snapshot", str(snapshot), "--grace-s", "1")
        with example("pd_gateway", *words) as (process, _, url), contextlib.ExitStack() as held:
            assert complete(url, PROMPT, max_tokens=1).status == 200
            fleet.fail("stall")
            for _ in range(3):
                stalled = held.enter_context(contextlib.closing(connect(url)))
                stalled.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "stream": True}), JSON)
            held.enter_context(begin_body(url, b"{", 100))
            fleet.wait_for(lambda: fleet.workers[0]._replica.counts.faults["stall"] == 3, timeout_s=DEADLINE_S)
            process.send_signal(signal.SIGTERM)
            # Less than the servers' own grace: a minute, or without end.
            assert process.wait(50) in {0, -signal.SIGTERM}
            fleet.wait_for(
                lambda: not any(worker._replica.counts.open for worker in fleet.workers), timeout_s=DEADLINE_S
            )
    assert snapshot.stat().st_size > 0


@pytest.mark.parametrize("name", LIMITS)
def test_body_over_the_limit_is_refused_before_it_is_there(name: str) -> None:
    with FakeFleet(1) as fleet, GATEWAYS[name](Router(fleet.urls), **LIMITS[name]) as url:
        with begin_body(url, b" " * (4 << 20) + b"x", 1 << 40) as connection:
            assert connection.recv(64).startswith(b"HTTP/1.1 413")
        assert complete(url, PROMPT, max_tokens=1).status == 200
        assert fleet.workers[0].counts.started == 1
