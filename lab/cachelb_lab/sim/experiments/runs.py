"""The runs of every comparison: several at a time, with values that they share and with progress."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from cachelb.common.arguments import whole
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.figures.metrics import Metrics, Slo, measure
from cachelb_lab.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from cachelb.policies import PolicyLike
    from cachelb_lab.sim.figures.agentic import SessionFigures
    from cachelb_lab.sim.fleet import FleetSpec
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload

T = TypeVar("T")
U = TypeVar("U")

_MOST_THREADS = 1_024


class StoppedError(Exception):
    """Another task has failed, or the caller is interrupted."""


class Requests:
    """Requests in every form that runs need; `profile` is that of the same rows with other arrivals."""

    def __init__(self, workload: Workload, profile: PoolProfile | None = None) -> None:
        self.workload = workload
        self.prepared = prepare(workload)
        self._profile = profile or PoolProfile(workload)

    def measure(
        self, result: SimResult, fleet: FleetSpec, slo: Slo | None, sessions: SessionFigures | None = None
    ) -> Metrics:
        """Compute the figures of a run."""
        bound = self._profile.hits(fleet.cache_tokens // self.workload.block_size)
        return measure(result, slo=slo, sessions=sessions, bound=bound, infinite=self._profile.hits())


class Batch:
    """Tasks with values that they share: each is made once, and dropped with the last of its `uses`.

    `total` is the number of runs. After an error, tasks that have begun end with their next report of progress.

    Example:
        >>> batch = Batch(["a", "a"], 2, None)
        >>> batch.take("a", lambda: [1]) is batch.take("a", lambda: [2])
        True
    """

    def __init__(self, uses: Iterable[Hashable], total: float, progress: Callable[[float], object] | None) -> None:
        self._left = Counter(uses)
        self._total, self._progress = total, progress
        self._done = 0.0
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._made: dict[Hashable, Any] = {}
        self._stopped = False

    def each(self, threads: int, do: Callable[[T], U], tasks: Sequence[T], keep: Callable[[T, U], object]) -> None:
        """Run tasks, several at a time, and keep their results in order."""
        pool = ThreadPoolExecutor(whole("threads", threads, 1, _MOST_THREADS))
        try:
            for task, future in [(task, pool.submit(do, task)) for task in tasks]:
                keep(task, future.result())
        except BaseException:
            self._stopped = True
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def report(self, runs: float = 0.0) -> None:
        """Pass on that runs are done, and raise `StoppedError` if there is no use in more."""
        if self._stopped:
            raise StoppedError
        if self._progress is not None:
            with self._lock:
                self._done += runs
                self._progress(min(1.0, self._done / self._total))

    def simulate(self, requests: Requests, fleet: FleetSpec, policy: PolicyLike, **settings: Any) -> SimResult:  # noqa: ANN401 - those of `simulate`
        """Make one run, and report it as it goes on."""
        count, reported = len(requests.workload), 0

        def report(done: int) -> None:
            nonlocal reported
            self.report((done - reported) / count)
            reported = done

        result = simulate(requests.workload, fleet, policy, prepared=requests.prepared, progress=report, **settings)
        self.report(1 - reported / max(1, count))
        return result

    def take(self, key: Hashable, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is made
        """Return a shared value; while it is being made, other callers wait for it."""
        with self._lock:
            own = self._locks.setdefault(key, threading.Lock())
        with own:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def drop(self, *keys: Hashable) -> None:
        """Drop values on behalf of one user, whether it took them or not."""
        with self._lock:
            for key in keys:
                self._left[key] -= 1
                if not self._left[key]:
                    self._made.pop(key, None)
                    self._locks.pop(key, None)
