"""A window of a cell's requests that figures count; earlier requests are placed alike for every policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cachelb.arguments import whole
from cachelb.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb.sim.fleet import FleetSpec
    from cachelb.sim.league.realism import Realism
    from cachelb.sim.result import SimResult
    from cachelb.sim.workloads import Workload

    Pinned = npt.NDArray[np.int32]
    """The worker of each request, -1 where the policy picks."""

WARM_UP = "adaptive"
"""The policy that places the requests before a window."""

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """Requests in a row.

    Attributes:
        after: Requests before the first of them, of which the fleet is as warm and as busy as it is then.
        count: Their number.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> window = Window.parse("1000:200")
        >>> window.after, window.end, str(window)
        (1000, 1200, '1000:200')
    """

    after: int
    count: int

    def __post_init__(self) -> None:
        whole("after", self.after, 0)
        whole("count", self.count, 1)

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read the short form.

        Args:
            text: ``AFTER:COUNT``.

        Returns:
            The window.

        Raises:
            ValueError: The text has another form.
        """
        after, _, count = text.partition(":")
        if not (after.isdecimal() and count.isdecimal()):
            raise ValueError(f"a window is AFTER:COUNT, two numbers of requests as in 1000:200, got {text!r}")
        return cls(int(after), int(count))

    @property
    def end(self) -> int:
        """Return the row behind the last."""
        return self.after + self.count

    def __str__(self) -> str:
        return f"{self.after}:{self.count}"


class Excerpt:
    """A cell up to the end of a window, to be run any number of times; no worker may crash or join.

    `progress` is called now and then during runs; an exception of it ends them.
    """

    def __init__(
        self,
        workload: Workload,
        fleet: FleetSpec,
        window: Window,
        realism: Realism,
        *,
        seed: int = 1,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        if len(workload) < window.end:
            raise ValueError(f"window {window} ends behind the {len(workload)} requests of {workload.name}")
        if realism.incidents:
            raise ValueError(f"realism {realism.name!r} has incidents; a window is of cells without")
        self.window, self.fleet = window, fleet
        self.workload = workload.slice(0, window.end)
        self.seed, self._realism, self._progress = seed, realism, progress
        self._prepared = prepare(self.workload)
        self.warm_up: Pinned = np.full(window.end, -1, dtype=np.int32)
        self.warm_up[: window.after] = self.run(WARM_UP).worker[: window.after]

    def until(self, end: int) -> Excerpt:
        """Return the same without the requests from a row on."""
        kept = object.__new__(Excerpt)
        kept.__dict__.update(self.__dict__)
        kept.workload = self.workload.slice(0, end)
        kept._prepared = prepare(kept.workload)
        kept.warm_up = self.warm_up[:end]
        return kept

    def run(self, policy: str, pinned: Pinned | None = None) -> SimResult:
        """Run a policy, with some requests pinned; by default those before the window, as the warm-up placed them."""
        return simulate(
            self.workload,
            self.fleet,
            policy,
            seed=self.seed,
            signals=self._realism.signals,
            gateways=self._realism.gateways,
            sharing=self._realism.sharing,
            pinned=self.warm_up if pinned is None else pinned,
            sample_interval_s=_NEVER,
            prepared=self._prepared,
            progress=self._progress,
        )

    def counted(self, run: SimResult) -> SimResult:
        """Return a run's rows of the window; columns by worker except preemptions are those of the whole run."""
        rows = np.arange(self.window.after, self.window.end)
        free = replace(run.workload, parent=np.full(len(run.workload), -1, dtype=np.int64))
        columns = {name: getattr(run, name)[rows] for name in _BY_REQUEST}
        by_worker = np.bincount(columns["worker"] + 1, columns["preemptions"], minlength=len(run.workers) + 1)[1:]
        return replace(run, workload=free.take(rows), worker_preemptions=by_worker.astype(np.uint64), **columns)

    def cost(self, run: SimResult, begin: int) -> tuple[int, float]:
        """Return the cost that compares runs, from a row on: requests without a first token, seconds others waited."""
        waits_s = (run.first_token_s - run.arrival_s)[begin:]
        came = np.isfinite(waits_s)
        return int((~came).sum()), float(waits_s[came].sum())


_BY_REQUEST = (
    "status",
    "arrival_s",
    "first_token_s",
    "finish_s",
    "worker",
    "prefill_worker",
    "reason",
    "predicted_tokens",
    "cached_tokens",
    "preemptions",
    "retries",
)
"""Columns of a run."""
