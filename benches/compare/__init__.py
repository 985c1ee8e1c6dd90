"""cachelb beside its alternatives: the tasks of `cachelb bench`, with the adapters of other systems."""

from __future__ import annotations
