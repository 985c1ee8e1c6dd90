"""Changes of the fleet that are made at one router and followed at the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.library.state.addresses import free_addresses
from tests.library.state.transports import (
    PATIENT,
    SECRET,
    STORY,
    WORKERS,
    MeshFleet,
    is_settled,
    make_router,
    matched,
    routers,
    same_loads,
)
from tests.waiting import wait_until

from cachelb import Router
from cachelb.policies import POLICIES
from cachelb.state import ZmqMesh
from cachelb_fakes.events import encode_batch, stored

FLEET: dict[str, Any] = {"share_fleet": True}
ALONE: dict[str, Any] = {**PATIENT, **FLEET}


def weights(router: Router[Any]) -> dict[str, float]:
    return {worker.key: worker.weight for worker in router.stats().workers}


def ready(router: Router[Any], key: str) -> bool:
    return next(worker.state == "ready" for worker in router.stats().workers if worker.key == key)


def same_keys(found: Iterable[tuple[Router[Any], object]], keys: set[str]) -> bool:
    return all(set(router.keys()) == keys for router, _ in found)


def test_workers_come_and_go_everywhere() -> None:
    with routers(MeshFleet(), 3, **FLEET) as found:
        (router, _), (other, other_mesh), (third, _) = found
        router.add_worker("new", weight=2.5, dp_size=2, models=["m"], gpu="a100", kv_blocks=50, slow_start_s=1.0)
        # Booked on at once: the others know the worker before the booking.
        prompts = [range(i, i + 640) for i in range(0, 4000, 1000)]
        decisions = [router.select_worker(tokens=tokens, model="m", among=["new"]) for tokens in prompts]
        wait_until(lambda: all(sum(each.loads().values()) == 4 for each, _ in found))
        assert same_keys(found, {*WORKERS, "new"})
        assert all(mesh.stats().strangers == 0 for _, mesh in found)
        for each in (other, third):
            (rank, _) = [worker for worker in each.stats().workers if worker.key == "new"]
            assert (rank.weight, rank.role) == (2.5, "both")
            assert each.stats().models == ["m"]
            assert matched(each) == 0, "not of this model"
            # Either rank has room for one of its two prompts and ten blocks of the other.
            seen = [each.explain(tokens=tokens, model="m", among=["new"]).candidates for tokens in prompts]
            assert sorted(max(rank.matched_tokens for rank in ranks) for ranks in seen) == [160, 160, 624, 624]
            each.validate()
        for decision in decisions:
            decision.on_complete()
        for each in (other, third):
            each.select_worker(tokens=range(64), model="m", among=["new"]).on_complete()
            assert each.records.recent(1)[0].gpu == "a100"
        other.remove_worker("new")
        third.remove_worker("gpu0", drain=True)
        wait_until(lambda: same_keys(found, {"gpu1", "gpu2", "gpu3"}))
        wait_until(lambda: same_loads(found))
        wait_until(lambda: other_mesh.stats().changes == 3)


def test_synchronised_lists_are_told_once() -> None:
    with routers(MeshFleet(), 2, **FLEET) as ((router, mesh), (other, other_mesh)):
        listed = ["gpu0", "gpu1", "new"]
        router.sync_workers(listed)
        wait_until(lambda: sorted(other.keys()) == listed)
        other.sync_workers(listed)
        other.set_ready("gpu0", ready=False)
        wait_until(lambda: not ready(router, "gpu0"))
        wait_until(lambda: (mesh.stats().changes, other_mesh.stats().changes) == (1, 4))


@dataclass(frozen=True)
class Engine:
    url: str


def test_router_of_other_objects_follows_what_it_knows_and_counts_the_rest() -> None:
    first, second = free_addresses(2)
    with make_router() as router, Router([Engine(url) for url in WORKERS], secret=SECRET) as other:
        router.attach(ZmqMesh(first, [second], **ALONE))
        mesh = ZmqMesh(second, [first], **ALONE)
        other.attach(mesh)
        wait_until(lambda: len(mesh.stats().peers) == 1 and is_settled(mesh))
        router.add_worker("new")
        router.set_ready("gpu1", ready=False)
        router.add_worker("gpu2", weight=2.0)
        router.remove_worker("gpu3")
        # Changes in one message are applied one after the other, in any order.
        wait_until(lambda: other.keys() == ["gpu0", "gpu1", "gpu2"] and mesh.stats().strangers == 1)
        wait_until(lambda: (ready(other, "gpu1"), weights(other)["gpu2"]) == (False, 2.0))
        assert other.workers() == [Engine(url) for url in WORKERS[:3]]
        # A worker that it adds itself reaches the router with plain names too.
        other.add_worker(Engine("extra"))
        wait_until(lambda: "extra" in set(router.keys()))
        other.validate()


def test_impossible_changes_are_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with routers(MeshFleet(), 2, **FLEET) as ((router, _), (other, mesh)):
        mesh_before = mesh.stats().strangers
        other.detach(mesh)
        other.add_worker("w", dp_size=2)
        other.attach(mesh)
        wait_until(lambda: len(mesh.stats().peers) == 1 and is_settled(mesh))
        router.add_worker("w#1")
        router.set_ready("gpu0", ready=False)
        wait_until(lambda: not ready(other, "gpu0"))
        wait_until(lambda: "worker w#1 was changed by another router, but not here" in caplog.text)
        assert other.keys() == [*WORKERS, "w"]
        assert mesh.stats().strangers == mesh_before + 1


def test_worker_with_the_name_of_a_shared_cache_is_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with routers(MeshFleet(), 2, **FLEET) as ((router, _), (other, mesh)):
        before = mesh.stats().strangers
        other.shared_caches.add("store")
        router.add_worker("store")
        router.add_worker("new")
        wait_until(lambda: "new" in set(other.keys()))
        assert '"store" is a shared cache' in caplog.text
        assert (other.keys(), mesh.stats().strangers) == ([*WORKERS, "new"], before + 1)
        other.event_sink.apply_events("store", encode_batch([stored([1], range(16))], ts=1.0), seq=0)
        assert other.shared_caches.blocks() == {"store": 1}
        other.validate()


def test_fleets_are_not_shared_unless_asked() -> None:
    with routers(MeshFleet(), 2) as ((router, _), (other, mesh)):
        router.add_worker("new")
        router.set_ready("gpu0", ready=False)
        with router.select_worker(tokens=STORY, among=["gpu1"]):
            wait_until(lambda: sum(other.loads().values()) == 1)
        assert other.keys() == WORKERS
        assert (ready(other, "gpu0"), mesh.stats().changes) == (True, 0)
    with pytest.raises(TypeError, match="share_fleet must be True or False, got int"):
        ZmqMesh("tcp://127.0.0.1:*", [], share_fleet=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_load_is_shared_with_every_policy(policy: str) -> None:
    with routers(MeshFleet(), 2, make={"policy": policy}, **FLEET) as found:
        (router, mesh), (other, other_mesh) = found
        decisions = [each.select_worker(tokens=[at, *STORY]) for at, (each, _) in enumerate(found)]
        wait_until(lambda: all(sum(each.loads().values()) == 2 for each, _ in found) and same_loads(found))
        decisions[0].on_complete()
        decisions[1].on_error(500)
        wait_until(lambda: all(sum(each.loads().values()) == 0 for each, _ in found))
        assert mesh.stats().strangers == other_mesh.stats().strangers == 0
        for each in (router, other):
            each.validate()
