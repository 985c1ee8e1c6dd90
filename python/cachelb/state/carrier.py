"""What carries messages between routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of another router."""

    message: bytes
    address: str  # where it came from, in the carrier's form; unique among routers at a time


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the carrier cannot accept as one of the fleet."""

    reason: str
    address: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A peer requests a snapshot."""

    return_to: bytes  # the address for the answer, in the carrier's form


class Carrier(Protocol):
    """Brings messages to all other routers, in the order they were given; may lose some.

    All of it is called in one thread, which `open` is the first to be called in. `ConnectionError` says that it does
    not work at the moment; it is tried again later.
    """

    def open(self) -> None:
        """Begin; called again after a `ConnectionError`."""
        ...

    def publish(self, message: bytes) -> None:
        """Bring a message to all others, without waiting for any of them."""
        ...

    def ask(self, origin: int, address: str) -> None:
        """Ask the router of a message to tell everything."""
        ...

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Tell a peer that asked."""
        ...

    def receive(self, timeout_s: float) -> Sequence[Heard | Asked | Refused]:
        """Wait for what others say, a bounded number of messages at once."""
        ...

    def close(self) -> None:
        """End; idempotent."""
        ...
