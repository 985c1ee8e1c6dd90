"""Runs whose model is inspected: its final state, and its error for every request."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cachelb import Router
from cachelb.policies import Learned
from cachelb_lab.sim import simulate
from cachelb_lab.sim.gateway import RouterGateway

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from cachelb_lab.sim import FleetSpec, SimResult, Workload
    from cachelb_lab.sim.gateway import Gateway


def learn(requests: Workload, fleet: FleetSpec, *, seed: int) -> bytes:
    """Return the model that `learned` has at the end of a run.

    Args:
        requests: The requests it learns from.
        fleet: The workers.
        seed: Seed of ties and of the training.

    Returns:
        A saved model.
    """
    gateway = RouterGateway(_maker(requests, fleet, seed, {}), requests, fleet.names)
    simulate(requests, fleet, "learned", seed=seed, gateway=cast("Gateway", gateway))
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        gateway.router.policy.save_model(path)
        return path.read_bytes()


def watch(
    requests: Workload,
    fleet: FleetSpec,
    *,
    seed: int,
    **options: Any,  # noqa: ANN401 - the policy's
) -> tuple[SimResult, npt.NDArray[np.float64]]:
    """Run `learned`, and read the prediction of every decision.

    Args:
        requests: The requests.
        fleet: The workers.
        seed: Seed of ties and of the training.
        **options: Options of the policy.

    Returns:
        The run, and the seconds to the first token that the model expected of each request on the worker that served
        it; NaN where it was not asked.
    """
    gateway = _Watching(_maker(requests, fleet, seed, options), requests, fleet.names)
    result = simulate(requests, fleet, "learned", seed=seed, gateway=cast("Gateway", gateway))
    return result, gateway.expected


class _Watching(RouterGateway):
    """A router that is asked for its reasons."""

    def __init__(
        self, make: Callable[[Callable[[], float]], Router[str]], workload: Workload, names: Sequence[str]
    ) -> None:
        super().__init__(make, workload, names)
        self.expected = np.full(len(workload), np.nan)

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int] | None:
        placed = super().select(request, tried, now)
        if placed is not None:
            seen = self._open[placed[1]].explain().candidates
            scores = (candidate.score for candidate in seen if candidate.picked)
            self.expected[request] = next((score for score in scores if score is not None), np.nan)
        return placed


def _maker(
    requests: Workload, fleet: FleetSpec, seed: int, options: dict[str, Any]
) -> Callable[[Callable[[], float]], Router[str]]:
    """Return a function that makes a router over the workers."""

    def make(clock: Callable[[], float]) -> Router[str]:
        router: Router[str] = Router(
            policy=Learned(training="inline", **options), block_size=requests.block_size, clock=clock, seed=seed
        )
        for name, worker in zip(fleet.names, fleet, strict=True):
            router.add_worker(name, gpu=worker.gpu.name, kv_blocks=worker.kv_blocks)
        return router

    return make
