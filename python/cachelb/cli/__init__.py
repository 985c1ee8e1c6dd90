"""Command line: `cachelb replay`, `cachelb demo`. Needs the extra ``cachelb[cli]``."""

from __future__ import annotations
