"""Checks of live engines: what works, what does not, and what to do about it. `cachelb doctor` shows them.

Needs the extra `events`.
"""

from __future__ import annotations

from cachelb_gateway.doctor.examine import examine
from cachelb_gateway.doctor.settings import Settings
from cachelb_gateway.doctor.verdicts import Check, Diagnosis, Verdict, WorkerReport

__all__ = ["Check", "Diagnosis", "Settings", "Verdict", "WorkerReport", "examine"]
