"""Results of one run, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.common.table import Table, Tabular

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cachelb_lab.sim.workloads import Workload


class Status(IntEnum):
    """Outcome of a request.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, Status, build, simulate
        >>> run = simulate(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"))
        >>> {Status(value).name for value in run.status.tolist()}
        {'FINISHED'}
    """

    UNFINISHED = 0
    FINISHED = 1
    FAILED = 2
    REJECTED = 3
    TOO_LONG = 4
    ABORTED = 5


@dataclass(frozen=True, eq=False)
class WallClock:
    """The cost of the run in real time, which differs from run to run."""

    run_s: float
    select_ns: npt.NDArray[np.uint32]  # of each selection, in order


@dataclass(frozen=True, eq=False)
class SimResult(Tabular):
    """One policy, one seed, one workload, one fleet. Times are simulated seconds as the gateway sees them.

    Attributes:
        policy: Name of the policy.
        seed: Seed of the router.
        workload: The requests; columns below are by its rows unless stated otherwise.
        fleet: The fleet in words.
        workers: Names of the workers.
        status: `Status` values.
        arrival_s: When it arrived; NaN if its parent never ended.
        first_token_s: When its first token came; NaN if none did.
        finish_s: When it was over; NaN if it never was.
        worker: Position of the worker that served it last, -1 for none.
        prefill_worker: Position of the worker that computed its prompt for that one, -1 for none.
        reason: Index into ``reasons``.
        predicted_tokens: Prompt tokens the decision took to be cached.
        cached_tokens: Prompt tokens that were cached at its first admission.
        pulled_tokens: Prompt tokens that came from other workers, in all tries.
        preemptions: Times it was preempted.
        retries: Times it was retried.
        reasons: Names of the codes in ``reason``.
        sample_s: When the samples were taken.
        samples: By sample and worker: running, waiting, queued prompt tokens, share of KV in use.
        busy_s: By worker: seconds at work.
        evicted_blocks: By worker: cached blocks given up.
        worker_preemptions: By worker.
        event_messages: By worker: messages of its KV events.
        lost_messages: By worker: those that were lost on their way.
        replays: By worker: replays that closed a gap.
        resyncs: By worker: gaps that stayed open, so that its known blocks became doubtful.
        itl_s: Gaps between tokens: mean, p50, p90, p99, the last three to half a percent.
        end_s: When the last request was over.
        wall_clock: Real times, which differ between runs of equal seeds.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"), "random", seed=3)
        >>> run.policy, run.seed, len(run.workers), bool((run.finish_s > run.arrival_s).all())
        ('random', 3, 2, True)
    """

    policy: str
    seed: int
    workload: Workload
    fleet: str
    workers: list[str]
    status: npt.NDArray[np.uint8]
    arrival_s: npt.NDArray[np.float64]
    first_token_s: npt.NDArray[np.float64]
    finish_s: npt.NDArray[np.float64]
    worker: npt.NDArray[np.int32]
    prefill_worker: npt.NDArray[np.int32]
    reason: npt.NDArray[np.uint8]
    predicted_tokens: npt.NDArray[np.uint32]
    cached_tokens: npt.NDArray[np.uint32]
    pulled_tokens: npt.NDArray[np.uint32]
    preemptions: npt.NDArray[np.uint32]
    retries: npt.NDArray[np.uint32]
    reasons: list[str]
    sample_s: npt.NDArray[np.float64]
    samples: npt.NDArray[np.float32]
    busy_s: npt.NDArray[np.float64]
    evicted_blocks: npt.NDArray[np.uint64]
    worker_preemptions: npt.NDArray[np.uint64]
    event_messages: npt.NDArray[np.uint64]
    lost_messages: npt.NDArray[np.uint64]
    replays: npt.NDArray[np.uint64]
    resyncs: npt.NDArray[np.uint64]
    itl_s: npt.NDArray[np.float64]
    end_s: float
    wall_clock: WallClock

    @classmethod
    def from_native(cls, columns: dict[str, Any], *, run_s: float, **known: Any) -> SimResult:  # noqa: ANN401 - attributes
        """Build a result from the output of the engine model.

        Args:
            columns: Its answer.
            run_s: Seconds it took.
            **known: The attributes that it does not know.

        Returns:
            The result.
        """
        arrays: dict[str, Any] = {
            name: np.frombuffer(value[1], dtype=value[0]) if isinstance(value, tuple) else value
            for name, value in columns.items()
        }
        arrays["samples"] = arrays["samples"].reshape(len(arrays["sample_s"]), len(known["workers"]), 4)
        arrays.pop("selections")
        wall_clock = WallClock(run_s=run_s, select_ns=arrays.pop("select_ns"))
        return cls(**{**arrays, **known}, wall_clock=wall_clock)

    def __repr__(self) -> str:
        served = f"{int(self.finished.sum())} of {len(self.workload)} requests"
        return f"SimResult({self.policy!r}, {self.workload.name!r}, {self.fleet!r}, seed={self.seed}, {served})"

    def table(self) -> Table:
        """Return the requests as a table.

        Returns:
            One row per request. Workers, reasons and status by name; TTFT, TPOT and E2E of the requests served whole
            only, as in all figures.
        """

        def spread(rows: npt.NDArray[np.bool_], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            column = np.full(len(rows), np.nan)
            column[rows] = values
            return column

        def texts(values: Sequence[str | None]) -> npt.NDArray[np.object_]:
            return np.array([*values, None], dtype=object)

        count, names = len(self.workload), [status.name.lower() for status in Status]
        return Table(
            {
                "policy": np.full(count, self.policy, dtype=object),
                "seed": np.full(count, self.seed, dtype=np.uint64),
                "request": np.arange(count),
                "session": texts(self.workload.session or [None] * count)[:-1],
                "status": texts(names)[self.status],
                "arrival_s": self.arrival_s,
                "first_token_s": self.first_token_s,
                "finish_s": self.finish_s,
                "ttft_s": spread(self.finished, self.ttft_s),
                "tpot_s": spread(self._several, self.tpot_s),
                "e2e_s": spread(self.finished, self.e2e_s),
                "worker": texts(self.workers)[self.worker],
                "prefill_worker": texts(self.workers)[self.prefill_worker],
                "reason": texts(self.reasons)[np.where(self.worker >= 0, self.reason.astype(np.int64), -1)],
                "prompt_tokens": self.workload.prompt_tokens,
                "output_tokens": self.workload.output_tokens,
                "predicted_tokens": self.predicted_tokens,
                "cached_tokens": self.cached_tokens,
                "preemptions": self.preemptions,
                "retries": self.retries,
            }
        )

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Return which requests were served whole."""
        return np.equal(self.status, Status.FINISHED)

    @property
    def aborted(self) -> npt.NDArray[np.bool_]:
        """Return which requests their clients gave up."""
        return np.equal(self.status, Status.ABORTED)

    @property
    def ttft_s(self) -> npt.NDArray[np.float64]:
        """Return the seconds to the first token of the requests served whole."""
        return (self.first_token_s - self.arrival_s)[self.finished]

    @property
    def e2e_s(self) -> npt.NDArray[np.float64]:
        """Return the seconds to the end of the requests served whole."""
        return (self.finish_s - self.arrival_s)[self.finished]

    @property
    def tpot_s(self) -> npt.NDArray[np.float64]:
        """Return the seconds per token after the first, of requests served whole that have more than one."""
        several = self._several
        spans = (self.finish_s - self.first_token_s)[several]
        return spans / (self.workload.output_tokens[several] - 1)

    @property
    def _several(self) -> npt.NDArray[np.bool_]:
        """Return which requests were served whole with more than one token."""
        return self.finished & (self.workload.output_tokens > 1)

    @property
    def session_s(self) -> npt.NDArray[np.float64]:
        """Return the seconds from the first arrival of a session to its last end, of those served whole."""
        if self.workload.session is None:
            return np.empty(0)
        session, whole = sessions_of(self)
        begin_s, end_s = np.full(len(whole), np.inf), np.full(len(whole), -np.inf)
        done = self.finished
        np.minimum.at(begin_s, session[done], self.arrival_s[done])
        np.maximum.at(end_s, session[done], self.finish_s[done])
        spans: npt.NDArray[np.float64] = end_s[whole] - begin_s[whole]
        return spans


def sessions_of(result: SimResult) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the session of each request by number, and of each whether it was served whole; no session never is."""
    names, session = np.unique(np.array(result.workload.session or (), dtype=str), return_inverse=True)
    return session, (np.bincount(session[~result.finished], minlength=len(names)) == 0) & (names != "")
