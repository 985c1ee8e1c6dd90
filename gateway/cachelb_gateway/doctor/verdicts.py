"""Checks, verdicts and the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warn", "fail", "skip"]
"""Result of a check; "warn" works less well than it could, "skip" was not checked."""

_WORST_FIRST: Final[tuple[Verdict, ...]] = ("fail", "warn", "ok", "skip")


@dataclass(frozen=True, slots=True)
class Check:
    """One check and how it went.

    Attributes:
        name: Name of the check, such as "replay".
        verdict: "ok"; "warn" if it works less well than it could; "fail"; "skip" if it was not checked.
        seen: The observation.
        fix: Advice, empty if none is needed.

    Example:
        >>> from cachelb_gateway.doctor import Check
        >>> Check("replay", "warn", "no replay socket", "set replay_endpoint").verdict
        'warn'
    """

    name: str
    verdict: Verdict
    seen: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The checks of one worker.

    Attributes:
        worker: Its URL, without a password.
        checks: In the order they were made.

    Example:
        >>> from cachelb_gateway.doctor import Check, WorkerReport
        >>> report = WorkerReport("http://gpu0:8000", [Check("reachable", "ok", "vllm 0.11")])
        >>> [check.name for check in report.checks]
        ['reachable']
    """

    worker: str
    checks: Sequence[Check]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return worst(self.checks)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The checks of a fleet.

    Attributes:
        workers: Reports of the workers, in the order given.
        fleet: Checks across all workers; empty for one worker.

    Example:
        >>> from cachelb_gateway.doctor import Check, Diagnosis, WorkerReport
        >>> Diagnosis([WorkerReport("http://gpu0:8000", [Check("reachable", "ok", "vLLM 0.32.0")])], []).is_healthy
        True
    """

    workers: Sequence[WorkerReport]
    fleet: Sequence[Check]

    @property
    def is_healthy(self) -> bool:
        """Whether no check failed."""
        return worst([*self.fleet, *(check for worker in self.workers for check in worker.checks)]) != "fail"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        workers = [
            {"worker": report.worker, "verdict": report.verdict, "checks": [asdict(check) for check in report.checks]}
            for report in self.workers
        ]
        return {"healthy": self.is_healthy, "workers": workers, "fleet": [asdict(check) for check in self.fleet]}


def worst(checks: Iterable[Check]) -> Verdict:
    """Return the worst verdict of some checks, "skip" if nothing was checked."""
    verdicts = {check.verdict for check in checks}
    for verdict in _WORST_FIRST:
        if verdict in verdicts:
            return verdict
    return "skip"


def of_ranks(checks: Mapping[int | None, Check]) -> Check:
    """Return the first of the worst checks of a worker's data-parallel ranks, with its rank if there are several."""
    verdict = worst(checks.values())
    rank, check = next((rank, check) for rank, check in checks.items() if check.verdict == verdict)
    return check if len(checks) == 1 else replace(check, seen=f"rank {rank}: {check.seen}")
