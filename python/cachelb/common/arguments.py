"""Checks of arguments; each error names the argument, the value and the expected range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

from cachelb.errors import did_you_mean

T = TypeVar("T")

MOST_ITEMS = 1 << 20
"""Items read of an iterable; `_core` has the same limit."""

MOST_TOKENS = 1 << 24
"""Tokens of one prompt, likewise."""

LONGEST_S = 1e9
"""Thirty years: practically for ever, without overflow of any clock or timer."""


_OTHERS = {"prompt": "text", "input": "text"} | dict.fromkeys(("token_ids", "input_ids", "prompt_token_ids"), "tokens")
"""Arguments that other libraries have for a prompt."""


def unexpected(known: str, positional: tuple[object, ...], keywords: Iterable[str] | None) -> TypeError:
    """Make the error for arguments of a selection without a name, or with a wrong one; no value is shown.

    `known` is the signature; `positional` and `keywords` are the arguments that it does not have.
    """
    if positional:
        name = "text=..." if isinstance(positional[0], str) else "tokens=..., messages=... or text=..."
        return TypeError(f"select_worker takes a prompt by keyword: {name}")
    wrong = next(iter(keywords or ()))
    other = _OTHERS.get(wrong, "")
    hint = f"; the prompt is {other}=" if other else did_you_mean(wrong, re.findall(r"\w+(?==)", known))
    return TypeError(f"unexpected keyword argument {wrong!r}{hint}")


def number(
    name: str, value: object, *, above: float = 0.0, least: float | None = None, most: float | None = None
) -> float:
    """Refuse anything but a finite number in a range: above `above`, or at least `least` where that is given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {found}")
    if found < least if least is not None else found <= above:
        bound = f"{least:g} or more" if least is not None else f"above {above:g}"
        raise ValueError(f"{name} must be {bound}, got {value}")
    if most is not None and found > most:
        raise ValueError(f"{name} must be {most:g} at most, got {value}")
    return found


def seconds(name: str, value: object, *, least: float | None = None) -> float:
    """Refuse anything but a span of time: above 0, or at least `least`. Spans beyond thirty years are cut to that."""
    return min(number(name, value, least=least), LONGEST_S)


def whole(name: str, value: object, least: int, most: int = (1 << 31) - 1) -> int:
    """Refuse anything but a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int, got {type(value).__name__}")
    if not least <= value <= most:
        shown = value if abs(value) < 1 << 128 else "a huge number"
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise ValueError(f"{name} must be {bound}, got {shown}")
    return value


def require(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    """Refuse an argument of another type; the value is not named, as it may be a secret."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} must be {words}, got {type(value).__name__}")


def request_copy(request: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the arguments of one request."""
    require("a request", request, Mapping, "a mapping of arguments of select_worker")
    return dict(request)


def text_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Copy headers to send; refuse what is no mapping of text to text."""
    headers = {} if headers is None else headers
    require("headers", headers, Mapping, "a mapping of names to values")
    for name, value in headers.items():
        require("a header's name", name, str, "text")
        require(f"header {name!r}", value, str, "text")
    return dict(headers)


def listed(name: str, items: Iterable[T], most: int = MOST_ITEMS) -> list[T]:
    """Read a finite iterable of at most `most` items; a string is refused."""
    if isinstance(items, (str, bytes)):
        raise TypeError(f"{name} must be several, got one {type(items).__name__}; put it in a list")
    try:
        iterator = iter(items)
    except TypeError:
        raise TypeError(f"{name} must be an iterable, got {type(items).__name__}") from None
    found = list(islice(iterator, most + 1))
    if len(found) > most:
        raise ValueError(f"{name} must have {most} items at most, got more")
    return found
