"""A router's settings in the flat form of configurations."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

from cachelb.policies import make
from cachelb.router.router import Router
from cachelb.router.settings import FLAT_PAIRS, Health, Pairs

if TYPE_CHECKING:
    from collections.abc import Mapping


def grouped(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Group settings in the flat form of configurations into the arguments of `Router`.

    The flat form holds the options of the policy and the fields of `Health` beside the router's own arguments, and
    those of `Pairs` as `prefill_policy`, `decode_policy` and with `pd_` before their names.

    Example:
        >>> grouped({"policy": "cache-aware", "load_factor": 1.5, "breaker_failures": 0, "seed": 1})
        {'policy': CacheAware(load_factor=1.5), 'seed': 1, 'health': Health(..., breaker_failures=0, ...)}
    """
    pairs = {name: flat[key] for key, name in FLAT_PAIRS.items() if key in flat}
    health = {each.name: flat[each.name] for each in fields(Health) if each.name in flat}
    given = {key: value for key, value in flat.items() if key not in FLAT_PAIRS and key not in health}
    policy = given.get("policy", "adaptive")
    options = {key: given.pop(key) for key in given.keys() - signature(Router).parameters.keys()}
    if options and isinstance(policy, str):
        given["policy"] = make(policy, **options)
    else:
        given |= options  # which the router refuses
    if pairs:
        given["pairs"] = Pairs(**pairs)
    if health:
        given["health"] = Health(**health)
    return given
