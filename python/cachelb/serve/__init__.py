"""The gateway that `cachelb serve` runs: one process in front of OpenAI-compatible engines; its server is native.

Needs the extra ``cachelb[serve]``.
"""

from __future__ import annotations

from cachelb.certificate import Certificate
from cachelb.serve.gateway import Gateway, Series

__all__ = ["Certificate", "Gateway", "Series"]
