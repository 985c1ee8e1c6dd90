"""The result of a selection, which owns one booked load until the request ends."""

from __future__ import annotations

from cachelb import _core

Decision = _core.Decision
