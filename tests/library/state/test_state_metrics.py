"""Metrics of a gateway about the routers that it shares its state with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from tests.commands import app
from tests.cutting_proxy import CuttingProxy
from tests.library.router.router_parts import replaced
from tests.library.state.addresses import free_addresses
from tests.library.state.transports import PATIENT, STORY, MeshFleet, expire_after, make_router, routers
from tests.waiting import wait_until

from cachelb import Router
from cachelb.metrics import PrometheusCollector
from cachelb.state import ZmqMesh
from cachelb_gateway.page import SharingFigures, read_page


def registry_of(router: Router[str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))
    return registry


def shown(router: Router[str]) -> SharingFigures | None:
    figures = read_page(generate_latest(registry_of(router)))
    assert figures is not None
    return figures.sharing


@contextmanager
def page_of(router: Router[str]) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry_of(router))
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def watched(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["watch", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_router_alone_shows_nothing_of_sharing() -> None:
    with make_router() as router:
        assert router.stats().state is None
        assert shown(router) is None
        with page_of(router) as url:
            assert json.loads(watched(url, "--once", "--json"))["sharing"] is None
            assert "shared" not in watched(url, "--once")


def test_the_page_has_a_series_per_peer_until_it_leaves() -> None:
    with routers(MeshFleet(), 3) as found:
        (router, mesh), (other, other_mesh), (third, _) = found
        decision = other.select_worker(tokens=STORY)
        wait_until(lambda: sum(router.loads().values()) == sum(third.loads().values()) == 1)
        sharing = shown(router)
        assert sharing is not None
        peers = {peer.peer: peer for peer in sharing.peers}
        assert set(peers) == {peer.address for peer in mesh.stats().peers}
        told = peers[other_mesh.address]
        assert (told.bookings, told.gaps is not None, told.snapshots is not None) == (1, True, True)
        assert told.silent_s is not None
        assert 0 <= told.silent_s < 20
        stats = mesh.stats()
        assert 0 < sharing.counts["sent"] <= stats.sent
        assert 0 < sharing.counts["received"] <= stats.received
        assert (sharing.counts["gaps"], sharing.counts["stranger"]) == (stats.gaps, stats.strangers)
        assert sharing.start == stats.start
        other.detach(other_mesh)
        expire_after(mesh, 1.0)
        assert shown(other) is None
        wait_until(lambda: other_mesh.address.encode() not in generate_latest(registry_of(router)))

        def left() -> list[str]:
            sharing = shown(router)
            assert sharing is not None
            return [peer.peer for peer in sharing.peers]

        wait_until(lambda: left() == [found[2][1].address])
        decision.on_complete()


def test_watch_shows_peers_and_rates() -> None:
    with routers(MeshFleet(), 2, warm_start_s=0.01) as found:
        (router, mesh), (other, other_mesh) = found
        with other.select_worker(tokens=STORY), page_of(router) as url:
            wait_until(lambda: sum(router.loads().values()) == 1)

            def looks() -> Any:
                return [
                    json.loads(line)
                    for line in watched(url, "--count", "2", "--interval", "0.6", "--json").splitlines()
                ]

            rates = ["sent_per_s", "received_per_s"]
            for _ in range(20):  # unless a thread stood still meanwhile, the first is enough
                first, second = looks()
                if all(second["sharing"][rate] for rate in rates):
                    break
            table = watched(url, "--once")
        assert first["sharing"]["sent_per_s"] is None
        assert all(0 < second["sharing"][rate] < 500 for rate in rates)
        (peer,) = second["sharing"]["peers"]
        assert (peer["peer"], peer["bookings"]) == (other_mesh.address, 1)
        assert second["sharing"]["start"] == mesh.stats().start
        assert f"shared: {mesh.stats().start}" in " ".join(table.split())
        assert other_mesh.address in table


def test_lag_is_how_late_the_news_of_a_peer_are_and_passes() -> None:
    own, others, between = free_addresses(3)
    proxy = CuttingProxy(int(between.rpartition(":")[2]), int(own.rpartition(":")[2]))
    try:
        with make_router() as router, make_router() as other:
            router.attach(ZmqMesh(own, [others], **PATIENT))
            mesh = ZmqMesh(others, [between], **PATIENT)
            other.attach(mesh)
            wait_until(lambda: any(peer.lag_s < 0.2 for peer in mesh.stats().peers))
            proxy.delay_s = 0.5
            wait_until(lambda: mesh.stats().peers[0].lag_s > 0.4)
            proxy.delay_s = 0.0
            wait_until(lambda: mesh.stats().peers[0].lag_s < 0.2)
    finally:
        proxy.delay_s = 0.0
        proxy.close()


def test_lag_grows_while_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that gets no answer about missed messages knows for how long."""
    own, others = free_addresses(2)

    with make_router() as router, make_router() as other:
        replies = {"publish_all": list}
        mute = replaced("_fleet", lambda each, _: replies if each is router else {})
        monkeypatch.setattr(Router, "_fleet", mute)
        router.select_worker(tokens=STORY)
        router.attach(ZmqMesh(own, [others], **PATIENT))
        with router.select_worker(tokens=STORY):
            pass
        mesh = ZmqMesh(others, [own], **PATIENT)
        other.attach(mesh)
        wait_until(lambda: any(peer.lag_s > 1.0 for peer in mesh.stats().peers))
        replies.clear()
        wait_until(lambda: mesh.stats().peers[0].lag_s < 0.2)
        assert mesh.stats().peers[0].gaps > 0
