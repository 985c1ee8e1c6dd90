"""What every built-in policy shares."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from cachelb._core import Policy as NativePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Key: TypeAlias = "Callable[[Any], str] | None"
Clock: TypeAlias = "Callable[[], float] | None"


class BuiltinPolicy(NativePolicy):
    """A policy whose rule runs natively.

    Workers are your own objects: `str`, objects with a `.url` or `.id`, or anything else with `key=`. They are only
    handed back. A new key is registered on sight; a worker that says it is not `healthy`, `is_healthy` or `ready`
    (an attribute, a method or a dict entry) is passed over. A worker's key must not change while it is in use.

    Every policy takes these keyword options:
        seed: Seed of ties and samples. The same seed and the same calls give the same picks; None draws one.
        key: Function from a worker to its unique name, for workers without `.url` or `.id`, such as dicts.
        clock: Function that returns monotonic seconds, 0 or more; None is the system's.
        booking_ttl_s: Seconds without a sign of life after which a booking no longer counts as load.

    Attributes:
        name: Name of the policy in configurations.
        needs: What `select_worker` must be given for the policy to do its work; without it the policy falls back to
            load and says so in the reason.
        option_aliases: Other spellings of options that the class takes, and the options they stand for.

    Example:
        >>> from cachelb.policies import BuiltinPolicy, CacheAware
        >>> policy: BuiltinPolicy = CacheAware(seed=1)
        >>> policy.name, policy.select_worker(["gpu0"], tokens=range(64)).worker
        ('cache-aware', 'gpu0')
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    option_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})
