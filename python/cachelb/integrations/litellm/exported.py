"""The callback's counters beside those of its router, for a Prometheus registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cachelb.metrics.family import Family

if TYPE_CHECKING:
    from cachelb.integrations.litellm.callback import CachelbCallback


def families(callback: CachelbCallback) -> Iterator[Family]:
    """Describe a callback."""
    reasons = [((reason,), count) for reason, count in sorted(callback.fallbacks.items())]
    text = "Requests that LiteLLM placed itself, by reason."
    yield Family("litellm_fallbacks", "counter", text, "{request}", ("reason",), reasons)
    text = "Requests whose prompt is no JSON."
    yield Family("litellm_unread", "counter", text, "{request}", (), [((), callback.unread)])
    text = "Requests without an outcome after `deadline_s`."
    yield Family("litellm_expired", "counter", text, "{request}", (), [((), callback.expired)])
