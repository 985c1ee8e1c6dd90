"""A contender of a run: a policy's name, its options, and its knowledge of caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cachelb import policies
from cachelb.admission import AdmissionOptions
from cachelb.common.calls import Call
from cachelb.router import Router
from cachelb.router.flat import grouped

KV_EVENTS, ORACLE = "+events", "+oracle"
"""Endings of a name: engines publish their KV events; caches and loads are known at once and exactly."""

POOL_BLIND = "+events+pool-blind"
"""As `KV_EVENTS`, but nothing is known of a pool that workers share."""

PULL = "pull_min_tokens"
"""Option of a run: tokens from which a router names a worker to take cached blocks from."""

PEERS = "peers_times"
"""Option of a run: a router knows which workers copy from each other, and that many times the time of a copy."""

_OF_ADMISSION = tuple(option.name for option in fields(AdmissionOptions))
_ENDINGS = (KV_EVENTS, POOL_BLIND, ORACLE)


def admission_apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of router and policy and those of `cachelb.Admission`, without those of a run."""
    own = {name: value for name, value in options.items() if name in _OF_ADMISSION}
    return {name: value for name, value in options.items() if name not in {*own, PULL, PEERS}}, own


def admission_in_short(admission: AdmissionOptions) -> dict[str, Any]:
    """Return the options that differ from the defaults; one in any case, which is enough to have an admission."""
    usual = AdmissionOptions()
    given = {name: getattr(admission, name) for name in _OF_ADMISSION}
    given_options = {name: value for name, value in given.items() if value != getattr(usual, name)}
    return given_options or {"max_pending_tokens": usual.max_pending_tokens}


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
    options: Mapping[str, Any] = field(default_factory=dict)  # of policy, router, run or `cachelb.Admission`
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

    def admitted(self, admission: AdmissionOptions) -> Contender:
        """Return a copy with an admission, except for what the options name already.

        Example:
            >>> str(Contender.parse("adaptive(max_wait_s=0)+events").admitted(AdmissionOptions(max_queued=9)))
            'adaptive(max_queued=9,max_wait_s=0)+events'
            >>> str(Contender.parse("adaptive").admitted(AdmissionOptions()))
            'adaptive(max_pending_tokens=4096)'
        """
        return replace(self, options={**admission_in_short(admission), **self.options})

    def check(self) -> None:
        """Refuse options that nothing takes."""
        options, own = admission_apart(self.options)
        try:
            Router(**grouped({"policy": self.name, **options}))
        except TypeError as error:
            raise TypeError(f"{self}: {error}") from error
        AdmissionOptions(**own)

    def __str__(self) -> str:
        return str(Call(self.name, self.options, self.ending))

    def canonical(self) -> Contender:
        """Return a copy with the policy's own name, if it has another spelling of one that comes with cachelb.

        Example:
            >>> str(Contender.parse("vllm_cache_aware+events").canonical())
            'cache-aware+events'
        """
        plain = self.name.replace("_", "-")
        plain = policies.ALIASES.get(plain, plain)
        return replace(self, name=plain) if plain in policies.POLICIES else self
