"""Carriers of messages between routers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Received:
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
    """Delivers messages to all other routers, in the order they were sent; may lose some.

    All methods are called in one thread, `open` first. A `ConnectionError` means a temporary failure; the call is
    retried later.
    """

    def open(self) -> None:
        """Connect; called again after a `ConnectionError`."""
        ...

    def publish(self, message: bytes) -> None:
        """Publish a message to all other routers, without waiting for any of them."""
        ...

    def ask(self, origin: int, address: str) -> None:
        """Request a snapshot of the router that sent a message."""
        ...

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Send a snapshot to a peer that requested it."""
        ...

    def receive(self, timeout_s: float) -> Sequence[Received | Asked | Refused]:
        """Wait for messages of other routers, and return a bounded number of them."""
        ...

    def close(self) -> None:
        """Disconnect. Idempotent."""
        ...
