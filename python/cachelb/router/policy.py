"""The policy of a router, and what it has learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.policies.learned import write_model
from cachelb.types import LearnedStats

if TYPE_CHECKING:
    from os import PathLike

    from cachelb._core import RouterFleet
    from cachelb.policies.plan import Plan


@dataclass(frozen=True, slots=True, repr=False)
class RouterPolicy:
    """The policy of a router: `Router.policy`. As text it is its name.

    Example:
        >>> from cachelb import Router
        >>> router = Router(["gpu0"], policy="learned", shadow=["random"])
        >>> router.policy.name, router.policy.shadows, str(router.policy)
        ('learned', ('random',), 'learned')
    """

    _plan: Plan
    _fleet: RouterFleet

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self._plan.name

    @property
    def shadows(self) -> tuple[str, ...]:
        """Names of the shadow policies."""
        return tuple(name for name, _ in self._plan.shadows)

    @property
    def is_native(self) -> bool:
        """Whether none of its parts and shadows is a class of your own."""
        return self._plan.is_native

    def name_of(self, part: str) -> str:
        """Return the name of the policy of a part: "whole", or the "prefill" or "decode" half of a pair."""
        return {"prefill": self._plan.prefill_name, "decode": self._plan.decode_name}.get(part, self.name)

    def learned_stats(self) -> tuple[LearnedStats, ...]:
        """Read the learning state of policies that learn.

        Returns:
            One entry for each such policy, of each model and part.
        """
        return tuple(LearnedStats(**row) for row in self._fleet.learned())

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
            >>> Router(["gpu0"], policy="learned").policy.save_model("routing.model")
            Traceback (most recent call last):
            ValueError: there is no model yet: the first one is trained after n_min samples
        """
        write_model(self._fleet.learned_model(model, part), path)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"RouterPolicy({self.name!r})"
