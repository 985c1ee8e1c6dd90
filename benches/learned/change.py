"""Devices that change their speed in the middle of a run: the costs of requests change with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cachelb_lab.sim import FleetSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb_lab.sim import SimResult

PERIODS = ((-2_000, 0), (0, 1_000), (1_000, 2_000), (2_000, 5_000), (5_000, 10_000))
"""Requests since the change, between which figures are taken."""


@dataclass(frozen=True)
class Change:
    """All devices of one kind become slower, or faster.

    Attributes:
        gpu: Their kind.
        before: How many times as long as usual their passes take at first.
        after: And from the change on.
    """

    gpu: str
    before: float
    after: float

    def fleet(self, fleet: FleetSpec, at_s: float) -> FleetSpec:
        """Return the fleet with devices that change at some second.

        Args:
            fleet: The workers.
            at_s: When.

        Returns:
            Its workers, some of them with a `slowdown`.
        """
        factors = ((0.0, self.before), (at_s, self.after))
        changed = (replace(each, slowdown=factors) if each.gpu.name == self.gpu else each for each in fleet)
        return FleetSpec(tuple(changed))

    def periods(
        self, result: SimResult, fleet: FleetSpec, first: int, error: npt.NDArray[np.float64]
    ) -> list[dict[str, float]]:
        """Return the figures of each of `PERIODS`.

        Args:
            result: The run.
            fleet: Its workers.
            first: The first request after the change.
            error: Error of each prediction in seconds; NaN without one.

        Returns:
            Mean TTFT and error in seconds, and the share of the requests that went to devices that change.
        """
        ttft = result.first_token_s - result.arrival_s
        changing = np.array([each.gpu.name == self.gpu for each in fleet])[result.worker]
        found = []
        for begin, end in PERIODS:
            rows = slice(first + begin, first + end)
            found.append(
                {
                    "mean": float(ttft[rows].mean()),
                    "error": float(np.nanmean(error[rows])),
                    "share": float(changing[rows].mean()),
                }
            )
        return found
