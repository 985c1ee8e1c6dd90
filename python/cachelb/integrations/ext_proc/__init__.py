"""An endpoint picker for Envoy, Envoy AI Gateway, Istio, llm-d, KServe and other gateways that speak ext_proc.

`python -m cachelb.integrations.ext_proc --help` runs it from a configuration.
"""

from __future__ import annotations

from cachelb.certificate import Certificate
from cachelb.integrations.ext_proc.pages import Pages
from cachelb.integrations.ext_proc.server import EndpointPicker

__all__ = ["Certificate", "EndpointPicker", "Pages"]
