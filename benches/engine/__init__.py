"""Policies in front of two real engines on the CPUs of this machine, end to end: `python -m benches.engine`."""

from __future__ import annotations
