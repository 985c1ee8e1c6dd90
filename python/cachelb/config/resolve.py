"""Merges the settings of file and environment into a checked configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from cachelb import policies
from cachelb._core import worker_name
from cachelb.bodies import RequestBodies
from cachelb.config import schema
from cachelb.config.build import router_arguments
from cachelb.config.document import Document, Keys, Setting, dotted
from cachelb.config.layer import Draft, Layer, PolicyDraft, put
from cachelb.config.model import (
    DiscoveryConfig,
    KvEventsConfig,
    PolicyConfig,
    RouterConfig,
    SharedCacheConfig,
    WorkerConfig,
)
from cachelb.errors import ConfigError, did_you_mean
from cachelb.router import Router
from cachelb.sources import MetricsSource

T = TypeVar("T")

_BAD_VALUE = (TypeError, ValueError, OverflowError)
_MAX_NESTING = 8  # of a value; options are numbers, texts and lists of them


def resolve(source: str, file: Layer, environment: Layer) -> RouterConfig:
    """Merge two layers, of which the environment wins, and check the result."""
    return _Resolver(source, file, environment).config()


class _Resolver:
    """Collects values and their origins."""

    def __init__(self, source: str, file: Layer, environment: Layer) -> None:
        """Keep the layers, the weaker one first."""
        self._source = source
        self._layers = (file, environment)
        self._origins: dict[str, str] = {}
        self._unused: dict[str, str] = {}

    def config(self) -> RouterConfig:
        """Merge and check everything."""
        options = self._router_options()
        policy = self._slot("policy", options)
        prefill, decode = self._half("prefill_policy", options), self._half("decode_policy", options)
        shadow = self._shadow(options)
        self._strays(policy.name)
        drafts = self._workers()
        workers = tuple(self._worker(n, draft) for n, draft in enumerate(drafts))
        _check_transfer(workers, drafts)
        caches = [draft for layer in self._layers for draft in layer.shared_caches]
        sources = next((layer.discovery for layer in reversed(self._layers) if layer.discovery is not None), [])
        kv_events = self._section("kv_events")
        load = self._section("load")
        if load is not None:
            _checked(MetricsSource, load)
        bodies = self._section("bodies")
        model = next((layer.model_path for layer in reversed(self._layers) if layer.model_path), None)
        config = RouterConfig(
            source=self._source,
            options=self._values(("router",), options),
            policy=policy,
            prefill_policy=prefill,
            decode_policy=decode,
            shadow=shadow,
            workers=workers,
            shared_caches=tuple(self._shared_cache(n, draft) for n, draft in enumerate(caches)),
            discovery=tuple(self._source_of_workers(n, draft) for n, draft in enumerate(sources)),
            kv_events=None if kv_events is None else _checked(KvEventsConfig, kv_events),
            load=None if load is None else self._values(("load",), load),
            bodies=None if bodies is None else _checked(checked_bodies, bodies),
            model_path=None if model is None else self._note(("model_path",), model),
            origins=MappingProxyType(self._origins),
            unused=MappingProxyType(self._unused),
        )
        _check_router(config, options, drafts, caches)
        return config

    def _note(self, keys: Keys, setting: Setting) -> Any:  # noqa: ANN401 - a value of any option
        """Record the place of a value, and return it."""
        path = dotted(keys)
        written = "" if setting.path == path or setting.origin.startswith("env ") else f" as {setting.path}"
        self._origins[path] = setting.origin + written
        return _plain(setting)

    def _values(self, keys: Keys, settings: Mapping[str, Setting]) -> Mapping[str, Any]:
        """Return the values of a table, and record their places."""
        return MappingProxyType({key: self._note((*keys, key), setting) for key, setting in settings.items()})

    def _router_options(self) -> dict[str, Setting]:
        """Merge the router's options, including those written among a policy's."""
        known = schema.router_options()
        merged: dict[str, Setting] = {}
        for layer in self._layers:
            own = dict(layer.options)
            for draft in (*layer.policies.values(), *(layer.shadow or ())):
                for key, setting in draft.options.items():
                    if key in known:
                        put(own, key, setting)
            merged |= own
        for key, setting in merged.items():
            if known[key].is_code:
                raise setting.error("cannot be written in a configuration; give it to Router in code")
        return merged

    def _half(self, slot: str, governed: Mapping[str, Setting]) -> PolicyConfig | None:
        """Merge the layers' policy of a role; None if they have none."""
        mentioned = any(slot in layer.policies for layer in self._layers)
        return self._slot(slot, governed) if mentioned else None

    def _slot(self, slot: str, governed: Mapping[str, Setting]) -> PolicyConfig:
        """Merge the layers' drafts of one policy."""
        default = schema.router_options()[slot].default
        drafts = [layer.policies[slot] for layer in self._layers if slot in layer.policies]
        name: Setting | None = None
        options: dict[str, Setting] = {}
        for draft in drafts:
            _check_sections(draft, default)
            if draft.name and options and _name_of(name, default) != _name_of(draft.name, default):
                reason = f"{draft.name.origin} names another policy"
                self._unused |= {dotted((slot, key)): reason for key in options if key not in governed}
                options = {}
            name = draft.name or name
            options |= draft.options
        if name is not None:
            self._note(("router", slot), name)
        elif not drafts:
            name = Setting(default, (slot,), Document("default", default))
        elif default is None:
            raise drafts[0].place.error(f"names no policy; add one as {slot}.type")
        else:
            name = Setting(default, drafts[0].place.keys, drafts[0].place.document)
        return self._policy((slot,), name, options, governed)

    def _shadow(self, governed: Mapping[str, Setting]) -> tuple[PolicyConfig, ...]:
        """Read the shadow policies of the strongest layer that has some."""
        drafts = next((layer.shadow for layer in reversed(self._layers) if layer.shadow is not None), [])
        shadow = []
        for n, draft in enumerate(drafts):
            if draft.name is None:
                raise draft.place.error("names no policy; add one as type")
            self._note(("router", "shadow", n), draft.name)
            shadow.append(self._policy(("shadow", n), draft.name, draft.options, governed))
        return tuple(shadow)

    def _policy(
        self,
        keys: Keys,
        name: Setting,
        options: Mapping[str, Setting],
        governed: Mapping[str, Setting],
    ) -> PolicyConfig:
        """Check a policy and its options by building it."""
        policy = schema.policy_name(name)
        known = schema.policy_options(policy)
        aliases = schema.option_aliases(policy)
        own: dict[str, Setting] = {}
        for key, setting in options.items():
            if key not in known:
                hint = schema.misplaced(key) or did_you_mean(key, (own for own in known if not known[own].is_code))
                raise setting.error(f"policy {policy!r} has no such option{hint}")
            if key not in governed:
                if known[key].is_code:
                    raise setting.error("cannot be written in a configuration; give it to the policy in code")
                put(own, aliases.get(key, key), setting)
        _checked(partial(policies.make, policy), {**{key: governed[key] for key in governed if key in known}, **own})
        return PolicyConfig(policy, self._values(keys, own))

    def _strays(self, policy: str) -> None:
        """Refuse unknown keys of the router's table, now that the policy's options are known."""
        for setting in (stray for layer in self._layers for stray in layer.strays):
            key = str(setting.keys[-1]).replace("-", "_")
            if key in schema.policy_options(policy):
                raise setting.error(f"is an option of the policy {policy!r}; write it under [policy]")
            if key == "workers":
                raise setting.error("workers stand at the top level: [[workers]]")
            raise setting.error(f"unknown key{did_you_mean(key, schema.router_options())}")

    def _workers(self) -> list[Draft]:
        """Merge the workers: the environment may list them, the file may set their options."""
        file, environment = (layer.workers for layer in self._layers)
        drafts = list(file or ())
        if environment is not None:
            known = {_bare(draft): draft for draft in drafts}
            drafts = [Draft(draft.name, known.get(_bare(draft), draft).options) for draft in environment]
        seen: dict[str, Setting] = {}
        for draft in drafts:
            other = seen.setdefault(_bare(draft), draft.name)
            if other is not draft.name:
                raise draft.name.error(
                    f"worker {worker_name(draft.name.value)!r} is there already ({other.path}); "
                    "a worker that prefills and decodes is listed once, with role 'both'"
                )
        return drafts

    def _worker(self, n: int, draft: Draft) -> WorkerConfig:
        """Check one worker."""
        self._note(("workers", n, "url"), draft.name)
        options = dict(self._values(("workers", n), draft.options))
        role = options.pop("role", schema.worker_options()["role"].default)
        port = options.pop("bootstrap_port", None)
        try:
            return WorkerConfig(draft.name.value, role, MappingProxyType(options), port)
        except _BAD_VALUE as error:
            raise draft.options["bootstrap_port"].error(str(error)) from error

    def _source_of_workers(self, n: int, draft: Draft) -> DiscoveryConfig:
        """Check one source of workers by making it."""
        kind = self._note(("discovery", n, "kind"), draft.name)
        try:
            _checked(partial(_make_source, kind), draft.options)
        except ConfigError:
            raise
        except _BAD_VALUE as error:
            raise draft.name.error(str(error)) from error
        return DiscoveryConfig(kind, self._values(("discovery", n), draft.options))

    def _shared_cache(self, n: int, draft: Draft) -> SharedCacheConfig:
        """Note one shared cache."""
        name = self._note(("shared_caches", n, "name"), draft.name)
        return SharedCacheConfig(name, self._values(("shared_caches", n), draft.options))

    def _section(self, name: str) -> dict[str, Setting] | None:
        """Merge a table of options."""
        tables = [layer.sections[name] for layer in self._layers if name in layer.sections]
        if not tables:
            return None
        merged = {key: setting for table in tables for key, setting in table.items()}
        known = schema.section_options(name) or {}
        for key, setting in merged.items():
            if known[key].is_code:
                raise setting.error("cannot be written in a configuration; give it to the object in code")
        self._values((name,), merged)
        return merged


