"""Workloads: requests with their arrivals, from trace files or seeded generators."""

from __future__ import annotations

from cachelb_lab.sim.workloads.agent_sessions import read_agent_sessions
from cachelb_lab.sim.workloads.arrivals import (
    ArrivalProcess,
    Bursts,
    Constant,
    Gamma,
    Given,
    Poisson,
    Steps,
    parse_arrivals,
)
from cachelb_lab.sim.workloads.draft import Draft, Piece, Plan
from cachelb_lab.sim.workloads.files.captures import CapturedTraffic, CapturedWorker, read_capture
from cachelb_lab.sim.workloads.files.reading import FORMATS, read_workload
from cachelb_lab.sim.workloads.files.traces import read_azure, read_mooncake, read_sessions
from cachelb_lab.sim.workloads.registry import WORKLOADS, Generator, build
from cachelb_lab.sim.workloads.workload import Workload

__all__ = [
    "FORMATS",
    "WORKLOADS",
    "ArrivalProcess",
    "Bursts",
    "CapturedTraffic",
    "CapturedWorker",
    "Constant",
    "Draft",
    "Gamma",
    "Generator",
    "Given",
    "Piece",
    "Plan",
    "Poisson",
    "Steps",
    "Workload",
    "build",
    "parse_arrivals",
    "read_agent_sessions",
    "read_azure",
    "read_capture",
    "read_mooncake",
    "read_sessions",
    "read_workload",
]
