"""Building the router of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cachelb import policies
from cachelb.events import ZmqSource
from cachelb.policies import KvAware
from cachelb.router import Router
from cachelb.router.flat import grouped
from cachelb.sources import MetricsSource
from cachelb_gateway.config import schema
from cachelb_gateway.discovery.text import KINDS

if TYPE_CHECKING:
    from cachelb_gateway.config.model import PeerGroupConfig, PolicyConfig, RouterConfig


def build(config: RouterConfig) -> Router[str]:
    """Build the router of a configuration; `RouterConfig.build` calls it."""
    router, sources = assemble(config, lambda _path, make, options: make(**options))
    try:
        for each in sources:
            router.attach(each)
    except BaseException:
        router.close()
        raise
    return router


def assemble(config: RouterConfig, call: Callable[..., Any]) -> tuple[Router[str], list[Any]]:
    """Make the router and its sources, which are not started; `call(path, make, options)` makes each object."""
    slots = {slot: policy for slot in schema.SLOTS if (policy := getattr(config, slot)) is not None}
    made = {slot: _make_policy(config, slot, policy, call) for slot, policy in slots.items()}
    made |= {"policy": config.policy.name, **config.policy.options}
    made["shadow"] = tuple(_make_policy(config, f"shadow[{n}]", each, call) for n, each in enumerate(config.shadow))
    if config.bodies is not None:
        made["bodies"] = config.bodies
    router: Router[str] = call("router", partial(_make_router, **made), config.options)
    for n, worker in enumerate(config.workers):
        options = {**worker.options, "role": worker.role}
        call(f"workers[{n}]", partial(router.add_worker, worker.key), options)
    for n, cache in enumerate(config.shared_caches):
        others = {repr(each.options.get("model")): each.name for each in config.shared_caches[:n]}
        add = partial(_add_shared_cache, router, cache.name, others.get(repr(cache.options.get("model"))))
        call(f"shared_caches[{n}]", add, cache.options)
    for n, group in enumerate(config.peer_groups):
        add = partial(_add_peer_group, router, config.peer_groups[:n])
        call(f"peer_groups[{n}]", add, {"name": group.name, **group.options})
    sources = [call(f"discovery[{n}]", KINDS[each.kind], each.options) for n, each in enumerate(config.discovery)]
    for name, given in (("load", config.load), ("kv_events", _event_options(config))):
        source = None if given is None else call(name, _SWITCHED[name], given)
        if source is not None:
            sources.append(source)
    return router, sources


def _make_router(**flat: Any) -> Router[str]:  # noqa: ANN401 - any option
    return Router(**grouped(flat))


def _make_policy(config: RouterConfig, path: str, policy: PolicyConfig, call: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Build a policy with its own options and the router's; the router makes one without own options by name."""
    known = schema.policy_options(policy.name)
    shared = {key: value for key, value in config.options.items() if key in known}
    made = call(path, partial(policies.make, policy.name), {**shared, **policy.options})
    return made if policy.options else policy.name


def _event_options(config: RouterConfig) -> Mapping[str, Any] | None:
    chosen = (config.policy, config.prefill_policy, config.decode_policy)
    implied = any(policy is not None and policy.name == KvAware.name for policy in chosen)
    return {} if config.kv_events is None and implied else config.kv_events


def _add_shared_cache(router: Router[str], name: str, other: str | None, **options: Any) -> None:  # noqa: ANN401
    """Register a shared cache, the only one of its model, under a name that no worker has."""
    if other is not None:
        raise ValueError(f"{name!r} is the second shared cache of the model after {other!r}; it reads one")
    if name in set(router.keys()):
        raise ValueError(f"name {name!r} is the key of a worker; a shared cache needs a name of its own")
    router.shared_caches.add(name, **options)


def _add_peer_group(router: Router[str], before: Sequence[PeerGroupConfig], name: str, **options: Any) -> None:  # noqa: ANN401
    """Register a peer group, whose name is new and whose workers are in no group of another model."""
    for other in before:
        both = {*(options.get("workers") or ())} & {*(other.options.get("workers") or ())}
        if other.name == name:
            raise ValueError(f"name {name!r} is that of the peer group before")
        if both and options.get("model") != other.options.get("model"):
            raise ValueError(f"workers has {min(both)!r}, which is in {other.name!r}, a peer group of another model")
    router.peer_groups.add(name, **options)


def _switched(kind: Callable[..., Any], *, enabled: bool = True, **options: Any) -> Any:  # noqa: ANN401 - any option
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled must be bool, got {type(enabled).__name__}")
    return kind(**options) if enabled else None


_SWITCHED: Mapping[str, Callable[..., Any]] = {
    "load": partial(_switched, MetricsSource),
    "kv_events": partial(_switched, ZmqSource),
}
