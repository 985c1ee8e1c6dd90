"""Reads the settings of a document in any of the accepted layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cachelb.config import schema
from cachelb.config.document import Document, Setting, kind
from cachelb.discovery.text import KINDS, read_text
from cachelb.errors import did_you_mean

PAIRED = "vllm_prefill_decode"
"""The mode of vllm-router that names prefill and decode workers."""

_PAIR = 2  # [url, port]


@dataclass
class PolicyDraft:
    """The settings of one policy in a document."""

    place: Setting  # where it was written first
    name: Setting | None = None
    options: dict[str, Setting] = field(default_factory=dict)
    sections: list[Setting] = field(default_factory=list)  # tables named like a policy, which must be this one


@dataclass
class WorkerDraft:
    """The settings of one worker in a document."""

    key: Setting
    options: dict[str, Setting] = field(default_factory=dict)
    bootstrap_port: Setting | None = None  # of a prefill worker; decode workers fetch the KV cache there


@dataclass
class SharedCacheDraft:
    """The settings of one shared cache in a document."""

    name: Setting
    options: dict[str, Setting] = field(default_factory=dict)


@dataclass
class DiscoveryDraft:
    """The settings of one source of workers in a document."""

    kind: Setting
    options: dict[str, Setting] = field(default_factory=dict)


@dataclass
class Layer:
    """The settings of a document, sorted."""

    options: dict[str, Setting] = field(default_factory=dict)
    policies: dict[str, PolicyDraft] = field(default_factory=dict)  # by slot: policy, prefill_policy, decode_policy
    shadow: list[PolicyDraft] | None = None  # None if not mentioned
    workers: list[WorkerDraft] | None = None  # None if not mentioned
    shared_caches: list[SharedCacheDraft] = field(default_factory=list)
    discovery: list[DiscoveryDraft] | None = None  # None if not mentioned
    sections: dict[str, dict[str, Setting]] = field(default_factory=dict)  # kv_events, load and bodies, where mentioned
    model_path: Setting | None = None
    strays: list[Setting] = field(default_factory=list)  # keys in the router's table that are not options of it


def read_layer(document: Document) -> Layer:
    """Sort the settings of a document."""
    layer = Layer()
    known: dict[str, Callable[[Layer, Setting], None]] = {
        "router": _router,
        "routing": _router,
        "mode": _mode,
        "workers": _workers,
        "shared_caches": _shared_caches,
        "discovery": _discovery,
        "model_path": _model_path,
        **dict.fromkeys(schema.SLOTS, _slot),
        **dict.fromkeys(("kv_events", "load", "bodies"), _section),
    }
    for key, setting in Setting(document.data, (), document).entries().items():
        if key not in known:
            raise setting.error(f"unknown key{schema.misplaced(key) or did_you_mean(key, known)}")
        if setting.value is not None:  # an empty YAML table is null
            known[key](layer, setting)
    return layer


def put(table: dict[str, Setting], key: str, setting: Setting) -> None:
    """Add a setting; it may be written in two places if both agree."""
    other = table.setdefault(key, setting)
    if other is not setting and (type(other.value), other.value) != (type(setting.value), setting.value):
        raise setting.error(f"contradicts {other.path} ({other.origin}); keep one of them")


def _router(layer: Layer, section: Setting) -> None:
    """Read `[router]`, or `routing:`."""
    options = schema.router_options()
    for key, setting in section.entries().items():
        if key in (*schema.SLOTS, "shadow", "bodies") and setting.value is None:
            continue
        if key == "bodies":
            raise setting.error("is a table at the top level: [bodies]")
        if key in schema.SLOTS:
            _policy(layer.policies.setdefault(key, PolicyDraft(setting)), setting)
        elif key == "shadow":
            layer.shadow = [_policy(PolicyDraft(item), item) for item in setting.items()]
        elif key in options:
            put(layer.options, key, setting)
        elif isinstance(setting.value, Mapping) and schema.is_policy(key):
            draft = layer.policies.setdefault("policy", PolicyDraft(setting))
            draft.sections.append(setting)
            _options(draft, setting)
        else:
            layer.strays.append(setting)


def _slot(layer: Layer, setting: Setting) -> None:
    """Read `[policy]` and the like at the top level."""
    slot = str(setting.keys[-1]).replace("-", "_")
    _policy(layer.policies.setdefault(slot, PolicyDraft(setting)), setting)


def _policy(draft: PolicyDraft, setting: Setting) -> PolicyDraft:
    """Read a policy: its name, or a table of options with its name as `type`."""
    if isinstance(setting.value, Mapping):
        _options(draft, setting)
    elif isinstance(setting.value, str):
        _name(draft, setting)
    else:
        raise setting.error(f"must be the name of a policy or a table of its options, not {kind(setting.value)}")
    return draft


def _options(draft: PolicyDraft, section: Setting) -> None:
    """Read the options of a policy."""
    for key, setting in section.entries().items():
        if key == "type":
            _name(draft, setting)
        else:
            put(draft.options, key, setting)


def _name(draft: PolicyDraft, setting: Setting) -> None:
    """Read the name of a policy."""
    name = schema.policy_name(setting)
    if draft.name is not None and (other := schema.policy_name(draft.name)) != name:
        raise setting.error(
            f"names policy {name!r}, but {draft.name.path} ({draft.name.origin}) names {other!r}; keep one of them"
        )
    draft.name = draft.name or setting


def _section(layer: Layer, section: Setting) -> None:
    """Read `[kv_events]`, `[load]` or `[bodies]`."""
    name = str(section.keys[-1]).replace("-", "_")
    known = schema.section_options(name) or {}
    table = layer.sections.setdefault(name, {})
    for key, setting in section.entries().items():
        if key not in known:
            raise setting.error(f"unknown key{did_you_mean(key, known)}")
        put(table, key, setting)


def _model_path(layer: Layer, setting: Setting) -> None:
    """Read `model_path`."""
    setting.text()
    layer.model_path = setting


def _workers(layer: Layer, section: Setting) -> None:
    """Read `[[workers]]`, or a list of urls."""
    layer.workers = layer.workers or []
    known = schema.worker_options()
    for item in section.items():
        if isinstance(item.value, str):
            item.text()
            layer.workers.append(WorkerDraft(item))
            continue
        entries = item.entries()
        named = [entries.pop(key) for key in ("url", "key") if key in entries]
        if len(named) != 1:
            raise item.error("a worker has one url (or key, if it is no url)")
        named[0].text()
        draft = WorkerDraft(named[0], bootstrap_port=entries.pop("bootstrap_port", None))
        for key, setting in entries.items():
            if key not in known:
                raise setting.error(f"unknown key{did_you_mean(key, ['url', 'key', 'bootstrap_port', *known])}")
            draft.options[key] = setting
        layer.workers.append(draft)


def _shared_caches(layer: Layer, section: Setting) -> None:
    """Read `[[shared_caches]]`."""
    known = schema.shared_cache_options()
    for item in section.items():
        entries = item.entries()
        name = entries.pop("name", None)
        if name is None:
            raise item.error("a shared cache has a name")
        name.text()
        for key, setting in entries.items():
            if key not in known:
                raise setting.error(f"unknown key{did_you_mean(key, ['name', *known])}")
        layer.shared_caches.append(SharedCacheDraft(name, entries))


def _discovery(layer: Layer, section: Setting) -> None:
    """Read `[discovery]`, `[[discovery]]`, or the short texts of sources."""
    items = section.items() if isinstance(section.value, list | tuple) else [section]
    layer.discovery = [_source(item) for item in items]


def _source(item: Setting) -> DiscoveryDraft:
    """Read a source of workers: a table with its kind, or a short text."""
    if isinstance(item.value, str):
        try:
            kind, options = read_text(item.text())
        except ValueError as error:
            raise item.error(str(error)) from error
        return DiscoveryDraft(item.with_value(kind), {key: item.with_value(value) for key, value in options.items()})
    entries = item.entries()
    named = entries.pop("kind", None)
    if named is None:
        raise item.error(f"names no kind; add one of {', '.join(KINDS)} as kind")
    if named.text() not in KINDS:
        raise named.error(f"there is no kind {named.value!r}, but {', '.join(KINDS)}")
    known = schema.discovery_options(named.value)
    for key, setting in entries.items():
        if key not in known:
            raise setting.error(f"unknown key{did_you_mean(key, ['kind', *known])}")
    return DiscoveryDraft(named, entries)


def _mode(layer: Layer, section: Setting) -> None:
    """Read `mode:` of vllm-router."""
    entries = section.entries()
    if "type" not in entries:
        raise section.error(f"has no type; the one that is known is {PAIRED!r}")
    mode = entries.pop("type")
    if mode.text().replace("-", "_") != PAIRED:
        raise mode.error(f"there is no mode {mode.value!r}; the one that is known is {PAIRED!r}, else leave mode out")
    layer.workers = layer.workers or []
    known = {"type", "prefill_urls", "decode_urls", *schema.SLOTS, "kv_events"}
    for key, setting in entries.items():
        if key not in known:
            raise setting.error(f"unknown key{did_you_mean(key, known)}")
        if setting.value is None:
            continue
        if key in schema.SLOTS:
            _slot(layer, setting)
        elif key == "kv_events":
            _section(layer, setting)
        else:
            role = Setting(key.removesuffix("_urls"), setting.keys, setting.document)
            layer.workers += [_paired(item, role) for item in setting.items()]


def _paired(item: Setting, role: Setting) -> WorkerDraft:
    """Read a worker of a mode: a url, or `[url, bootstrap port or null]`."""
    if isinstance(item.value, str):
        item.text()
        return WorkerDraft(item, {"role": role})
    parts = item.items()
    if len(parts) != _PAIR:
        raise item.error("must be a url, or a list of a url and a bootstrap port or null")
    url, port = parts
    url.text()
    return WorkerDraft(url, {"role": role}, None if port.value is None else port)
