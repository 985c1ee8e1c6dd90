"""Any interleaving of tokens, clients that leave, failures and health checks, against a log that is read anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args

from hypothesis import given
from hypothesis import strategies as st

from cachelb import Decision, Health, Router
from cachelb.testing import ManualClock

Kind: TypeAlias = Literal["token", "gave up", "failed", "silent", "answered", "restarted"]

KEYS = ("a", "b")
FAILURES = 3
HALF = 2
"""Failures that a lost connection counts as."""
LEAST_S = 2.0


@dataclass
class Log:
    """Everything that happened on one worker."""

    events: list[tuple[float, Kind]] = field(default_factory=list)

    def since(self, wanted: Kind, ends: frozenset[Kind], upto: int | None = None) -> int:
        """Count events back to one that ends what they mean."""
        count = 0
        for number in range(len(self.events) if upto is None else upto, 0, -1):
            kind = self.events[number - 1][1]
            if kind in ends or (kind == "answered" and self.pages(number - 1) >= 3):
                break
            count += kind == wanted
        return count

    def pages(self, upto: int | None = None) -> int:
        """Count the silent pages in a row, but for those behind a token that came in spite of three."""
        upto = len(self.events) if upto is None else upto
        count = 0
        for number in range(upto, 0, -1):
            kind = self.events[number - 1][1]
            if kind in {"token", "answered", "restarted"}:
                break
            count += kind == "silent"
        return 0 if self._is_broken(upto - count) else count

    def _is_broken(self, upto: int) -> bool:
        for number in range(upto, 0, -1):
            kind = self.events[number - 1][1]
            if kind in {"answered", "restarted"}:
                return False
            if kind == "token" and self.pages(number - 1) >= 3:
                return True
        return False

    @property
    def is_silent(self) -> bool:
        """Whether the worker shows no sign of life."""
        return self.pages() >= 3 or self.since("gave up", _LIFE) >= 2

    @property
    def fails(self) -> bool:
        """Whether its failures trip the breaker."""
        return self.since("failed", _LIFE) >= FAILURES

    def silent_since(self) -> float:
        """Return the time of its last sign of life."""
        for number in range(len(self.events), 0, -1):
            at, kind = self.events[number - 1]
            if kind in _LIFE or (kind == "answered" and self.pages(number - 1) >= 3):
                return at
        return 0.0


_LIFE: frozenset[Kind] = frozenset({"token", "restarted"})

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["send"] * 9 + ["token"] * 2 + ["leave", "fail", "lose"] * 3 + ["silent"] * 6 + ["answered", "restarted"]
        ),
        st.integers(0, 99),
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0, 9.0]),
    ),
    min_size=100,
    max_size=250,
)


class World:
    """The router beside the logs."""

    def __init__(self) -> None:
        self.clock = ManualClock(10.0)
        self.router: Router[str] = Router(KEYS, seed=1, clock=self.clock, health=Health(breaker_failures=FAILURES))
        self.logs = {key: Log() for key in KEYS}
        self.waiting: list[tuple[Decision[str], float]] = []

    def states(self) -> dict[str, str]:
        return {row.key: row.state for row in self.router.stats().workers}

    def note(self, key: str, kind: Kind) -> None:
        self.logs[key].events.append((self.clock(), kind))

    def send(self) -> None:
        before = self.states()
        decision = self.router.select_worker(by_load=True)
        assert before[decision.key] == "ready" or "ready" not in before.values()
        self.waiting.append((decision, self.clock()))

    def poll(self, key: str, kind: Kind) -> None:
        self.router.load_sink.update_health(key, answered=kind != "silent", restarted=kind == "restarted")
        self.note(key, kind)

    def end(self, how: str, number: int) -> None:
        decision, sent = self.waiting.pop(number % len(self.waiting))
        key = decision.key
        if how == "token":
            decision.on_first_token()
            decision.cancel()
            self.note(key, "token")
            return
        waited_s = self.clock() - max(sent, self.logs[key].silent_since())
        is_overdue = round(waited_s, 3) >= LEAST_S  # the router counts milliseconds
        if how == "fail":
            decision.on_error(500)
            self.note(key, "failed")
        elif how == "lose":
            decision.on_error(ConnectionRefusedError() if number % 2 else ConnectionResetError())
            for _ in range(HALF):
                self.note(key, "failed")
        else:
            decision.cancel()
        if is_overdue:
            self.note(key, "gave up")

    def check(self, key: str, state: str) -> None:
        log = self.logs[key]
        assert state != "unreachable" or log.is_silent, (key, log)
        assert state != "failing" or (log.fails and not log.is_silent), (key, log)
        # One that just became so is passed over, and so is one that a request tries.
        last = log.events[-1] if log.events else None
        if last in {(self.clock(), "silent"), (self.clock(), "gave up")} and log.is_silent:
            assert state == "unreachable" or Log(log.events[:-1]).is_silent, (key, log)
        if last == (self.clock(), "failed") and log.fails:
            assert state != "ready", (key, log)


@given(steps)
def test_the_state_of_every_worker_is_what_happened_on_it(steps: list[tuple[str, int, float]]) -> None:
    world = World()
    for what, number, pause_s in steps:
        world.clock.advance(pause_s)
        if what == "send":
            world.send()
        elif what in get_args(Kind) and what != "token":
            world.poll(KEYS[number % 2], cast("Kind", what))
        elif world.waiting:
            world.end(what, number)
        for key, state in world.states().items():
            world.check(key, state)
