"""KV cache events as engines publish them."""

from __future__ import annotations

from cachelb_fakes.events.messages import Form, cleared, encode_batch, removed, stored
from cachelb_fakes.events.publisher import EventPublisher

__all__ = ["EventPublisher", "Form", "cleared", "encode_batch", "removed", "stored"]
