"""Records of a router's finished requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import whole
from cachelb.types import DecisionRecord, ShadowPick

if TYPE_CHECKING:
    from cachelb._core import RouterFleet
    from cachelb.router.policy import RouterPolicy


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a router's finished requests: `Router.records`.

    Attributes:
        policy: The policy that picks for the requests.
    """

    policy: RouterPolicy
    _fleet: RouterFleet = field(repr=False)

    @property
    def capture(self) -> RouterFleet:
        """The native capture of prompts, for `cachelb.records.Capture`."""
        return self._fleet

    def recent(self, n: int = 100) -> list[DecisionRecord]:
        """List the requests that finished last.

        Args:
            n: How many at most.

        Returns:
            Their records, oldest first, without any prompt text.
        """
        n = whole("n", n, 0)
        return self.since(0, 1 << 30)[0][-n:] if n else []

    def since(self, cursor: int, limit: int = 4096) -> tuple[list[DecisionRecord], int, int]:
        """Read the records of requests that finished since an earlier call.

        Args:
            cursor: The cursor of the earlier call, or 0.
            limit: How many at most.

        Returns:
            The records, the new cursor, and how many were overwritten before they could be read.
        """
        rows, cursor, lost = self._fleet.records_since(cursor, limit)
        now_s = time.time()  # one for all, so that records are as far apart as their decisions
        return [self._record(row, now_s) for row in rows], cursor, lost

    def _record(self, row: dict[str, Any], now_s: float) -> DecisionRecord:
        time_s = now_s - row.pop("age_s")
        picks = zip(self.policy.shadows, row.pop("shadows"), strict=False)
        shadows = tuple(ShadowPick(policy, *pick) for policy, pick in picks)
        return DecisionRecord(time_s=time_s, policy=self.policy.name_of(row["part"]), shadows=shadows, **row)
