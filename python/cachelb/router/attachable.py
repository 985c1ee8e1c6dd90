"""What a router starts and stops with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cachelb.router.router import Router
    from cachelb.types import StateStats


class Attachable(Protocol):
    """What `Router.attach` takes: a source of load, events or shared state, or a sink of records."""

    def start(self, router: Router[Any], /) -> None:
        """Begin, in a thread of its own; again in the child of a fork, which has none, once it uses the router."""
        ...

    def stop(self) -> None:
        """End; idempotent."""
        ...


class Sharing(Protocol):
    """What trades with other routers, and the process it does so in."""

    @property
    def pid(self) -> int:
        """The process whose thread it has."""
        ...

    def stats(self) -> StateStats:
        """Count what was told and heard."""
        ...
