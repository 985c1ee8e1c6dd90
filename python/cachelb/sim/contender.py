"""A contender of a run: a policy's name, its options, and its knowledge of caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cachelb.admission import Admission
from cachelb.router import Router
from cachelb.sim.calls import Call

KV_EVENTS, ORACLE = "+events", "+oracle"
"""Endings of a name: engines publish their KV events; caches and loads are known at once and exactly."""

POOL_BLIND = "+events+pool-blind"
"""The same, except that nothing is known of a pool that workers share."""

ROLLOUT, CLAIRVOYANT = "+rollout", "+clairvoyant"
"""Endings of a name where a league has a window: `cachelb.sim.league.yardsticks`."""

YARDSTICKS = (ORACLE, ROLLOUT, CLAIRVOYANT)
"""Endings that no real router could have."""

_BOUNDS = ("max_pending_requests", "max_pending_tokens")
_ENDINGS = (KV_EVENTS, POOL_BLIND, *YARDSTICKS)


def admission_apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of router and policy and those of `cachelb.Admission`."""
    bounds = {name: value for name, value in options.items() if name in _BOUNDS}
    return {name: value for name, value in options.items() if name not in _BOUNDS}, bounds


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy of a run.

    Example:
        >>> Contender.parse("prefill-times-batch+events(crowding=1)")
        Contender(name='prefill-times-batch', options={'crowding': 1}, ending='+events')
        >>> str(_)
        'prefill-times-batch(crowding=1)+events'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of the policy, of the router or of `cachelb.Admission`
    ending: str = ""  # ``""``, or one of the endings above

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``NAME`` or ``NAME(OPTION=VALUE,...)``, either with one of the endings. The name is not checked."""
        call = Call.parse(text)
        name, ending = call.name, call.end
        for known in _ENDINGS:
            if name.endswith(known) and not ending:
                name, ending = name.removesuffix(known), known
        if ending not in ("", *_ENDINGS) or not name:
            known = f"{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
            raise ValueError(f"cannot read policy {text!r}; write NAME(OPTION=VALUE) with nothing, {known} behind it")
        return cls(name, dict(call.options), ending)

    def check(self) -> None:
        """Refuse options that nothing takes."""
        options, bounds = admission_apart(self.options)
        router: Router[str] = Router(policy=self.name, **options)
        if bounds:
            Admission(router, **bounds)

    def __str__(self) -> str:
        return str(Call(self.name, self.options, self.ending))

    def named(self, name: str) -> Contender:
        """Return a copy with another name of the policy, such as the target of an alias."""
        return replace(self, name=name)
