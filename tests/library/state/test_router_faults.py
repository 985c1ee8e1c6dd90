"""Routers in processes of their own that are killed, stopped, cut off, flooded and sent nonsense."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import zmq
from tests.herd.partition import behind_proxies, port_of
from tests.herd.processes import RouterProcess, herd, seconds_until_agreed
from tests.herd.router_process import Spec
from tests.herd.traffic import Traffic
from tests.library.state.addresses import free_addresses
from tests.library.state.transports import PATIENT
from tests.waiting import wait_until

from cachelb import Router
from cachelb.common.secret import Secret
from cachelb.events.zmq.sockets import Listeners, curve_keys, make_server, make_socket, received
from cachelb.state import StateStats, ZmqMesh

WORKERS = [f"gpu{at}" for at in range(4)]
SECRET = "known to all gateways"  # noqa: S105 - of these tests


def _keys() -> tuple[bytes, bytes]:
    return curve_keys(Secret(SECRET).key("mesh"))


def wait_until_gone(router: RouterProcess, peers: int) -> None:
    wait_until(lambda: len(router.ask("stats").peers) == peers, 60.0)


def test_killed_router_takes_its_load_along_and_comes_back_at_the_same_address() -> None:
    with herd(3, WORKERS) as routers:
        traffic = Traffic(WORKERS)
        traffic.route(routers, 12)
        seconds_until_agreed(routers, traffic.loads(), traffic.prompts)
        routers[0].kill()
        traffic.forget(routers[0])
        living = routers[1:]
        traffic.route(living, 12)
        seconds_until_agreed(living, traffic.loads(), traffic.prompts)
        before = routers[0].spec
        again = Spec(**{**before.__dict__, "mesh": {"warm_start_s": 60.0}})
        with RouterProcess(again) as reborn:
            reborn.answer()
            assert reborn.ask("stats").start == "warm: received from another router"
            everyone = [reborn, *living]
            traffic.route(everyone, 12)
            traffic.end(everyone, 2)
            seconds_until_agreed(everyone, traffic.loads(), traffic.prompts)
            for router in everyone:
                wait_until_gone(router, 2)  # its former life is forgotten


@pytest.mark.parametrize("way", ["cut", "hold"])
def test_both_sides_of_a_partition_agree_once_it_is_healed(way: str) -> None:
    with behind_proxies(WORKERS) as (routers, proxies):
        traffic = Traffic(WORKERS)
        traffic.route(routers, 8)
        seconds_until_agreed(routers, traffic.loads())
        for proxy in proxies:
            getattr(proxy, way)()
        traffic.route(routers, 30)
        traffic.end(routers, 7)
        for router in routers:
            wait_until_gone(router, 0)
        traffic.route(routers, 10)
        for proxy in proxies:
            proxy.heal()
        seconds_until_agreed(routers, traffic.loads(), traffic.prompts)


def test_clocks_that_differ_change_nothing() -> None:
    specials = {1: {"clock": (3600.0, 1.01)}, 2: {"clock": (5.0, 0.5)}}
    with herd(3, WORKERS, specials=specials) as routers:
        traffic = Traffic(WORKERS)
        traffic.route(routers, 30)
        traffic.end(routers, 3)
        seconds_until_agreed(routers, traffic.loads(), traffic.prompts)


def test_who_does_not_read_costs_a_bounded_amount_of_memory() -> None:
    with herd(1, WORKERS, mesh={"max_mb": 1.0}, max_memory_mb=8) as (router,), zmq.Context() as context:
        for seed in range(2):
            router.ask("flood", 3000, 64, seed)
        before = router.ask("memory_mib")
        address = router.spec.bind or ""
        peers = [
            make_socket(context, zmq.DEALER, receives=1, sends=300, most_bytes=1 << 24, keys=_keys()) for _ in range(2)
        ]
        with peers[0] as listener, peers[1] as asking:
            listener.connect(address)
            listener.send(b"")
            assert listener.poll(60_000), "it receives from the router"
            told: StateStats = router.ask("stats")
            router.ask("flood", 12_000, 128, 3)

            def is_flooded() -> bool:
                # Some of the 12 MB may be dropped before they are sent, which `dropped` counts.
                news: StateStats = router.ask("stats")
                enough = news.sent_bytes - told.sent_bytes > 4e6  # far more than may wait
                if not enough:
                    router.ask("flood", 1000, 128, news.sent)
                return enough

            wait_until(is_flooded)
            assert router.ask("memory_mib") - before < 8, "of unread messages"
            asking.connect(f"tcp://127.0.0.1:{port_of(address) + 1}")
            for _ in range(300):
                asking.send_multipart([b"all", bytes(8)])
            assert asking.poll(60_000), "it is answered"
            router.ask("flood", 2000, 64, 9)
            assert router.ask("memory_mib") - before < 16, "not 300 answers of some megabytes"


class HandDriven:
    """A peer whose every message is sent by the test, over real sockets."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        context = stack.enter_context(zmq.Context())
        self.router = stack.enter_context(Router(WORKERS, secret=SECRET))
        self._news = stack.enter_context(make_server(context, 1000, _keys()))
        self._listeners = Listeners(self._news, 10)
        self._asked = stack.enter_context(make_server(context, 1000, _keys()))
        self._news.bind(address)
        self._asked.bind(f"tcp://127.0.0.1:{port_of(address) + 1}")
        self.router._fleet.share(99, 3600.0, 1 << 20)

    def publish(self, messages: list[bytes]) -> None:
        for listener, _ in received(self._news, 100):
            self._listeners.add(b"", listener)
        for message in messages:
            self._listeners.send(b"", [message])

    def wait_until_asked(self) -> bytes:
        """Send heartbeats until a peer asks, and return it."""

        def is_asked() -> bool:
            self.publish([self.router._fleet.heartbeat(7) or b""])
            return self._asked.poll(10) != 0

        wait_until(is_asked, 60.0)
        return self._asked.recv_multipart()[0]

    def answer(self, return_to: bytes, messages: list[bytes]) -> None:
        for message in messages:
            self._asked.send_multipart([return_to, message])


