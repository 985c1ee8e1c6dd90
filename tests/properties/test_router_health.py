"""Any interleaving of tokens, clients that leave, failures and health checks, against a log that is read anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from cachelb import Decision, Router
from cachelb.testing import ManualClock

Kind: TypeAlias = Literal["token", "gave up", "failed", "silent", "answered", "restarted"]

KEYS = ("a", "b")
FAILURES = 3
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
        """Say when it showed the last sign of life."""
        for number in range(len(self.events), 0, -1):
            at, kind = self.events[number - 1]
            if kind in _LIFE or (kind == "answered" and self.pages(number - 1) >= 3):
                return at
        return 0.0


_LIFE: frozenset[Kind] = frozenset({"token", "restarted"})

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["send"] * 9 + ["token"] * 2 + ["leave"] * 4 + ["fail"] * 4 + ["silent"] * 6 + ["answered", "restarted"]
        ),
        st.integers(0, 99),
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0, 9.0]),
    ),
    min_size=100,
    max_size=250,
)


@given(steps)
def test_the_state_of_every_worker_is_what_happened_on_it(steps: list[tuple[str, int, float]]) -> None:
    clock = ManualClock(10.0)
    router: Router[str] = Router(KEYS, seed=1, clock=clock, breaker_failures=FAILURES)
    logs = {key: Log() for key in KEYS}
    waiting: list[tuple[Decision[str], float]] = []

    def note(key: str, kind: Kind) -> None:
        logs[key].events.append((clock(), kind))

    for what, number, pause_s in steps:
        clock.advance(pause_s)
        key = KEYS[number % 2]
        if what == "send":
            before = {row.key: row.state for row in router.stats().workers}
            decision = router.select_worker()
            assert before[decision.key] == "ready" or "ready" not in before.values()
            waiting.append((decision, clock()))
        elif what in {"silent", "answered", "restarted"}:
            router.update_health(key, answered=what != "silent", restarted=what == "restarted")
            note(key, what)  # type: ignore[arg-type]
        elif waiting:
            decision, sent = waiting.pop(number % len(waiting))
            key, log = decision.key, logs[decision.key]
            is_overdue = clock() - max(sent, log.silent_since()) >= LEAST_S
            if what == "token":
                decision.on_first_token()
                decision.cancel()
                note(key, "token")
                continue
            if what == "fail":
                decision.on_error(500)
                note(key, "failed")
            else:
                decision.cancel()
            if is_overdue:
                note(key, "gave up")
        for row in router.stats().workers:
            log = logs[row.key]
            if row.state == "unreachable":
                assert log.is_silent, (row.key, log)
            elif row.state == "failing":
                assert log.fails, (row.key, log)
                assert not log.is_silent, (row.key, log)
        for key, log in logs.items():
            # One that just became so is passed over, and so is one that a request tries.
            state = next(row.state for row in router.stats().workers if row.key == key)
            if log.events and log.events[-1] in {(clock(), "silent"), (clock(), "gave up")}:
                was_silent = Log(log.events[:-1]).is_silent
                assert state == "unreachable" or was_silent or not log.is_silent, (key, log)
            if log.events and log.events[-1] == (clock(), "failed") and log.fails:
                assert state != "ready", (key, log)
