"""cachelb beside its alternatives: installs them into an environment of their own and runs `cachelb bench` there."""

from __future__ import annotations
