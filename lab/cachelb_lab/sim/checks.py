"""Bounds of the simulator's numbers, by the annotation and the unit in the name of each.

The bounds are generous; rules of a single setting stay with it.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from cachelb.common.arguments import LONGEST_S, MOST_TOKENS, listed, number, whole

MOST_REQUESTS: Final = 10_000_000
"""Most requests of a workload; 64 bytes each at least."""

MOST_BLOCKS: Final = 1 << 28
"""Most blocks of all prompts and answers of a workload; 8 bytes each."""

_MOST_PASS_S: Final = 3600.0
_MOST_RATE: Final = 1e9
_MOST_THINGS: Final = 1_000_000
_MOST_SEED: Final = (1 << 64) - 1
_MOST_FLOAT: Final = 1e18
_MOST_SPREAD: Final = 1e3


def check(name: str, value: object, kind: str) -> None:
    """Refuse anything but a finite number within the bound of the unit in its name, or one of the choices.

    `kind` is its annotation; only numbers, tuples of numbers and the choices of a `Literal` are checked.

    Example:
        >>> check("output_tokens", 2**31, "int")
        Traceback (most recent call last):
        ValueError: output_tokens must be at most 16777216, got 2147483648
    """
    kinds = [each.strip() for each in kind.split("|")]
    if value is None and "None" in kinds:
        return
    choices = re.findall(r"'([^']+)'", kind) if kind.startswith("Literal[") else []
    if choices and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    sequences = [each for each in kinds if each in ("tuple[int, int]", "tuple[int, ...]", "Sequence[float]")]
    if sequences and ("float" not in kinds or isinstance(value, Sequence)):
        _check_each(name, value, sequences[0])
    elif "float" in kinds:
        number(name, _plain(value), least=0.0, most=_most(name))
    elif "int" in kinds:
        whole(name, _plain(value), 0, int(_most(name, of_whole=True)))


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check numbers and choices among the arguments of a function; other arguments are ignored."""
    for each in inspect.signature(function).parameters.values():
        if each.name in given:
            check(each.name, given[each.name], str(each.annotation))


def check_fields(made: Any, *, but: Sequence[str] = ()) -> None:  # noqa: ANN401 - any dataclass
    """Check numbers and choices of a dataclass, except fields with other bounds."""
    for each in fields(made):
        if each.name not in but:
            check(each.name, getattr(made, each.name), str(each.type))


def seconds_or_for_ever(name: str, value: object, *, least: float | None = None) -> None:
    """Refuse anything but a span of time, above 0 or at least `least`; it may be infinite."""
    if not (isinstance(value, float) and value == math.inf):
        number(name, _plain(value), least=least)


def pairs(name: str, value: object) -> list[tuple[float, float]]:
    """Read pairs of numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} must be a sequence of pairs of numbers, got {type(value).__name__}")
    found = []
    for pair in listed(name, value):
        try:
            one, other = pair
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be pairs of numbers, got {type(pair).__name__}") from None
        found.append((number(name, _plain(one), least=0.0), number(name, _plain(other), least=0.0)))
    return found


def _check_each(name: str, value: object, kind: str) -> None:
    """Check a sequence of numbers."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of numbers, got {type(value).__name__}")
    wanted = 2 if kind == "tuple[int, int]" else None
    if not value or len(value) > _MOST_THINGS or (wanted is not None and len(value) != wanted):
        bound = "2" if wanted else f"1 to {_MOST_THINGS:,}"
        raise ValueError(f"{name} must have {bound} numbers, got {len(value)}")
    for each in value:
        check(name, each, "float" if "float" in kind else "int")


def _plain(value: object) -> object:
    """Return a number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _most(name: str, *, of_whole: bool = False) -> float:
    """Return the largest number that a name's unit allows."""
    by_unit = {"seed": _MOST_SEED, "count": MOST_REQUESTS, "rate": _MOST_RATE, "share": 1.0}
    if name in by_unit:
        return by_unit[name]
    by_end = {
        "tokens": MOST_TOKENS,
        "_per_s": _MOST_FLOAT,
        "_s": LONGEST_S,
        "_seconds": _MOST_PASS_S,
        "_share": 1.0,
        "_spread": _MOST_SPREAD,
    }
    for end, most in by_end.items():
        if name.endswith(end):
            return most
    return _MOST_THINGS if of_whole else _MOST_FLOAT
