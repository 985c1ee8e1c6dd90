"""Simulated fleets: workloads, engines, policies side by side, in simulated time.

Example:
    >>> from cachelb_lab.sim import FleetSpec, build, simulate
    >>> result = simulate(build("rag", seed=1, count=100), FleetSpec.parse("2xh100"), "least-loaded")
    >>> int(result.finished.sum())
    100
"""

from __future__ import annotations

from cachelb_lab.sim.experiments.calibration import Measurement, fit_scale
from cachelb_lab.sim.experiments.compare import compare
from cachelb_lab.sim.experiments.comparison import Comparison, Sweep
from cachelb_lab.sim.figures.metrics import Metrics, Slo
from cachelb_lab.sim.fleet import FleetSpec, WorkerSpec
from cachelb_lab.sim.memory import PeerSpec, PoolSpec
from cachelb_lab.sim.result import SimResult, Status
from cachelb_lab.sim.simulation import Incident, Signals, prepare, simulate
from cachelb_lab.sim.workloads import WORKLOADS, Workload, build

__all__ = [
    "WORKLOADS",
    "Comparison",
    "FleetSpec",
    "Incident",
    "Measurement",
    "Metrics",
    "PeerSpec",
    "PoolSpec",
    "Signals",
    "SimResult",
    "Slo",
    "Status",
    "Sweep",
    "WorkerSpec",
    "Workload",
    "build",
    "compare",
    "fit_scale",
    "prepare",
    "simulate",
]
