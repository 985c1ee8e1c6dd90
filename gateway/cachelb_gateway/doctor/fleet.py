"""Checks of settings that must be equal on all workers of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from cachelb_gateway.doctor.pages import Facts
from cachelb_gateway.doctor.verdicts import Check


def check_fleet(fleet: Mapping[str, Facts]) -> list[Check]:
    """Compare the workers that answered."""
    if len(fleet) <= 1:
        return []
    return [_models(fleet), _block_sizes(fleet), _addresses(fleet), _templates(fleet)]


def _models(fleet: Mapping[str, Facts]) -> Check:
    groups = _grouped(fleet, lambda facts: tuple(sorted(facts.models)) or None)
    if len(groups) <= 1:
        return Check("models", "ok", f"the same {_names(next(iter(groups), ()))} everywhere")
    listed = "; ".join(f"{_names(models)} on {', '.join(workers)}" for models, workers in groups.items())
    fix = "name the models of each worker: router.add_worker(url, models=[...])"
    return Check("models", "warn", f"not the same: {listed}", fix)


def _block_sizes(fleet: Mapping[str, Facts]) -> Check:
    groups = _grouped(fleet, lambda facts: facts.block_size)
    if len(groups) <= 1:
        seen = f"{next(iter(groups))} tokens everywhere" if groups else "not reported"
        return Check("block-sizes", "ok" if groups else "skip", seen)
    sizes = sorted(int(str(size)) for size in groups)
    listed = "; ".join(f"{size} on {', '.join(workers)}" for size, workers in groups.items())
    if all(size % sizes[0] == 0 for size in sizes):
        fix = f"use block_size={sizes[0]} in the router, or start all engines with the same --block-size"
        return Check("block-sizes", "warn", listed, fix)
    return Check("block-sizes", "fail", listed, "start all engines with the same --block-size")


def _addresses(fleet: Mapping[str, Facts]) -> Check:
    """Two workers at one event address would be credited with each other's blocks."""
    owners: dict[str, list[str]] = {}
    for key, facts in fleet.items():
        for endpoint in facts.endpoints.values():
            owners.setdefault(endpoint.address, []).append(key)
    shared = [f"{address} of {', '.join(keys)}" for address, keys in owners.items() if len(keys) > 1]
    if shared:
        fix = "let each engine publish at a port of its own"
        return Check("event-addresses", "fail", f"one address for several workers: {'; '.join(shared)}", fix)
    if not owners:
        return Check("event-addresses", "skip", "no worker publishes events")
    return Check("event-addresses", "ok", f"{len(owners)}, all different")


def _templates(fleet: Mapping[str, Facts]) -> Check:
    groups = _grouped(fleet, lambda facts: tuple(map(tuple, facts.chat_ids)) or None)
    if len(groups) <= 1:
        seen = "equal token ids for equal chats" if groups else "unknown: /tokenize does not answer"
        return Check("templates", "ok" if groups else "skip", seen)
    listed = " against ".join(", ".join(workers) for workers in groups.values())
    fix = "start all engines with the same tokenizer and --chat-template"
    return Check("templates", "fail", f"token ids of the same chats differ: {listed}", fix)


def _grouped(fleet: Mapping[str, Facts], of: Callable[[Facts], Hashable]) -> dict[Hashable, list[str]]:
    """Group the workers that have a fact by it."""
    groups: dict[Hashable, list[str]] = {}
    for key, facts in fleet.items():
        fact = of(facts)
        if fact is not None:
            groups.setdefault(fact, []).append(key)
    return groups


def _names(models: Hashable) -> str:
    return ", ".join(map(str, models)) if isinstance(models, tuple) else str(models)
