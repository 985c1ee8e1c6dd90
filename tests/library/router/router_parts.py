"""Parts of routers with methods of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachelb import Router


class Replaced:
    """A part of a router, some of whose methods are others."""

    def __init__(self, part: object, methods: Mapping[str, Any]) -> None:
        self._part = part
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def replaced(name: str, methods: Callable[[Router[Any], Any], Mapping[str, Any]]) -> property:
    """Return what goes in the place of `Router.NAME`: every router's part with the `methods` of router and part."""
    native = getattr(Router, name)

    def part(router: Router[Any]) -> Replaced:
        own = native.__get__(router)
        return Replaced(own, methods(router, own))

    return property(part)
