"""Asynchronous tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping


def wanted(test: Callable[..., object], made: Mapping[str, object]) -> dict[str, object]:
    """Return what a test takes of the things that its decorator made."""
    return {name: each for name, each in made.items() if name in inspect.signature(test).parameters}


def without(test: Callable[..., object], made: Collection[str]) -> inspect.Signature:
    """Return the signature that pytest shall see: the parameters that the decorator does not fill."""
    signature = inspect.signature(test)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name not in made])
