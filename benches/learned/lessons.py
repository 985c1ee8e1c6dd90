"""Models for runs that begin with one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from cachelb import Router
from cachelb.sim import simulate
from cachelb.sim.gateway import RouterGateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.sim import FleetSpec, Workload
    from cachelb.sim.gateway import Gateway


def learn(requests: Workload, fleet: FleetSpec, *, seed: int) -> bytes:
    """Return the model that `learned` has at the end of a run.

    Args:
        requests: What it learns from.
        fleet: The workers.
        seed: Of ties and of the training.

    Returns:
        A saved model.
    """

    def make(clock: Callable[[], float]) -> Router[str]:
        router: Router[str] = Router(
            policy="learned", training="inline", block_size=requests.block_size, clock=clock, seed=seed
        )
        for name, worker in zip(fleet.names, fleet, strict=True):
            router.add_worker(name, gpu=worker.gpu.name, kv_blocks=worker.kv_blocks)
        return router

    gateway = RouterGateway(make, requests, fleet.names)
    simulate(requests, fleet, "learned", seed=seed, gateway=cast("Gateway", gateway))
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        gateway.router.save_model(path)
        return path.read_bytes()
