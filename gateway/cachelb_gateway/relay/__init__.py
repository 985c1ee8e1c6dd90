"""The relay: one subscriber to the engines' KV cache events for many gateways.

Example:
    >>> from cachelb_gateway.relay import Relay
    >>> Relay("tcp://127.0.0.1:*").stats().published  # a context manager, or router.attach(relay), starts it
    0
"""

from __future__ import annotations

from cachelb_gateway.relay.relay import Relay, RelayStats

__all__ = ["Relay", "RelayStats"]
