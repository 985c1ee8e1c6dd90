"""Merges the settings of file and environment, and builds what they describe; the objects check their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from cachelb._core import worker_name
from cachelb.bodies import RequestBodies
from cachelb.errors import did_you_mean
from cachelb.router import Router
from cachelb_gateway.config import schema
from cachelb_gateway.config.building import assemble
from cachelb_gateway.config.layer import Layer, put
from cachelb_gateway.config.model import (
    DiscoveryConfig,
    PeerGroupConfig,
    PolicyConfig,
    RouterConfig,
    SharedCacheConfig,
    WorkerConfig,
)
from cachelb_gateway.config.setting import Setting, Table

_BAD_VALUE = (TypeError, ValueError, OverflowError)


def resolve(source: str, layers: Iterable[Layer]) -> RouterConfig:
    """Merge layers, of which the later ones win, and check the result."""
    merged, unused = _merge(layers)
    settings: Table = {}
    config = _Reader(source, merged, settings).config(unused)
    assemble(config, partial(_checked, settings))
    return config


def _merge(layers: Iterable[Layer]) -> tuple[Layer, dict[str, str]]:
    """Lay layers over each other; return also why options of a replaced policy take no effect."""
    merged = Layer()
    unused: dict[str, str] = {}
    for layer in layers:
        for name, table in layer.tables.items():
            held = merged.tables.setdefault(name, {})
            if name in schema.SLOTS and "type" in table and held and _policy_of(name, held) != table["type"].value:
                own = held.keys() - {"type", *schema.router_options()}
                unused |= {f"{name}.{key}": f"{table['type'].origin} names another policy" for key in sorted(own)}
                held.clear()
            held |= table
        known = {_bare(table): table for table in merged.lists.get("workers", ())}
        merged.lists |= layer.lists
        if "workers" in layer.lists:
            merged.lists["workers"] = [{**known.get(_bare(table), {}), **table} for table in layer.lists["workers"]]
        merged.model_path = layer.model_path or merged.model_path
    return merged, unused


def _policy_of(slot: str, table: Table) -> str | None:
    name: str | None = table["type"].value if "type" in table else schema.router_options()[slot].default
    return name


def _bare(table: Table) -> str:
    """Return the key of a worker without a trailing slash, which does not make another worker."""
    key: str = table["url"].value
    return key.rstrip("/") if "://" in key else key


class _Reader:
    """Makes a configuration of merged settings, and keeps the settings by their canonical path."""

    def __init__(self, source: str, merged: Layer, settings: Table) -> None:
        self._source, self._merged, self._settings = source, merged, settings

    def config(self, unused: Mapping[str, str]) -> RouterConfig:
        """Read every section."""
        tables, lists, model = self._merged.tables, self._merged.lists, self._merged.model_path
        slots = {slot: self._policy(slot, f"router.{slot}", tables.get(slot, {})) for slot in schema.SLOTS}
        sections = {name: self._values(name, tables[name]) for name in schema.sections() if name in tables}
        bodies = sections.pop("bodies", None)
        workers = self._workers(lists.get("workers", []))
        if model is not None:
            self._settings["model_path"] = model
        named = {
            name: [self._values(f"{name}[{n}]", table) for n, table in enumerate(lists.get(name, []))]
            for name in (*schema.LISTS, "discovery")
        }
        shadow = (
            self._policy(f"shadow[{n}]", f"router.shadow[{n}]", table)
            for n, table in enumerate(lists.get("shadow", []))
        )
        return RouterConfig(
            source=self._source,
            options=self._values("router", tables.get("router", {})),
            policy=slots["policy"] or PolicyConfig(_policy_of("policy", {}) or ""),
            prefill_policy=slots["prefill_policy"],
            decode_policy=slots["decode_policy"],
            shadow=tuple(each for each in shadow if each),
            workers=workers,
            shared_caches=tuple(SharedCacheConfig(*_split(cache, "name")) for cache in named["shared_caches"]),
            peer_groups=tuple(PeerGroupConfig(*_split(group, "name")) for group in named["peer_groups"]),
            discovery=tuple(DiscoveryConfig(*_split(each, "kind")) for each in named["discovery"]),
            kv_events=sections.get("kv_events"),
            load=sections.get("load"),
            bodies=None if bodies is None else _checked(self._settings, "bodies", _checked_bodies, bodies),
            model_path=None if model is None else model.value,
            origins=MappingProxyType({path: _origin(path, setting) for path, setting in self._settings.items()}),
            unused=MappingProxyType(unused),
        )

    def _values(self, path: str, table: Table) -> Mapping[str, Any]:
        """Return the values of a table."""
        self._settings |= {f"{path}.{key}": setting for key, setting in table.items()}
        return MappingProxyType({key: setting.plain() for key, setting in table.items()})

    def _policy(self, path: str, name_path: str, table: Table) -> PolicyConfig | None:
        """Read a policy; None leaves it to the router."""
        if not table:
            return None
        policy = table["type"].value if "type" in table else schema.router_options()[path].default
        if policy is None:
            raise next(iter(table.values())).error(f"names no policy; add one as {path}.type")
        if "type" in table:
            self._settings[name_path] = table["type"]
        known, aliases = schema.policy_options(policy), schema.option_aliases(policy)
        own: Table = {}
        for key, setting in table.items():
            if key == "type":
                continue
            if key not in known:
                hint = f" ({key!r} belongs in [router])" if key in schema.router_options() else None
                near = did_you_mean(key, (name for name, option in known.items() if option.kind))
                raise setting.error(f"policy {policy!r} has no such option{hint or near}")
            if key not in schema.router_options():
                put(own, aliases.get(key, key), known[key].checked(setting))
        return PolicyConfig(policy, self._values(path, own))

    def _workers(self, tables: list[Table]) -> tuple[WorkerConfig, ...]:
        """Read the workers, each of which is listed once."""
        seen: Table = {}
        workers = []
        for n, table in enumerate(tables):
            url = table["url"]
            if (other := seen.setdefault(_bare(table), url)) is not url:
                raise url.error(
                    f"worker {worker_name(url.value)!r} is there already ({other.path}); "
                    "a worker that prefills and decodes is listed once, with role 'both'"
                )
            key, options = _split(self._values(f"workers[{n}]", table), "url")
            role = options.pop("role", "both")
            port = {"bootstrap_port": options.pop("bootstrap_port", None)}
            workers.append(_checked(self._settings, f"workers[{n}]", partial(WorkerConfig, key, role, options), port))
        for worker, table in zip(workers, tables, strict=True):
            if worker.key.startswith("unix:") and any(each.role != "both" for each in workers):
                raise table["url"].error(
                    f"worker {worker_name(worker.key)!r} is a Unix socket, but prefill and decode workers transfer KV "
                    "cache over the network: give it a host and a port"
                )
        return tuple(workers)


def _split(values: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    return values[name], {key: value for key, value in values.items() if key != name}


def _origin(path: str, setting: Setting) -> str:
    written = "" if setting.path == path or setting.origin.startswith("env ") else f" as {setting.path}"
    return setting.origin + written


def _checked_bodies(**settings: Any) -> RequestBodies:  # noqa: ANN401 - any option
    """Make the settings of request bodies, which a router checks."""
    bodies = RequestBodies(**settings)
    Router[str]((), bodies=bodies)
    return bodies


def _checked(settings: Table, path: str, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Build an object; attribute an error to the setting that fails even alone, or that the error names."""
    try:
        return make(**options)
    except _BAD_VALUE as error:
        message = str(error)
        words = re.findall(r"\w+", message)
        places = {key: settings.get(f"{path}.{key}") or settings.get(f"router.{key}") for key in options}
        suspects = sorted(
            (key for key in places if places[key]), key=lambda key: words.index(key) if key in words else len(words)
        )
        culprit = next((key for key in suspects if not _fits(make, {key: options[key]})), next(iter(suspects), ""))
        if culprit in schema.SECRETS:
            message = message.partition(", got ")[0]
        place = places.get(culprit) or next(
            (each for key, each in settings.items() if key.startswith(f"{path}.")), None
        )
        raise (place or Setting(None, path, "configuration")).error(message) from error


def _fits(make: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Return whether an object accepts options by themselves."""
    try:
        make(**options)
    except _BAD_VALUE:
        return False
    return True
