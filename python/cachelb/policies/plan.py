"""Which rules a router runs, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from cachelb._core import Policy as NativePolicy
from cachelb.common.arguments import listed
from cachelb.common.arguments import whole as whole_number
from cachelb.policies import make
from cachelb.policies.base import BuiltinPolicy
from cachelb.policies.custom import PolicyLike, Watched, check

_MOST_SHADOWS = 64

PLACEMENTS = ("max_blocks_per_worker", "ttl_s")
"""Attributes of a caller's own policy: how the router remembers placements for it."""


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

    def __init__(
        self,
        policy: PolicyLike,
        *,
        prefill: PolicyLike | None,
        decode: PolicyLike | None,
        shadow: Sequence[PolicyLike],
        replicas: int,
    ) -> None:
        """Make the plan of a router's arguments.

        Args:
            policy: The policy, by name or as an object.
            prefill: The policy of prefill workers; None is `prefill-times-batch`.
            decode: The policy of decode workers; None is the fewest blocks in use. If both are None, a policy that
                weighs pairs picks both.
            shadow: Policies that decide beside the first.
            replicas: Routers that serve the same fleet.

        Raises:
            TypeError: Something is no policy.
            ValueError: There is no such policy.
        """
        self.replicas = whole_number("replicas", replicas, 1)
        whole = _Slot.of(policy)
        weighs = prefill is None and decode is None and whole.custom is None and whole.name == _WEIGHS_PAIRS
        first = _Slot.of(_PREFILL if prefill is None else prefill)
        second = _Slot.of(make("least-loaded", load="blocks") if decode is None else decode)
        shadows = [shadow] if isinstance(shadow, str) else listed("shadow", shadow, _MOST_SHADOWS)
        beside = [_Slot.of(policy) for policy in shadows]
        self.name, self.rule = whole.name, whole.rule
        self.prefill_name, self.decode_name = (whole.name, whole.name) if weighs else (first.name, second.name)
        self.prefill: NativePolicy | None = None if weighs else first.rule
        self.decode: NativePolicy | None = None if weighs else second.rule
        self.shadows = tuple((slot.name, slot.rule) for slot in beside)
        customs = {"whole": whole.custom, "prefill": first.custom, "decode": second.custom}
        self.customs: dict[str, Any] = {**customs, "shadows": [slot.custom for slot in beside]}
        self.is_native = all(slot.custom is None for slot in (whole, first, second, *beside))
        self.needs = sorted(getattr(whole.custom.policy if whole.custom else whole.rule, "needs", ()))

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
    def of(cls, policy: PolicyLike) -> Self:
        if isinstance(policy, str):
            policy = make(policy)
        if isinstance(policy, BuiltinPolicy):
            return cls(policy.name, policy)
        policy = check(policy)
        needs = {"tokens": "tokens" in policy.needs, "session": "session" in policy.needs}
        placements = {name: getattr(policy, name) for name in PLACEMENTS if hasattr(policy, name)}
        return cls(policy.name, NativePolicy("custom", {**needs, **placements}), Watched(policy))


_WEIGHS_PAIRS = "adaptive"
_PREFILL = "prefill-times-batch"
