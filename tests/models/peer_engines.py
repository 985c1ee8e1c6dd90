"""Engines that copy from each other, of which one holds a prompt that it takes no more requests for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from tests.http_client import complete
from tests.waiting import wait_until

from cachelb import Router
from cachelb.events import ZmqSource
from cachelb.testing import ManualClock
from cachelb_fakes import FakeFleet, FakeWorker, PeerTier
from cachelb_fakes.fleet.faults import PullFault
from cachelb_fakes.fleet.tokens import encode

PROMPT = [int(token) for token in encode("".join(map(str, range(1000, 1400))))]  # 400, of which 384 are in full blocks
COPIED = 384
FAULTS: tuple[str, ...] = (*get_args(PullFault), "dead", "wrong seed")


@dataclass
class Engines:
    """A fleet, the router that knows how fast it computes, and the first engine, which holds the prompt."""

    fleet: FakeFleet
    router: Router[str]
    source: FakeWorker
    workers: list[FakeWorker]
    text: str

    def join(self, **terms: Any) -> None:
        """Register all workers as peers, and drain the source."""
        addresses = {each.url: each.peer_address for each in self.fleet.workers}
        self.router.peer_groups.add("rack", **{"load_ms_per_token": 0.1, "addresses": addresses, **terms})
        self._held = self.router.select_worker(tokens=[1], among=[self.source.url])
        self.router.remove_worker(self.source.url, drain=True)

    def strike(self, fault: str) -> int:
        """Let the next copy fail; return the tokens that are copied nevertheless."""
        if fault == "dead":
            self.source.stop()
        elif fault in get_args(PullFault):
            self.source.fail_pulls(fault, times=1, blocks=2 * (fault == "short"))  # type: ignore[arg-type]
        return 32 if fault == "short" else 0


@contextmanager
def peer_engines(
    workers: int = 1, *, hash_seed: str = "0", make: Callable[..., Router[str]] = Router
) -> Iterator[Engines]:
    """Start a source and workers, fill the source, and learn how fast they compute: 10 ms a token."""
    tier, clock = partial(PeerTier, blocks=256, startup_ms=0.0, ms_per_token=0.001, timeout_s=0.1), ManualClock()
    with FakeFleet(1, kv_events=True, peers=tier()) as fleet, ExitStack() as stack:
        for _ in range(workers):
            fleet.add_worker(peers=tier(hash_seed=hash_seed))
        router = stack.enter_context(make(block_size=16, clock=clock, seed=1))
        router.sync_workers(fleet.urls)
        router.attach(ZmqSource(endpoints=fleet.kv_endpoint))
        source, *others = fleet.workers
        for url in fleet.urls:
            first = router.select_worker(tokens=range(5000, 5100), among=[url])
            clock.advance(1.0)
            first.on_first_token()
            first.on_complete()
        text = complete(source.url, PROMPT).json["choices"][0]["text"]
        wait_until(lambda: all(each.index_blocks.get("cpu", 0) > 24 for each in router.stats().workers[:1]))
        yield Engines(fleet, router, source, others, text)


@contextmanager
def trap() -> Iterator[tuple[dict[str, Any], dict[str, str], socket.socket]]:
    """Listen at an address that a client names as the source: its fields and headers, and what nothing connects to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        named = {"kv_request_id": "x", "remote_host": "127.0.0.1", "remote_port": port}
        payload = {"source_control_endpoint": f"tcp://127.0.0.1:{port}", "block_hashes": [1], "mode": "copy"}
        action = {"action_id": "1", "action_type": "kv.fetch", "action_version": "1.0", "payload": payload}
        hints = {"protocol_version": "1.0", "message_id": "1", "actions": [action]}
        fields = {"kv_hints": hints, "kv_transfer_params": {"remote_kv_source": named, "kv_hint": hints, "own": 1}}
        headers = {"x-kv-cache-source-host-port": f"127.0.0.1:{port}", "X-KV-Cache-Source-P2P-Port": "1"}
        yield fields, headers, listener


def connected(listener: socket.socket) -> bool:
    """Return whether anything connected."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def named_by(seen: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the address of the source in a body that a worker got."""
    named = seen.get("kv_transfer_params", {}).get("remote_kv_source")
    return None if named is None else (named["remote_host"], named["remote_port"])
