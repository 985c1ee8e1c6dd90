"""Simulated fleets: workloads, engines, policies side by side, in simulated time.

Example:
    >>> from cachelb.sim import FleetSpec, build, simulate
    >>> result = simulate(build("rag", seed=1, count=100), FleetSpec.parse("2xh100"), "least-loaded")
    >>> int(result.finished.sum())
    100
"""

from __future__ import annotations

from cachelb.sim.calibration import Measurement, fit_scale
from cachelb.sim.compare import compare
from cachelb.sim.comparison import Comparison
from cachelb.sim.fleet import FleetSpec, WorkerSpec
from cachelb.sim.metrics import Metrics, Slo
from cachelb.sim.pool import PoolSpec
from cachelb.sim.result import SimResult, Status
from cachelb.sim.simulation import Incident, Signals, prepare, simulate
from cachelb.sim.sweep import Sweep
from cachelb.sim.workloads import WORKLOADS, Workload, build

__all__ = [
    "WORKLOADS",
    "Comparison",
    "FleetSpec",
    "Incident",
    "Measurement",
    "Metrics",
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
