"""One class per routing policy, and the protocol of your own.

Example:
    >>> from cachelb import policies
    >>> policy = policies.make("adaptive", block_size=32)
    >>> with policy.select_worker(["gpu0", "gpu1"], tokens=range(640)) as decision:
    ...     print(decision.reason)
    cold
"""

from __future__ import annotations

from typing import Any

from cachelb.errors import did_you_mean
from cachelb.policies import plugins
from cachelb.policies.base import POLICIES, BuiltinPolicy, classes
from cachelb.policies.custom import FleetView, Policy, PolicyLike, RequestView, lowest
from cachelb.policies.learned import Learner

POLICIES.update((policy.name, policy) for policy in classes({"learned": Learner}))

globals().update({policy.__name__: policy for policy in POLICIES.values()})

__all__ = [
    "ALIASES",
    "POLICIES",
    "BuiltinPolicy",
    "FleetView",
    "Policy",
    "PolicyLike",
    "RequestView",
    "lowest",
    "make",
]
__all__ += [policy.__name__ for policy in POLICIES.values()]  # pyright: ignore[reportUnsupportedDunderAll] - as the stub has it

ALIASES: dict[str, str] = {"vllm-cache-aware": "cache-aware", "rendezvous-hash": "rendezvous"}
"""Other names of some of them."""


def make(name: str, /, **options: Any) -> Any:  # noqa: ANN401 - a type checker cannot tell whose policy it is
    """Build the policy called `name`.

    Args:
        name: A key of `POLICIES` or `ALIASES`, or a name that an installed distribution registers in the entry-point
            group `cachelb.policies`; underscores count as hyphens. `module:Class` imports the module: never pass on
            such a name from a request.
        **options: Options of the policy's class.

    Returns:
        The policy: a `BuiltinPolicy`, or a `Policy` of another distribution.

    Raises:
        ValueError: There is no such policy, module or class, or an option is outside its range.
        TypeError: The policy has no such option, or an option has the wrong type.
        CachelbError: The distribution that registers the name is broken.

    Example:
        >>> make("rendezvous_hash").name
        'rendezvous'
        >>> make("cache-awar")
        Traceback (most recent call last):
        ValueError: there is no policy 'cache-awar'; did you mean 'cache-aware'?
    """
    if ":" in name:
        return plugins.imported(name, options)
    if (policy := named(name)) is not None:
        return policy(**options)
    if (found := plugins.make(name, options)) is not None:
        return found
    known_names = [*POLICIES, *ALIASES, *plugins.names()]
    raise ValueError(f"there is no policy {name!r}{did_you_mean(name.replace('_', '-'), known_names)}")


def named(name: str) -> type[BuiltinPolicy] | None:
    """Return the class called `name` of those that come with cachelb."""
    plain = name.replace("_", "-")
    return POLICIES.get(ALIASES.get(plain, plain))
