"""The gateway that `cachelb serve` runs: one process in front of OpenAI-compatible engines.

Needs the extra ``cachelb[serve]``: uvicorn serves, and aiohttp is the client of the workers.
"""

from __future__ import annotations

from cachelb.serve.admin import Admin
from cachelb.serve.gateway import Gateway
from cachelb.serve.listener import Listener
from cachelb.serve.service import Service
from cachelb.serve.upstreams import Upstreams

__all__ = ["Admin", "Gateway", "Listener", "Service", "Upstreams"]
