"""The short form of options, `key=value,key=value`, of a name with some, `name(key=value)`, and lists of such."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Option: TypeAlias = "int | float | str | bool | None"
"""A value of an option."""

_FORM = re.compile(r"(?P<name>[^()]*)(?:\((?P<options>[^()]*)\))?(?P<end>[^()]*)", re.DOTALL)
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class Call:
    """A name, options, and the text behind them.

    Example:
        >>> call = Call.parse("prefill-times-batch(crowding=1)+events")
        >>> call.name, dict(call.options), call.end
        ('prefill-times-batch', {'crowding': 1}, '+events')
        >>> str(call)
        'prefill-times-batch(crowding=1)+events'
    """

    name: str  # before the parenthesis
    # in the order given; hyphens in keys count as underscores
    options: Mapping[str, Option] = field(default_factory=dict)
    end: str = ""  # behind the parenthesis

    @classmethod
    def parse(cls, text: str) -> Call:
        """Read ``name``, or ``name(key=value,...)``; numbers, ``true``, ``false`` and ``none`` are read as such.

        Example:
            >>> Call.parse("chat(count)")
            Traceback (most recent call last):
            ValueError: cannot read 'count' in 'chat(count)'; write NAME(KEY=VALUE,KEY=VALUE)
        """
        found = _FORM.fullmatch(text.strip())
        if not found or not found["name"].strip():
            raise ValueError(f"cannot read {text!r}; write NAME or NAME(KEY=VALUE,KEY=VALUE)")
        options = _options(found["options"] or "", f" in {text!r}; write NAME(KEY=VALUE,KEY=VALUE)")
        return cls(found["name"].strip(), options, found["end"].strip())

    def __str__(self) -> str:
        if not self.options:
            return self.name + self.end
        return f"{self.name}({','.join(f'{key}={_text(value)}' for key, value in self.options.items())}){self.end}"


def read_options(text: str) -> dict[str, Option]:
    """Read ``key=value,key=value``; hyphens in keys count as underscores.

    Example:
        >>> read_options("max-wait-s=1.5, order=edf,fairness=none")
        {'max_wait_s': 1.5, 'order': 'edf', 'fairness': None}
        >>> read_options("edf")
        Traceback (most recent call last):
        ValueError: cannot read 'edf'; write KEY=VALUE,KEY=VALUE
    """
    return _options(text, "; write KEY=VALUE,KEY=VALUE")


def split_list(text: str) -> list[str]:
    """Split at commas outside of parentheses; blanks around items are cut, empty items left out.

    Example:
        >>> split_list("cache-aware, prefill-times-batch(crowding=1),learned(a=1,b=2)")
        ['cache-aware', 'prefill-times-batch(crowding=1)', 'learned(a=1,b=2)']
    """
    parts, depth = [""], 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def number_or_text(text: str) -> int | float | str:
    """Read a value of a command line as a number, else as text.

    Example:
        >>> [number_or_text(text) for text in ("2", "0.5", "served")]
        [2, 0.5, 'served']
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _options(text: str, advice: str) -> dict[str, Option]:
    """Read options, where `advice` ends the message about one that cannot be read."""
    options: dict[str, Option] = {}
    for part in text.split(",") if text.strip() else ():
        key, _, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not _KEY.fullmatch(key) or not value.strip() or key in options:
            raise ValueError(f"cannot read {part.strip()!r}{advice}")
        options[key] = _value(value.strip())
    return options


def _value(text: str) -> Option:
    """Return a number, a word of the language, or the text."""
    return _WORDS.get(text, number_or_text(text))


def _text(value: Option) -> str:
    """Return a value as it is written."""
    return str(value).lower() if value is None or isinstance(value, bool) else f"{value}"
