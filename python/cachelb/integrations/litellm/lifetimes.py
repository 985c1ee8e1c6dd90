"""How long deployments keep a prompt cached: engines until they need the room, providers of models for a fixed time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

PROVIDER_S: Final = 300.0
"""Seconds after its last use that a provider keeps a prompt, and LiteLLM's own rule a deployment."""
LONG_S: Final = 3600.0
"""As `PROVIDER_S`, if every cached block of the request asks for "1h"."""


def shortest(deployments: Iterable[Mapping[str, Any]], messages: object, request: Mapping[str, Any]) -> float | None:
    """Return the shortest lifetime in seconds that deployments give a cached prompt, None if none of them ends it.

    A wrong setting counts as absent.
    """
    found = [_configured(deployment) for deployment in deployments]
    provider = LONG_S if None in found and _asks_for_long(messages, request) else PROVIDER_S
    seconds = min((provider if each is None else each for each in found), default=math.inf)
    return None if seconds == math.inf else seconds


def configured(deployment: Mapping[str, Any]) -> float | None:
    """Return the lifetime of a deployment, infinite if nothing ends it, None for that of providers.

    It is `model_info.cachelb.cache_ttl_s`, where null is infinite. Without it a deployment with an `api_base` is an
    engine, which has none, and any other a provider.

    Raises ValueError for a setting that is neither.
    """
    settings = (deployment.get("model_info") or {}).get("cachelb")
    if isinstance(settings, Mapping) and "cache_ttl_s" in settings:
        value = settings["cache_ttl_s"]
        if value is None:
            return math.inf
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ValueError(f"model_info.cachelb.cache_ttl_s is {value!r:.100}, it must be seconds above 0 or null")
    base = (deployment.get("litellm_params") or {}).get("api_base")
    return math.inf if isinstance(base, str) else None


def _configured(deployment: Mapping[str, Any]) -> float | None:
    try:
        return configured(deployment)
    except ValueError:
        return None  # the callback logged it when the deployment was new


def _asks_for_long(messages: object, request: Mapping[str, Any]) -> bool:
    """Return whether a request has cached blocks and all of them ask for "1h"."""
    marks = [mark for holder in _holders(messages, request) if (mark := holder.get("cache_control")) is not None]
    return bool(marks) and all(isinstance(mark, Mapping) and mark.get("ttl") == "1h" for mark in marks)


def _holders(messages: object, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may have a `cache_control`: messages, their parts, the system prompt's parts, tools."""
    for message in _mappings(messages):
        yield message
        yield from _mappings(message.get("content"))
    yield from _mappings(request.get("system"))
    for tool in _mappings(request.get("tools")):
        yield tool
        yield from _mappings([tool.get("function")])


def _mappings(items: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(items, list | tuple):
        yield from (item for item in items if isinstance(item, Mapping))
