"""Builds the objects that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cachelb import policies
from cachelb.config import schema
from cachelb.config.model import KvEventsConfig, PolicyConfig, RouterConfig, WorkerConfig
from cachelb.events import ZmqSource
from cachelb.policies import KvAware
from cachelb.router import Router
from cachelb.sources import MetricsSource


def build(config: RouterConfig) -> Router[str]:
    """Build the router of a configuration; `RouterConfig.build` calls it."""
    source = event_source(config)
    router: Router[str] = Router(**router_arguments(config))
    router.config = config
    for worker in config.workers:
        router.add_worker(worker.key, **worker_arguments(worker))
    for cache in config.shared_caches:
        router.add_shared_cache(cache.name, **cache.options)
    sources = [each.make() for each in config.discovery]
    try:
        for each in sources:
            router.attach(each)
        if config.load is not None:
            router.attach(MetricsSource(**config.load))
        if source is not None:
            router.attach(source)
    except BaseException:
        router.close()
        raise
    return router


def event_source(config: RouterConfig) -> ZmqSource | None:
    """Make the source of KV events if `[kv_events]` or the policy asks for one."""
    events = config.kv_events
    chosen = (config.policy, config.prefill_policy, config.decode_policy)
    if events is None and any(policy is not None and policy.name == KvAware.name for policy in chosen):
        events = KvEventsConfig()
    if events is None or not events.enabled:
        return None
    return ZmqSource(**{key: value for key, value in asdict(events).items() if key != "enabled"})


def router_arguments(config: RouterConfig) -> dict[str, Any]:
    """Collect the keyword arguments of the router."""
    arguments: dict[str, Any] = {**config.options, "policy": config.policy.name, **config.policy.options}
    if config.prefill_policy is not None:
        arguments["prefill_policy"] = _policy(config.prefill_policy, config.options)
    if config.decode_policy is not None:
        arguments["decode_policy"] = _policy(config.decode_policy, config.options)
    if config.bodies is not None:
        arguments["bodies"] = config.bodies
    arguments["shadow"] = tuple(_policy(policy, config.options) for policy in config.shadow)
    return arguments


def worker_arguments(worker: WorkerConfig) -> dict[str, Any]:
    """Collect the keyword arguments of `Router.add_worker`."""
    return {**worker.options, "role": worker.role}


def _policy(policy: PolicyConfig, governed: Mapping[str, Any]) -> policies.PolicyLike:
    """Build a policy that has options of its own; the router makes the others by name."""
    if not policy.options:
        return policy.name
    known = schema.policy_options(policy.name)
    shared = {key: governed[key] for key in governed if key in known}
    own: policies.PolicyLike = policies.make(policy.name, **shared, **policy.options)
    return own