def _bare(draft: Draft) -> str:
    """Return the key of a worker without a trailing slash, which does not make another worker."""
    key: str = draft.name.value
    return key.rstrip("/") if "://" in key else key


def _check_sections(draft: PolicyDraft, default: str | None) -> None:
    """Refuse a table named like another policy than the chosen one."""
    name = draft.name
    for section in draft.sections:
        named = Setting(str(section.keys[-1]), section.keys, section.document)
        chosen = _name_of(name, default)
        if (holder := schema.policy_name(named)) != chosen:
            where = f"{name.path} ({name.origin})" if name else "the default"
            raise section.error(f"holds options of policy {holder!r}, but the policy is {chosen!r} by {where}")


def _name_of(name: Setting | None, default: str | None) -> str | None:
    """Return the canonical name of a policy."""
    return schema.policy_name(name) if name else default


def _check_router(
    config: RouterConfig,
    options: Mapping[str, Setting],
    drafts: Sequence[Draft],
    caches: Sequence[Draft],
) -> None:
    """Build the router with all it has, so that errors are raised now, and not when the gateway starts."""
    rest = {key: value for key, value in router_arguments(config).items() if key not in options}
    router = _checked(partial(Router, **rest), options)
    for worker, draft in zip(config.workers, drafts, strict=True):
        own = {key: setting for key, setting in draft.options.items() if key != "bootstrap_port"}
        _checked(partial(router.add_worker, worker.key), own)
    seen: dict[str, Setting] = {}
    for cache, shared in zip(config.shared_caches, caches, strict=True):
        other = seen.setdefault(repr(cache.options.get("model")), shared.name)
        if other is not shared.name:
            raise shared.name.error(f"the model has the shared cache {other.value!r} ({other.path}); it reads one")
        if cache.name in set(router.keys()):
            raise shared.name.error("is the key of a worker; a shared cache needs a name of its own")
        _checked(partial(router.add_shared_cache, cache.name), shared.options)


