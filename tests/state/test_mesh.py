"""Routers that share their state over real sockets."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.state.addresses import free_addresses, wait_until

from cachelb import Router
from cachelb.state import ZmqMesh

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = [f"gpu{at}" for at in range(4)]
STORY = list(range(1000))
SECRET = "of the fleet"  # noqa: S105 - of these tests


def make_router(**options: Any) -> Router[str]:
    return Router(WORKERS, **{"hash_seed": 7, "policy": "cache-aware", "seed": 1, **options})


@contextmanager
def routers(count: int, **options: Any) -> Iterator[list[tuple[Router[str], ZmqMesh]]]:
    """Routers that hear each other."""
    addresses = free_addresses(count)
    with ExitStack() as stack:
        found = []
        for address in addresses:
            router = stack.enter_context(make_router())
            mesh = ZmqMesh(address, addresses, **options)
            router.attach(mesh)
            found.append((router, mesh))
        wait_until(lambda: all(len(mesh.stats().peers) == count - 1 for _, mesh in found))
        yield found


def matched(router: Router[str], tokens: list[int] = STORY) -> float:
    return max(worker.matched_tokens for worker in router.explain(tokens=tokens).candidates)


def same_loads(found: list[tuple[Router[str], ZmqMesh]]) -> bool:
    loads = [router.loads() for router, _ in found]
    return all(each == loads[0] for each in loads)


def test_load_and_placements_of_one_are_known_to_all() -> None:
    with routers(3, secret=SECRET) as found:
        decisions = [router.select_worker(tokens=[at, *STORY]) for at, (router, _) in enumerate(found)]
        wait_until(lambda: all(sum(router.loads().values()) == 3 for router, _ in found))
        assert same_loads(found)
        for at in range(3):
            assert all(matched(router, [at, *STORY]) == 992 for router, _ in found)
        for decision in decisions:
            decision.on_first_token()
        wait_until(
            lambda: all(sum(w.pending_prefill_tokens for w in router.stats().workers) == 0 for router, _ in found)
        )
        assert all(sum(w.decode_blocks for w in router.stats().workers) == 3 * 62 for router, _ in found)
        for decision in decisions:
            decision.on_complete()
        wait_until(lambda: all(sum(router.loads().values()) == 0 for router, _ in found))
        assert all(sum(router.stats().endings.values()) == 1 for router, _ in found), "each counts its own requests"
        assert all(mesh.stats().strangers == mesh.stats().orphans == 0 for _, mesh in found)


def test_blocks_take_less_than_24_bytes() -> None:
    with routers(2) as found:
        (router, mesh), (_, other) = found
        before = mesh.stats().sent_bytes
        for at in range(200):
            router.select_worker(tokens=[*STORY[:200], *range(at, at + 800)]).on_complete()
        wait_until(lambda: other.stats().blocks > 9_000)
        assert mesh.stats().sent_bytes - before < 24 * other.stats().blocks


def test_new_router_is_told_what_the_others_know_before_it_is_attached() -> None:
    with routers(2) as found:
        (router, _), (other, _) = found
        open_decision = router.select_worker(tokens=STORY)
        other.select_worker(tokens=[5, *STORY]).on_complete()
        wait_until(lambda: matched(router, [5, *STORY]) == matched(other) == 992)
        addresses = [mesh.address for _, mesh in found]
        (own,) = free_addresses(1)
        with make_router() as third:
            mesh = ZmqMesh(own, addresses, warm_start_s=30.0)
            third.attach(mesh)
            assert mesh.stats().start == "warm: told by another router"
            # One of them told; the other does too, of its own requests.
            assert matched(third) == matched(third, [5, *STORY]) == 992
            wait_until(lambda: sum(third.loads().values()) == 1)
            open_decision.on_complete()


def test_router_that_nobody_tells_anything_starts_cold_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    (own,) = free_addresses(1)
    with make_router() as router:
        mesh = ZmqMesh(own, [], warm_start_s=0.2)
        router.attach(mesh)
        assert mesh.stats().start == "cold: nobody told anything within 0.2 s"
    assert "starts cold" in caplog.text


def test_who_does_not_know_the_secret_hears_and_tells_nothing() -> None:
    with routers(2, secret=SECRET) as found:
        addresses = [mesh.address for _, mesh in found]
        for secret in ("another", None):
            (own,) = free_addresses(1)
            with make_router() as stranger:
                mesh = ZmqMesh(own, addresses, secret=secret, warm_start_s=0.7)
                stranger.attach(mesh)
                stranger.select_worker(tokens=STORY)
                found[0][0].select_worker(tokens=[1, *STORY]).on_complete()
                time.sleep(0.3)
                assert mesh.stats().received == 0
                assert matched(stranger, [1, *STORY]) == 0
        assert all(matched(router) == 0 for router, _ in found)


def test_router_that_dies_takes_its_load_along() -> None:
    with routers(2, peer_timeout_s=1.0) as found:
        (router, mesh), (other, other_mesh) = found
        decision = router.select_worker(tokens=STORY)
        wait_until(lambda: sum(other.loads().values()) == 1)
        router.detach(mesh)
        wait_until(lambda: sum(other.loads().values()) == 0, 10.0)
        assert other_mesh.stats().peers == ()
        assert matched(other) == 992, "what it placed is still cached"
        decision.on_complete()


def test_load_of_others_goes_when_sharing_ends() -> None:
    with routers(2) as found:
        (router, _), (other, other_mesh) = found
        decision = router.select_worker(tokens=STORY)
        wait_until(lambda: sum(other.loads().values()) == 1)
        other.detach(other_mesh)
        assert sum(other.loads().values()) == 0
        decision.on_complete()


def test_other_hash_seed_shares_load_only() -> None:
    first, second = free_addresses(2)
    with make_router() as router, make_router(hash_seed=8) as other:
        router.attach(ZmqMesh(first, [second]))
        mesh = ZmqMesh(second, [first])
        other.attach(mesh)
        wait_until(lambda: len(mesh.stats().peers) == 1)
        with router.select_worker(tokens=STORY):
            wait_until(lambda: mesh.stats().strangers > 0)
        assert matched(other) == 0


def test_partition_heals_within_two_seconds() -> None:
    own, others, between = free_addresses(3)
    port = int(between.rpartition(":")[2])
    proxy = CuttingProxy(port, int(own.rpartition(":")[2]))
    try:
        with make_router() as router, make_router() as other:
            router.attach(ZmqMesh(own, [others], peer_timeout_s=1.0))
            mesh = ZmqMesh(others, [between], peer_timeout_s=1.0)
            other.attach(mesh)
            wait_until(lambda: len(mesh.stats().peers) == 1)
            before = router.select_worker(tokens=STORY)
            wait_until(lambda: sum(other.loads().values()) == 1)
            proxy.cut()
            decisions = [router.select_worker(tokens=[at, *STORY]) for at in range(50)]
            wait_until(lambda: not mesh.stats().peers)
            assert sum(other.loads().values()) == 0, "nobody believes in load for ever"
            for decision in [before, *decisions[10:]]:
                decision.on_complete()
            proxy.heal()
            wait_until(lambda: sum(other.loads().values()) == 10)
            assert router.loads() == other.loads()
            wait_until(lambda: all(matched(other, [at, *STORY]) == 992 for at in range(50)))
            for decision in decisions[:10]:
                decision.on_complete()
            wait_until(lambda: sum(other.loads().values()) == 0)
            assert mesh.stats().gaps > 0
    finally:
        proxy.close()


def test_list_of_peers_that_fails_or_hangs_leaves_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cachelb.state.zmq_carrier._PEERS_S", 0.01)
    first, second = free_addresses(2)
    asked: list[str] = []
    mood, may_end = "answers", threading.Event()

    def peers() -> list[str]:
        asked.append(mood)
        if mood == "fails":
            raise OSError("no such name")
        if mood == "hangs":
            may_end.wait()
        return [first]

    try:
        with make_router() as router, make_router() as other:
            router.attach(ZmqMesh(first, []))
            mesh = ZmqMesh(second, peers)
            other.attach(mesh)
            for mood in ("answers", "fails", "hangs"):
                wait_until(lambda: asked.count(mood) >= (1 if mood == "hangs" else 2))  # noqa: B023 - called at once
                with router.select_worker(tokens=STORY):
                    wait_until(lambda: sum(other.loads().values()) == 1)
                wait_until(lambda: sum(other.loads().values()) == 0)
            assert mesh.stats().failures == mesh.stats().gaps - 1 == 0
    finally:
        may_end.set()
    assert caplog.text.count("could not be had") == 1


def test_wrong_arguments_are_named() -> None:
    for arguments, message in [
        (("ipc://x", []), "bind must be an address like"),
        ((7700, []), "bind must be text"),
        (("tcp://127.0.0.1:*", "tcp://a:1"), "peers must be a sequence"),
        (("tcp://127.0.0.1:*", [7]), "a peer must be text"),
        (("tcp://127.0.0.1:*", ["gpu0:7700"]), "a peer must be an address like .*, got 'gpu0:7700'"),
        (("tcp://127.0.0.1:*", ["tcp://a:65535"]), "a peer must be an address like .*, got 'tcp://a:65535'"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh(*arguments)  # type: ignore[arg-type]
    options: list[tuple[dict[str, Any], str]] = [
        ({"secret": ""}, "secret must not be empty"),
        ({"interval_s": 0}, "interval_s must be above 0"),
        ({"peer_timeout_s": 0.5}, "peer_timeout_s must be 1 or more"),
        ({"warm_start_s": -1}, "warm_start_s must be 0 or more"),
        ({"ttl_s": "long"}, "ttl_s must be a number"),
    ]
    for option, message in options:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh("tcp://127.0.0.1:*", [], **option)
    with make_router() as router, pytest.raises(OSError, match="cannot publish at"):
        router.attach(ZmqMesh("tcp://192.0.2.1:7700", []))


def test_no_thread_and_no_file_is_left() -> None:
    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with routers(2):
        pass
    before = files()
    for _ in range(3):
        with routers(2) as found:
            found[0][0].select_worker(tokens=STORY)
    assert files() <= before
    assert not [thread for thread in threading.enumerate() if thread.name == "cachelb-state"]