def test_answer_that_stands_still_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.state.exchange._STANDS_STILL_S", 0.2)
    address, own = free_addresses(2)
    tokens = range(3000)
    with ExitStack() as stack, Router(WORKERS, secret=SECRET) as router:
        peer = HandDriven(address, stack)
        source = peer.router
        source.select_worker(tokens=tokens).on_complete()
        head, *_ = source._fleet.publish_all()
        source._fleet.publish()  # Lost: there is no subscriber.
        mesh = ZmqMesh(own, [address], **PATIENT)
        router.attach(mesh)
        for _ in range(2):
            peer.answer(peer.wait_until_asked(), [head])
        assert max(each.matched_tokens for each in router.explain(tokens=tokens).candidates) == 0
        peer.answer(peer.wait_until_asked(), source._fleet.publish_all())
        wait_until(lambda: max(each.matched_tokens for each in router.explain(tokens=tokens).candidates) > 2900)
        peer.publish([source._fleet.heartbeat(8) or b""])
        wait_until(lambda: mesh.stats().snapshots == 3)
        assert mesh._runs.latest is not None
        (told,) = mesh._runs.latest._peers.values()
        wait_until(lambda: told.missing_s is None)
        assert told.part_s is None


def test_what_is_kept_until_a_peer_answers_is_bounded_and_nothing_is_missed_in_the_end() -> None:
    address, own = free_addresses(2)
    with ExitStack() as stack, Router(WORKERS, secret=SECRET) as router:
        peer = HandDriven(address, stack)
        source = peer.router
        source._fleet.publish()  # Lost: there is no subscriber.
        mesh = ZmqMesh(own, [address], max_mb=0.05, **PATIENT)
        router.attach(mesh)
        return_to = peer.wait_until_asked()
        late = source._fleet.publish_all()
        before = mesh.stats().received
        decisions = []
        for at in range(200):
            decisions.append(source.select_worker(tokens=range(at, at + 1000)))
            peer.publish(source._fleet.publish())
        wait_until(lambda: mesh.stats().received >= before + 200)
        assert mesh._runs.latest is not None
        (kept,) = (each.kept for each in mesh._runs.latest._peers.values())
        assert 0 < sum(map(len, kept)) <= 0.05 * (1 << 20)
        peer.answer(return_to, late)
        peer.answer(peer.wait_until_asked(), source._fleet.publish_all())
        wait_until(lambda: router.loads() == source.loads())
        assert sum(router.loads().values()) == 200
        for decision in decisions:
            decision.on_complete()