def _make_source(kind: str, **options: Any) -> object:  # noqa: ANN401 - any option
    """Make a source of workers, which is not started."""
    missing = [name for name, option in schema.discovery_options(kind).items() if option.is_required]
    for name in missing:
        if name not in options:
            raise ValueError(f"a source of kind {kind!r} needs {name}")
    return DiscoveryConfig(kind, options).make()


def checked_bodies(**settings: Any) -> RequestBodies:  # noqa: ANN401 - any option
    """Make the settings of request bodies, which a router checks."""
    bodies = RequestBodies(**settings)
    Router[str]((), bodies=bodies)
    return bodies


def _check_transfer(workers: Sequence[WorkerConfig], drafts: Sequence[Draft]) -> None:
    """Refuse Unix sockets where prefill workers hand their KV cache to decode workers."""
    if all(worker.role == "both" for worker in workers):
        return
    for worker, draft in zip(workers, drafts, strict=True):
        if worker.key.startswith("unix:"):
            raise draft.name.error(
                f"worker {worker_name(worker.key)!r} is a Unix socket, but prefill and decode workers transfer KV "
                "cache over the network: give it a host and a port"
            )


def _checked(build: Callable[..., T], settings: Mapping[str, Setting]) -> T:
    """Build an object; attribute an error to the setting that fails even alone, or that the error names."""
    try:
        return build(**{key: _plain(setting) for key, setting in settings.items()})
    except _BAD_VALUE as error:
        message = str(error)
        words = re.findall(r"\w+", message)
        suspects = sorted(settings, key=lambda key: words.index(key) if key in words else len(words))
        if not suspects:
            raise
        culprit = next((key for key in suspects if not _fits(build, key, settings[key])), suspects[0])
        if culprit in schema.SECRETS:
            message = message.partition(", got ")[0]
        raise settings[culprit].error(message) from error


def _fits(build: Callable[..., object], key: str, setting: Setting) -> bool:
    """Return whether an object accepts a setting by itself."""
    try:
        build(**{key: _plain(setting)})
    except _BAD_VALUE:
        return False
    return True


def _plain(setting: Setting, value: object = None, nesting: int = 0) -> object:
    """Copy a value against later changes; refuse types that no file could hold."""
    value = setting.value if nesting == 0 else value
    if nesting > _MAX_NESTING:
        raise setting.error(f"is nested more than {_MAX_NESTING} deep")
    if isinstance(value, Mapping):
        return {key: _plain(setting, item, nesting + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(setting, item, nesting + 1) for item in value)
    return value
