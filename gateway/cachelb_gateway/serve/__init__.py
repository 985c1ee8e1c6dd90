"""The gateway that `cachelb serve` runs: one process in front of OpenAI-compatible engines; its server is native."""

from __future__ import annotations

from cachelb_gateway.certificate import Certificate
from cachelb_gateway.serve.gateway import Gateway, Series

__all__ = ["Certificate", "Gateway", "Series"]
