"""Checks of live engines: what works, what does not, and what to do about it. `cachelb doctor` shows them.

Needs the extras `events` and `http`.
"""

from __future__ import annotations

from cachelb.doctor.examine import examine
from cachelb.doctor.settings import Settings
from cachelb.doctor.verdicts import Check, Diagnosis, Verdict, WorkerReport

__all__ = ["Check", "Diagnosis", "Settings", "Verdict", "WorkerReport", "examine"]
