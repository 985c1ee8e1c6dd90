"""One class per routing policy, and the protocol of your own.

Example:
    >>> from cachelb import policies
    >>> policy = policies.make("adaptive", block_size=32)
    >>> with policy.select_worker(["gpu0", "gpu1"], tokens=range(640)) as decision:
    ...     print(decision.reason)
    cold
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.errors import did_you_mean
from cachelb.policies import plugins
from cachelb.policies.adaptive import Adaptive
from cachelb.policies.base import BuiltinPolicy
from cachelb.policies.boundary_learning import BoundaryLearning
from cachelb.policies.cache_aware import CacheAware
from cachelb.policies.consistent_hash import ConsistentHash
from cachelb.policies.custom import FleetView, Policy, PolicyLike, RequestView, lowest
from cachelb.policies.estimated_ttft import EstimatedTtft
from cachelb.policies.exploit_explore import ExploitExplore
from cachelb.policies.kv_aware import KvAware
from cachelb.policies.learned import Learned
from cachelb.policies.least_expected_wait import LeastExpectedWait
from cachelb.policies.least_loaded import LeastLoaded
from cachelb.policies.length_bucket import LengthBucket
from cachelb.policies.overlap_cost import OverlapCost
from cachelb.policies.power_of_two import PowerOfTwo
from cachelb.policies.prefill_times_batch import PrefillTimesBatch
from cachelb.policies.prefix_affinity import PrefixAffinity
from cachelb.policies.prefix_cache import PrefixCache
from cachelb.policies.prefix_cache_and_load import PrefixCacheAndLoad
from cachelb.policies.prefix_hash import PrefixHash
from cachelb.policies.queue_over_throughput import QueueOverThroughput
from cachelb.policies.random import Random
from cachelb.policies.rendezvous import Rendezvous
from cachelb.policies.round_robin import RoundRobin
from cachelb.policies.session import Session
from cachelb.policies.sticky_until_saturated import StickyUntilSaturated

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ALIASES",
    "POLICIES",
    "Adaptive",
    "BoundaryLearning",
    "BuiltinPolicy",
    "CacheAware",
    "ConsistentHash",
    "EstimatedTtft",
    "ExploitExplore",
    "FleetView",
    "KvAware",
    "Learned",
    "LeastExpectedWait",
    "LeastLoaded",
    "LengthBucket",
    "OverlapCost",
    "Policy",
    "PolicyLike",
    "PowerOfTwo",
    "PrefillTimesBatch",
    "PrefixAffinity",
    "PrefixCache",
    "PrefixCacheAndLoad",
    "PrefixHash",
    "QueueOverThroughput",
    "Random",
    "Rendezvous",
    "RequestView",
    "RoundRobin",
    "Session",
    "StickyUntilSaturated",
    "lowest",
    "make",
]

POLICIES: dict[str, type[BuiltinPolicy]] = {
    "adaptive": Adaptive,
    "cache-aware": CacheAware,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "rendezvous": Rendezvous,
    "consistent-hash": ConsistentHash,
    "prefix-hash": PrefixHash,
    "boundary-learning": BoundaryLearning,
    "length-bucket": LengthBucket,
    "session": Session,
    "round-robin": RoundRobin,
    "random": Random,
    "prefix-affinity": PrefixAffinity,
    "prefix-cache": PrefixCache,
    "prefix-cache-and-load": PrefixCacheAndLoad,
    "overlap-cost": OverlapCost,
    "prefill-times-batch": PrefillTimesBatch,
    "sticky-until-saturated": StickyUntilSaturated,
    "least-expected-wait": LeastExpectedWait,
    "queue-over-throughput": QueueOverThroughput,
    "estimated-ttft": EstimatedTtft,
    "exploit-explore": ExploitExplore,
    "kv-aware": KvAware,
    "learned": Learned,
}
"""The policies that come with cachelb, by name."""

ALIASES: dict[str, str] = {"vllm-cache-aware": "cache-aware", "rendezvous-hash": "rendezvous"}
"""Other names of some of them."""


def make(name: str, /, **options: Any) -> Any:  # noqa: ANN401 - a type checker cannot tell whose policy it is
    """Build the policy called `name`.

    Args:
        name: A key of `POLICIES` or `ALIASES`, or a name that an installed distribution registers in the entry-point
            group `cachelb.policies`; underscores count as hyphens.
        **options: Options of the policy's class.

    Returns:
        The policy: a `BuiltinPolicy`, or a `Policy` of somebody else's.

    Raises:
        ValueError: There is no such policy, or an option is outside its range.
        TypeError: The policy has no such option, or an option has the wrong type.
        CachelbError: The distribution that registers the name is broken.

    Example:
        >>> make("rendezvous_hash").name
        'rendezvous'
        >>> make("cache-awar")
        Traceback (most recent call last):
        ValueError: there is no policy 'cache-awar'; did you mean 'cache-aware'?
    """
    plain = name.replace("_", "-")
    plain = ALIASES.get(plain, plain)
    if plain not in POLICIES:
        if (found := plugins.make(name, options)) is not None:
            return found
        known_names = [*POLICIES, *ALIASES, *plugins.names()]
        raise ValueError(f"there is no policy {name!r}{did_you_mean(plain, known_names)}")
    policy = POLICIES[plain]
    known = policy.__new__.__kwdefaults__ or {}
    for option in options:
        if option not in known:
            raise TypeError(f"policy {plain!r} has no option {option!r}{did_you_mean(option, known)}")
    return policy(**options)
