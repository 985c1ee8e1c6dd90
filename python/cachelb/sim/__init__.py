"""Simulator front: traces, workload generators, engine caches and policy replays."""

from __future__ import annotations
