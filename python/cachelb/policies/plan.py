"""Which rules a router runs, and with which options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from cachelb._core import Policy as NativePolicy
from cachelb.arguments import listed
from cachelb.arguments import whole as whole_number
from cachelb.policies import make, named
from cachelb.policies.base import BuiltinPolicy, unknown_keyword
from cachelb.policies.custom import PolicyLike, Watched, check

_MOST_SHADOWS = 64

PLACEMENTS = ("max_blocks_per_worker", "ttl_s")
"""How the router remembers placements for a policy of the caller's that needs tokens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules of one router.

    Attributes:
        name: Name of the policy.
        prefill_name: Name of the policy of prefill workers.
        decode_name: Name of the policy of decode workers.
        rule: The rule for whole requests.
        prefill: The rule for the prefill half of a pair; None with `decode`: `rule` weighs both halves.
        decode: The rule for the decode half.
        shadows: Rules that decide beside the first, by name.
        customs: The caller's own policies, where there are any.
        is_native: There are none.
        needs: Inputs of the policy for whole requests.
        replicas: Routers that serve the same fleet.
    """

    name: str
    prefill_name: str
    decode_name: str
    rule: NativePolicy
    prefill: NativePolicy | None
    decode: NativePolicy | None
    shadows: tuple[tuple[str, NativePolicy], ...]
    customs: dict[str, Any]
    is_native: bool
    needs: list[str]
    replicas: int

    @classmethod
    def of(
        cls,
        policy: PolicyLike,
        options: Mapping[str, Any],
        *,
        own: Iterable[str],
        prefill: PolicyLike | None,
        decode: PolicyLike | None,
        shadow: Sequence[PolicyLike],
        replicas: int,
    ) -> Self:
        """Make the plan of a router's arguments.

        Args:
            policy: The policy, by name or as an object.
            options: Its options, if it is given by name; of the caller's own policy, how placements are remembered.
            own: The router's other keywords, for errors.
            prefill: The policy of prefill workers; None is `prefill-times-batch`.
            decode: The policy of decode workers; None is the fewest blocks in use. If both are None, a policy that
                weighs pairs picks both.
            shadow: Policies that decide beside the first.
            replicas: Routers that serve the same fleet.

        Returns:
            The plan.

        Raises:
            TypeError: Something is no policy, or options are given for an object.
            ValueError: There is no such policy, or an option is outside its range.
        """
        whole_number("replicas", replicas, 1)
        _check_options(policy, options, own)
        whole = _Slot.of(policy, options)
        weighs = prefill is None and decode is None and whole.custom is None and whole.name == _WEIGHS_PAIRS
        halves = {
            "prefill": _Slot.of(_PREFILL if prefill is None else prefill, {}),
            "decode": _Slot.of(make("least-loaded", load="blocks") if decode is None else decode, {}),
        }
        shadows = [shadow] if isinstance(shadow, str) else listed("shadow", shadow, _MOST_SHADOWS)
        beside = [_Slot.of(policy, {}) for policy in shadows]
        customs = {name: slot.custom for name, slot in {"whole": whole, **halves}.items()}
        return cls(
            name=whole.name,
            prefill_name=whole.name if weighs else halves["prefill"].name,
            decode_name=whole.name if weighs else halves["decode"].name,
            rule=whole.rule,
            prefill=None if weighs else halves["prefill"].rule,
            decode=None if weighs else halves["decode"].rule,
            shadows=tuple((slot.name, slot.rule) for slot in beside),
            customs={**customs, "shadows": [slot.custom for slot in beside]},
            is_native=all(slot.custom is None for slot in (whole, *halves.values(), *beside)),
            needs=sorted(getattr(whole.custom.policy if whole.custom else whole.rule, "needs", ())),
            replicas=replicas,
        )

    def pool(self, model: str | None, block_size: int) -> dict[str, Any]:
        """Describe the part of the router that belongs to one model.

        Args:
            model: Name of the model, None for the first pool.
            block_size: Tokens per block.

        Returns:
            The arguments of the native half.
        """
        return {
            "model": model,
            "block_size": block_size,
            "replicas": self.replicas,
            "rule": self.rule,
            "prefill": self.prefill,
            "decode": self.decode,
            "shadows": [rule for _, rule in self.shadows],
        }


@dataclass(frozen=True, slots=True)
class _Slot:
    """One policy of a router: the native one that it runs, and one of the caller's that decides in its place."""

    name: str
    rule: NativePolicy
    custom: Watched | None = None

    @classmethod
    def of(cls, policy: PolicyLike, options: Mapping[str, Any]) -> Self:
        if isinstance(policy, str):
            policy, options = make(policy, **options), {}
        if isinstance(policy, BuiltinPolicy):
            return cls(policy.name, policy)
        policy = check(policy)
        needs = {"tokens": "tokens" in policy.needs, "session": "session" in policy.needs}
        return cls(policy.name, NativePolicy("custom", {**needs, **options}), Watched(policy))


def _check_options(policy: PolicyLike, options: Mapping[str, Any], own: Iterable[str]) -> None:
    """Refuse keywords that neither the router nor its policy has."""
    kind = named(policy) if isinstance(policy, str) else type(policy)
    if kind is None:  # of another distribution, whose class refuses them
        return
    has: Iterable[str] = kind.keywords() if issubclass(kind, BuiltinPolicy) else PLACEMENTS
    taken = () if isinstance(policy, BuiltinPolicy) else has
    for option in options:
        if option not in taken:
            if option in has:
                call = f"Router(..., policy={kind.__name__}({option}=...))"
                raise TypeError(f"{option} is an option of {kind.__name__}: {call}")
            raise unknown_keyword("Router has no argument", option, [*own, *taken], of_router=True)


_WEIGHS_PAIRS = "adaptive"
_PREFILL = "prefill-times-batch"
