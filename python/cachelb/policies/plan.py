"""Which rules a router runs, and with which options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cachelb.policies import make
from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from cachelb.policies.base import Policy

Rule: TypeAlias = "tuple[str, dict[str, Any]]"
"""Name of a native rule and its options."""


_FEWEST_BLOCKS: tuple[str, Rule] = ("least-loaded", ("least-loaded", {"load": "blocks"}))


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules of one router.

    Attributes:
        name: Name of the policy.
        prefill_name: Name of the policy of prefill workers.
        decode_name: Name of the policy of decode workers.
        rule: The rule for whole requests.
        prefill: The rule for the prefill half of a pair.
        decode: The rule for the decode half.
        shadows: Rules that decide beside the first, by name.
    """

    name: str
    prefill_name: str
    decode_name: str
    rule: Rule
    prefill: Rule
    decode: Rule
    shadows: tuple[tuple[str, Rule], ...]

    @classmethod
    def of(
        cls,
        policy: str | Policy,
        options: Mapping[str, Any],
        *,
        prefill: str | Policy,
        decode: str | Policy | None,
        shadow: Sequence[str | Policy],
        replicas: int,
    ) -> Self:
        """Make the plan of a router's arguments.

        Args:
            policy: The policy, by name or as an object.
            options: Its options, if it is given by name.
            prefill: The policy of prefill workers.
            decode: The policy of decode workers; None is the fewest blocks in use.
            shadow: Policies that decide beside the first.
            replicas: Routers that serve the same fleet.

        Returns:
            The plan.

        Raises:
            TypeError: Something is no policy, or options are given for an object.
            ValueError: There is no such policy, or an option is outside its range.
        """
        if isinstance(replicas, bool) or not isinstance(replicas, int):
            raise TypeError(f"replicas must be int, not {type(replicas).__name__}")
        if replicas < 1:
            raise ValueError(f"replicas must be 1 or more, got {replicas}")
        name, rule = _rule(policy, options, replicas)
        prefill_name, prefill_rule = _rule(prefill, {}, replicas)
        decode_name, decode_rule = _FEWEST_BLOCKS if decode is None else _rule(decode, {}, replicas)
        shadows = [shadow] if isinstance(shadow, str) else shadow
        return cls(
            name=name,
            prefill_name=prefill_name,
            decode_name=decode_name,
            rule=rule,
            prefill=prefill_rule,
            decode=decode_rule,
            shadows=tuple(_rule(policy, {}, replicas) for policy in shadows),
        )

    def pool(self, model: str | None, block_size: int) -> dict[str, Any]:
        """Describe the part of the router that belongs to one model.

        Args:
            model: Name of the model, None for the first pool.
            block_size: Tokens per block.

        Returns:
            What the native half takes.
        """
        return {
            "model": model,
            "block_size": block_size,
            "rule": self.rule,
            "prefill": self.prefill,
            "decode": self.decode,
            "shadows": [rule for _, rule in self.shadows],
        }


def _rule(policy: str | Policy, options: Mapping[str, Any], replicas: int) -> tuple[str, Rule]:
    if isinstance(policy, str):
        policy = make(policy, **options)
    elif options:
        given = ", ".join(map(repr, options))
        raise TypeError(f"options ({given}) belong to a policy given by name; set them on the object")
    if not isinstance(policy, BuiltinPolicy):
        raise TypeError(f"policy must be a name or an object of cachelb.policies, not {type(policy).__name__}")
    name, own = policy._native  # noqa: SLF001 - of the base class
    return policy.name, (name, {**own, "replicas": replicas})
