"""cachelb beside its alternatives: the tasks of `python -m benches.structures`, with the adapters of other systems."""

from __future__ import annotations
