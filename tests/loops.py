"""Asynchronous tests."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def wanted(test: Callable[..., object], made: Mapping[str, object]) -> dict[str, object]:
    """Return what a test takes of the things that its decorator made."""
    return {name: each for name, each in made.items() if name in inspect.signature(test).parameters}


def without(test: Callable[..., object], made: Collection[str]) -> inspect.Signature:
    """Return the signature that pytest shall see: the parameters that the decorator does not fill."""
    signature = inspect.signature(test)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name not in made])
