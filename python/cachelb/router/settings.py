"""Groups of a router's settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from cachelb.bodies import RequestBodies, settings_of
from cachelb.errors import did_you_mean
from cachelb.policies import BuiltinPolicy, named
from cachelb.policies.base import owners_of_options
from cachelb.policies.plan import PLACEMENTS

if TYPE_CHECKING:
    from cachelb.policies import PolicyLike

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """How `Router.select_pair` picks a prefill and a decode worker. A router checks the values.

    Attributes:
        prefill: Policy of the prefill half. None under `adaptive`, with no `decode` either, picks both halves by one
            cost; otherwise it is `prefill-times-batch`.
        decode: Policy of the decode half; None without that cost is the worker with the fewest blocks in use.
        uncached_token_threshold: With fewer uncached tokens, the decode worker does the prefill itself, and with as
            many or more a prefill worker does. None leaves it to the cost under `adaptive`, else is 0.
        fallback: Let the decode worker do the prefill too if no prefill worker is available.
        transfer_ms: Fixed milliseconds of handing a computed prompt to a decode worker, for the cost: messages, and the
            decode step in which it joins.
        transfer_ms_per_token: Milliseconds per prompt token that the decode worker does not hold, for the cost: bytes
            of KV cache per token by bytes per millisecond between the workers. The default is 128 KiB at 25 GB/s.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(pairs=cachelb.Pairs(uncached_token_threshold=256))
        >>> router.add_worker("p0", role="prefill")
        >>> router.add_worker("d0", role="decode")
        >>> router.select_pair(tokens=range(255)).prefill is None, router.select_pair(tokens=range(256)).prefill.worker
        (True, 'p0')
    """

    prefill: PolicyLike | None = None
    decode: PolicyLike | None = None
    uncached_token_threshold: int | None = None
    fallback: bool = False
    transfer_ms: float = 20.0
    transfer_ms_per_token: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """When a router passes a worker over, and when it no longer trusts what it knows of it. A router checks the values.

    Attributes:
        booking_ttl_s: Seconds without activity after which a booking no longer counts as load.
        max_report_age_s: Seconds after which a load report is stale.
        reconcile_grace_s: Seconds without activity after which a booking is released once two load reports in a row do
            not count the request. Must exceed the time until an engine counts a request, and the pauses of a stream.
            None never releases.
        veto_kv_usage: Reported KV use, from 0 to 1, from which a worker is passed over, as long as another is below it.
        veto_waiting: Reported waiting requests from which a worker is passed over, likewise.
        breaker_failures: Consecutive failures before the first byte after which a worker is passed over; 0 is off.
        breaker_cooldown_s: For how many seconds.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0", "gpu1"], health=cachelb.Health(breaker_failures=1), seed=1)
        >>> failed = router.select_worker(tokens=range(64))
        >>> _ = failed.on_error(500)
        >>> router.select_worker(tokens=range(64)).worker == failed.worker
        False
        >>> cachelb.Router(health=cachelb.Health(veto_kv_usage=90))
        Traceback (most recent call last):
        ValueError: veto_kv_usage must be between 0 and 1, got 90
    """

    booking_ttl_s: float = 3600
    max_report_age_s: float = 2.0
    reconcile_grace_s: float | None = 30.0
    veto_kv_usage: float | None = None
    veto_waiting: float | None = None
    breaker_failures: int = 5
    breaker_cooldown_s: float = 5.0


GROUPS: Final[Mapping[str, type]] = {"bodies": RequestBodies, "pairs": Pairs, "health": Health}
"""Classes of settings, by the keyword of `Router` that takes one."""

FLAT_PAIRS: Final = {
    **{f"{name}_policy": name for name in ("prefill", "decode")},
    **{f"pd_{each.name}": each.name for each in fields(Pairs)[2:]},
}
"""Fields of `Pairs` by their names in configurations."""


def values_of(keyword: str, given: object) -> dict[str, Any]:
    """List the settings of a group by name; None is the defaults."""
    kind = GROUPS[keyword]
    if not isinstance(given, kind | None):
        raise TypeError(f"{keyword} must be {kind.__name__}, not {type(given).__name__}")
    return settings_of(kind() if given is None else given)


def named_keywords(new: Callable[P, R]) -> Callable[P, R]:
    """Give the constructor of a router an error for an unknown keyword that names the object that has it."""
    known = (new.__kwdefaults__ or {}).keys()

    @wraps(new)
    def construct(*args: P.args, **keywords: P.kwargs) -> R:
        for option in keywords:
            if option not in known and option != "workers":
                raise _unknown(option, ["workers", *known], keywords.get("policy", "adaptive"))
        return new(*args, **keywords)

    return construct


def _unknown(option: str, known: Collection[str], policy: object) -> TypeError:
    from difflib import get_close_matches

    kind = (named(policy) if isinstance(policy, str) else type(policy)) or BuiltinPolicy
    owners = {name: ("policy", name, kinds) for name, kinds in owners_of_options().items()}
    for keyword, group in GROUPS.items():
        owners |= {each.name: (keyword, each.name, [group.__name__]) for each in fields(group)}
    owners |= {flat: ("pairs", name, [Pairs.__name__]) for flat, name in FLAT_PAIRS.items()}
    if issubclass(kind, BuiltinPolicy):
        mine = kind.keywords().keys() - {each.name for each in fields(Health)}
        owners |= {name: ("policy", name, [kind.__name__]) for name in mine}
    near = option if option in owners else next(iter(get_close_matches(option, [*known, *owners], n=1)), None)
    if isinstance(policy, str) and named(policy) is None and option not in owners:
        call = f"Router(..., policy=cachelb.policies.make({policy!r}, {option}=...))"
        return TypeError(f"Router has no argument {option!r}; an option of {policy!r} is set by {call}")
    if near is None or near in known:
        return TypeError(f"Router has no argument {option!r}{did_you_mean(option, known)}")
    keyword, name, kinds = owners[near]
    text = f"an option of {', '.join(kinds[:4])}: Router(..., {keyword}={kinds[0]}({name}=...))"
    if near in PLACEMENTS and not issubclass(kind, BuiltinPolicy):
        text = f"an attribute of the policy: {kind.__name__}.{near} = ..."
    lead = f"{option} is" if near == option else f"Router has no argument {option!r}; did you mean {near},"
    return TypeError(f"{lead} {text}")
