"""An endpoint picker for Envoy, Envoy AI Gateway, Istio, llm-d, KServe and other gateways that speak ext_proc.

`python -m cachelb_gateway.ext_proc --help` runs it from a configuration.
"""

from __future__ import annotations

from cachelb_gateway.certificate import Certificate
from cachelb_gateway.ext_proc.pages import Pages
from cachelb_gateway.ext_proc.server import EndpointPicker

__all__ = ["Certificate", "EndpointPicker", "Pages"]
