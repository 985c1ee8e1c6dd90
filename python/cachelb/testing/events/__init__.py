"""KV cache events as engines publish them; needs the extra ``cachelb[testing]``."""

from __future__ import annotations

try:
    import msgpack as _msgpack  # type: ignore[import-untyped]  # noqa: F401 - checked once, here
    import zmq as _zmq  # noqa: F401
except ImportError as error:
    raise ImportError(
        "cachelb.testing.EventPublisher needs pyzmq and msgpack: install them, or cachelb[testing]"
    ) from error

from cachelb.testing.events.messages import Form, cleared, encode_batch, removed, stored
from cachelb.testing.events.publisher import EventPublisher

__all__ = ["EventPublisher", "Form", "cleared", "encode_batch", "removed", "stored"]
