"""The read-only half of a router: explanations, statistics, records, models."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cachelb.policies.learned import write_model
from cachelb.router import views
from cachelb.router.snapshots import Snapshots

if TYPE_CHECKING:
    from os import PathLike
    from typing import Unpack

    from cachelb.explanation import Explanation
    from cachelb.policies.plan import Plan
    from cachelb.router.attachable import Sharing, Sources
    from cachelb.router.discovered import Discovered
    from cachelb.types import DecisionRecord, LearnedStats, RequestArguments, RouterStats

W = TypeVar("W")


class Observation(Snapshots[W]):
    """The read-only part of a router: names, explanations, counters, records, models."""

    _plan: Plan

    discovered: Discovered
    """The workers that sources of discovery registered."""

    _sources: Sources
    """The attached sources and sinks."""

    _exchange: Sharing | None = None
    """The attached exchange with other routers, if any."""

    def explain(self, **request: Unpack[RequestArguments]) -> Explanation:
        """Explain the worker `select_worker` would pick now, with its view of every worker. Changes nothing.

        Args:
            **request: As for `select_worker`.

        Returns:
            The explanation.

        Raises:
            NoWorkerAvailable: No worker can be picked.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        return self._explain(**{"by_load": True, **request})

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self._plan.name

    @property
    def shadows(self) -> tuple[str, ...]:
        """Names of the shadow policies."""
        return tuple(name for name, _ in self._plan.shadows)

    def _policy_for(self, part: str) -> str:
        """Name of the policy that picks for "whole" requests, or for the "prefill" or "decode" half of a pair."""
        plan = self._plan
        return {"prefill": plan.prefill_name, "decode": plan.decode_name}.get(part, plan.name)

    def stats(self) -> RouterStats:
        """Read every counter. Adds no cost per request.

        Returns:
            The counters and the state of every worker.
        """
        self._use()
        return views.stats(self)

    def learned_stats(self) -> tuple[LearnedStats, ...]:
        """Read the learning state of policies that learn.

        Returns:
            One entry for each such policy, of each model and part.
        """
        return views.learned(self)

    def save_model(self, path: str | PathLike[str], *, model: str | None = None, part: str = "whole") -> None:
        """Write a learned policy's model to a file, for `model=` of another one.

        Args:
            path: The file; one that exists is replaced.
            model: Model of the router that the policy routes for, None for those without an index of their own.
            part: "whole", "prefill", "decode" or "shadow": the decisions the policy takes.

        Raises:
            ValueError: Nothing has been learned yet, or there is no such model.
            OSError: The file cannot be written.

        Example:
            >>> from cachelb import Router
            >>> Router(["gpu0"], policy="learned").save_model("routing.model")
            Traceback (most recent call last):
            ValueError: there is no model yet: the first one is trained after n_min samples
        """
        write_model(self._fleet.learned_model(model, part), path)

    def recent(self, n: int = 100) -> list[DecisionRecord]:
        """List the requests that finished last.

        Args:
            n: How many at most.

        Returns:
            Their records, oldest first, without any prompt text.
        """
        return views.recent(self, n)

    def records_since(self, cursor: int, limit: int = 4096) -> tuple[list[DecisionRecord], int, int]:
        """Read the records of requests that finished since an earlier call.

        Args:
            cursor: The cursor of the earlier call, or 0.
            limit: How many at most.

        Returns:
            The records, the new cursor, and how many were overwritten before they could be read.
        """
        return views.records_since(self, cursor, limit)
