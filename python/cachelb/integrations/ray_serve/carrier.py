"""Messages through an actor of Ray: one call per interval brings and fetches them."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from os import getpid
from typing import TypeAlias

from cachelb.integrations.ray_serve.messages import News, Reply
from cachelb.state.carrier import Asked, Received

Trade: TypeAlias = Callable[[str, str, int, News], Reply]


class RayCarrier:
    """Exchanges messages through the log that an actor keeps.

    `connect` finds or starts the actor and returns how to call it; both raise `ConnectionError`.
    """

    def __init__(self, connect: Callable[[], Trade]) -> None:
        self.who = f"{socket.gethostname()}:{getpid()}:{secrets.token_hex(4)}"
        self._connect = connect
        self._trade: Trade | None = None
        self._life, self._cursor = "", 0
        self._published: list[bytes] = []
        self._asks: list[str] = []
        self._answers: list[tuple[str, Sequence[bytes]]] = []
        self._due_s = 0.0

    def open(self) -> None:
        """Find the actor."""
        self._trade = self._connect()

    def publish(self, message: bytes) -> None:
        """Leave a message for all others with the next call."""
        self._published.append(message)

    def ask(self, origin: int, address: str) -> None:
        """Request a router's snapshot with the next call."""
        del origin  # each address is that of one life
        self._asks.append(address)

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Send a snapshot to a router that requested it, now."""
        self._answers.append((return_to.decode(), messages))
        self._due_s = 0.0

    def receive(self, timeout_s: float) -> list[Received | Asked]:
        """Call the actor, unless that was done since the last interval began: then wait."""
        now = time.monotonic()
        if now < self._due_s:
            time.sleep(min(timeout_s, self._due_s - now))
            return []
        if self._trade is None:
            raise ConnectionError("the actor is not known")
        news = News(self._published, self._asks, self._answers)
        # If the call fails these may be lost; routers that miss them request a snapshot.
        self._published, self._asks, self._answers = [], [], []
        reply = self._trade(self.who, self._life, self._cursor, news)
        self._life, self._cursor = reply.life, reply.cursor
        self._due_s = 0.0 if reply.more else now + timeout_s
        found: list[Received | Asked] = [
            Received(message, sender) for sender, message in (*reply.received, *reply.answers)
        ]
        return [*found, *(Asked(who.encode()) for who in reply.asked)]

    def close(self) -> None:
        """End: nothing is open."""
