"""The look-up of LMCache's controller: which instances hold how much of a prompt.

`POST /lookup` with `{"tokens": [...]}` answers `{"event_id": ..., "layout_info": {instance: [location, tokens]}}`, by
LMCache's `lmcache/v1/api_server/__main__.py` (`LookupRequest`, `LookupResponse`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from cachelb.common.arguments import MOST_TOKENS, listed

_MOST_INSTANCES: Final = 1 << 16
_MOST_BYTES: Final = 8 << 20
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class LookupHit:
    """The part of a prompt that one instance holds.

    Attributes:
        location: Where it is, as LMCache names it, such as "LocalCPUBackend".
        tokens: Leading tokens it holds.
    """

    location: str
    tokens: int


def lookup_request(tokens: Iterable[int]) -> bytes:
    """Return the body of a look-up.

    Example:
        >>> from cachelb.events.lmcache import lookup_request
        >>> lookup_request([128000, 849])
        b'{"tokens": [128000, 849]}'
    """
    return json.dumps({"tokens": listed("tokens", tokens, MOST_TOKENS)}).encode()


def parse_lookup(body: bytes) -> dict[str, LookupHit]:
    """Read the answer to a look-up.

    Args:
        body: The JSON answer.

    Returns:
        The part that each instance holds, by its id.

    Raises:
        ValueError: It is no such answer.

    Example:
        >>> from cachelb.events.lmcache import parse_lookup
        >>> parse_lookup(b'{"event_id": "Lookup1", "layout_info": {"a": ["LocalCPUBackend", 12]}}')
        {'a': LookupHit(location='LocalCPUBackend', tokens=12)}
    """
    if len(body) > _MOST_BYTES:
        raise ValueError(f"the answer to a look-up must have {_MOST_BYTES} bytes at most, got {len(body)}")
    try:
        answer: object = json.loads(body)
    except RecursionError:
        raise ValueError("the answer to a look-up is nested too deeply") from None
    found = cast("dict[str, object]", answer).get("layout_info") if isinstance(answer, dict) else None
    if not isinstance(found, dict) or len(found) > _MOST_INSTANCES:
        raise ValueError("the answer to a look-up must have an object layout_info")
    return {instance: _hit(instance, pair) for instance, pair in cast("dict[str, object]", found).items()}


def _hit(instance: str, pair: object) -> LookupHit:
    values = cast("list[object]", pair) if isinstance(pair, list) else []
    location, tokens = values if len(values) == _PAIR else (None, None)
    if not isinstance(location, str) or not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"layout_info of {instance!r} must be a location and a number of tokens")
    return LookupHit(location, tokens)
