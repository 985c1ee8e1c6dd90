"""Policies of your own: what a router takes as one, and what happens when one fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from cachelb._core import FleetView, RequestView
from cachelb.errors import did_you_mean

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from cachelb.policies.base import BuiltinPolicy
    from cachelb.types import Reason

__all__ = ["FleetView", "Policy", "PolicyLike", "RequestView", "lowest"]

NEEDS = frozenset({"tokens", "session", "prompt_tokens", "load"})
"""Needs that a policy may declare. Only "tokens" and "session" make the router compute something."""

_log = logging.getLogger("cachelb.policies")


@runtime_checkable
class Policy(Protocol):
    """A policy of your own: any object with these three members. `Router(policy=...)` takes it as it takes a name.

    The built-in policies are of this type too, but a router runs their rules natively and never calls their `choose`.

    `choose` sees the fleet as columns, not one object per worker, and returns the position of its pick. It may return
    the position and one of the reasons of `cachelb.types.Reason`; otherwise the reason is `custom`. It runs while
    nothing is locked; the router then books the pick, and asks again, at most twice more, if the worker has left in the
    meantime.

    A policy that raises, or returns what is no candidate, never fails a request: the least loaded worker serves it with
    reason `policy-error`, and each class of error is logged once. `KeyboardInterrupt` and its like pass through.

    A policy that needs tokens may have two attributes more, which say how the router remembers its placements:
    `max_blocks_per_worker`, 100,000 without it, and `ttl_s`, seconds that a placement counts as cached, without it
    until evicted.

    A good policy keeps no state, or at most a bounded one, and draws ties from the request, as `lowest` does: then
    equal seeds give equal picks, and `dry_run` returns the next one. `cachelb.testing.assert_policy_contract` checks
    all of this.

    Example:
        >>> from cachelb import Router
        >>> class FewestTokens:
        ...     name = "fewest-tokens"
        ...     needs = frozenset({"tokens"})
        ...
        ...     def choose(self, request: RequestView, fleet: FleetView) -> int:
        ...         waiting = fleet.column("pending_prefill_tokens") + fleet.column("uncached_tokens")
        ...         return lowest(waiting / fleet.column("weight"), request)
        >>> router = Router(["gpu0", "gpu1"], policy=FewestTokens())
        >>> first, second = (router.select_worker(tokens=range(n * 1000, n * 1000 + 320)) for n in range(2))
        >>> first.worker != second.worker, second.reason
        (True, 'custom')
    """

    @property
    def name(self) -> str:
        """Name of the policy in statistics and records."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Inputs that the router must compute for it; others are not computed.

        "tokens": what each worker holds of the prompt, from the placements the router recorded. "session": the hash of
        the prompt's head as `request.key` for requests without a session. "prompt_tokens" and "load" only
        declare what the policy reads and cost nothing. Prompts are hashed once for all policies of a router, so with
        the default of `Pairs.prefill`, which reads tokens, they are hashed in any case; `"least-loaded"` does without.
        """
        ...

    def choose(self, request: RequestView, fleet: FleetView) -> int | tuple[int, Reason]:
        """Pick a candidate.

        Args:
            request: The request, without the contents of the prompt.
            fleet: The candidates as columns, at least one.

        Returns:
            The position of the pick, from 0 to `len(fleet)` - 1, or the position and the reason.
        """
        ...


def lowest(cost: NDArray[Any], request: RequestView) -> int:
    """Find the candidate with the lowest cost. Equal ones are drawn by the request, never by their position.

    Args:
        cost: One number per candidate; NaN is unknown, and never the lowest.
        request: Draws.

    Returns:
        Its position; any, if every cost is NaN.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.policies import lowest
        >>> class Shortest:
        ...     name, needs = "shortest", frozenset()
        ...
        ...     def choose(self, request, fleet):
        ...         return lowest(fleet.column("inflight"), request)
        >>> router = Router(["gpu0", "gpu1"], policy=Shortest())
        >>> busy = router.select_worker(by_load=True)
        >>> busy.worker == router.select_worker(by_load=True).worker
        False
    """
    best = cost.min()
    if best != best:  # noqa: PLR0124 - NaN if there is one
        known = cost[cost == cost]  # noqa: PLR0124
        if not len(known):
            return request.randrange(len(cost))
        best = known.min()
    ties = (cost == best).nonzero()[0]
    return int(ties[request.randrange(len(ties))])


PolicyLike: TypeAlias = "str | BuiltinPolicy | Policy"
"""A policy as routers take it: a name, an object of `cachelb.policies`, or your own."""

_KEPT_CLASSES = 64


class Watched:
    """A caller's policy, whose failures are logged.

    Attributes:
        policy: The policy.
    """

    def __init__(self, policy: Policy) -> None:
        """Watch `policy`."""
        self.policy = policy
        self._seen: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Log an error that `choose` raised, or that its answer is; each class of error once.

        Args:
            error: The error.
        """
        kind = type(error).__qualname__
        if kind in self._seen or len(self._seen) >= _KEPT_CLASSES:
            return
        self._seen.add(kind)
        _log.error(
            "policy %r failed with %s; the least loaded worker serves such requests (reason 'policy-error')",
            self.policy.name,
            kind,
            exc_info=error,
        )


def check(policy: object) -> Policy:
    """Check that an object is a policy.

    Args:
        policy: The object.

    Returns:
        The object.

    Raises:
        TypeError: It lacks a member, or one has the wrong type.
        ValueError: It needs an input that no router has.

    Example:
        >>> check(object())
        Traceback (most recent call last):
        TypeError: policy must be ..., or an object with choose(request, fleet), not object
    """
    if isinstance(policy, type):
        raise TypeError(f"policy must be an object, not the class {policy.__name__}; pass {policy.__name__}()")
    kind = type(policy).__name__
    choose: Any = getattr(policy, "choose", None)
    if not callable(choose):
        raise TypeError(
            "policy must be a name, an object of cachelb.policies, or an object with choose(request, fleet), "
            f"not {kind}"
        )
    from inspect import iscoroutinefunction

    if iscoroutinefunction(choose):
        raise TypeError(f"{kind}.choose must be a plain function: a selection never waits")
    name: Any = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"{kind}.name must be a str that is not empty, not {name!r}")
    needs: Any = getattr(policy, "needs", None)
    if not isinstance(needs, (set, frozenset)):
        raise TypeError(
            f"{kind}.needs must be a frozenset of what it reads, such as frozenset({{'tokens'}}), "
            f"not {type(needs).__name__}"
        )
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"{kind}.needs has {need!r}, which no router computes{did_you_mean(str(need), NEEDS)}")
    own: Policy = policy  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - as just checked
    return own
