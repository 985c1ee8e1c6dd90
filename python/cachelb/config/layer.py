"""Reads the settings of a document in any of the accepted layouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cachelb.config import schema
from cachelb.config.document import Document, Setting, kind
from cachelb.discovery.text import KINDS, read_text
from cachelb.errors import did_you_mean

PAIRED = "vllm_prefill_decode"
"""The mode of vllm-router that names prefill and decode workers."""


@dataclass
class PolicyDraft:
    """The settings of one policy in a document."""

    place: Setting  # where it was written first
    name: Setting | None = None
    options: dict[str, Setting] = field(default_factory=dict)
    sections: list[Setting] = field(default_factory=list)  # tables named like a policy, which must be this one


@dataclass
class Draft:
    """The settings of one worker, shared cache or source of workers in a document."""

    name: Setting  # the worker's key, the cache's name, the source's kind
    options: dict[str, Setting] = field(default_factory=dict)


@dataclass
class Layer:
    """The settings of a document, sorted."""

    options: dict[str, Setting] = field(default_factory=dict)
    policies: dict[str, PolicyDraft] = field(default_factory=dict)  # by slot: policy, prefill_policy, decode_policy
    shadow: list[PolicyDraft] | None = None  # None if not mentioned
    workers: list[Draft] | None = None  # None if not mentioned
    shared_caches: list[Draft] = field(default_factory=list)
    discovery: list[Draft] | None = None  # None if not mentioned
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
    table = layer.sections.setdefault(name, {})
    for key, setting in _known(section.entries(), schema.section_options(name) or {}).items():
        put(table, key, setting)


def _model_path(layer: Layer, setting: Setting) -> None:
    """Read `model_path`."""
    setting.text()
    layer.model_path = setting


def _workers(layer: Layer, section: Setting) -> None:
    """Read `[[workers]]`, or a list of urls."""
    known = ("url", "key", "bootstrap_port", *schema.worker_options())
    layer.workers = layer.workers or []
    for item in section.items():
        if isinstance(item.value, str):
            item.text()
            layer.workers.append(Draft(item))
        else:
            layer.workers.append(_draft(item, ("url", "key"), known, "a worker has one url (or key, if it is no url)"))


def _shared_caches(layer: Layer, section: Setting) -> None:
    """Read `[[shared_caches]]`."""
    known = ("name", *schema.shared_cache_options())
    layer.shared_caches += [_draft(item, ("name",), known, "a shared cache has a name") for item in section.items()]


def _discovery(layer: Layer, section: Setting) -> None:
    """Read `[discovery]`, `[[discovery]]`, or the short texts of sources."""
    items = section.items() if isinstance(section.value, list | tuple) else [section]
    layer.discovery = [_source(item) for item in items]


def _source(item: Setting) -> Draft:
    """Read a source of workers: a table with its kind, or a short text."""
    if isinstance(item.value, str):
        try:
            kind, options = read_text(item.text())
        except ValueError as error:
            raise item.error(str(error)) from error
        return Draft(item.with_value(kind), {key: item.with_value(value) for key, value in options.items()})
    draft = _draft(item, ("kind",), None, f"names no kind; add one of {', '.join(KINDS)} as kind")
    if draft.name.value not in KINDS:
        raise draft.name.error(f"there is no kind {draft.name.value!r}, but {', '.join(KINDS)}")
    _known(draft.options, ("kind", *schema.discovery_options(draft.name.value)))
    return draft


def _mode(layer: Layer, section: Setting) -> None:
    """Read `mode:` of vllm-router."""
    known = ("type", "prefill_urls", "decode_urls", *schema.SLOTS, "kv_events")
    draft = _draft(section, ("type",), None, f"has no type; the one that is known is {PAIRED!r}")
    if draft.name.value.replace("-", "_") != PAIRED:
        raise draft.name.error(
            f"there is no mode {draft.name.value!r}; the one that is known is {PAIRED!r}, else leave mode out"
        )
    layer.workers = layer.workers or []
    for key, setting in _known(draft.options, known).items():
        if setting.value is None:
            continue
        if key in schema.SLOTS:
            _slot(layer, setting)
        elif key == "kv_events":
            _section(layer, setting)
        else:
            role = Setting(key.removesuffix("_urls"), setting.keys, setting.document)
            layer.workers += [_paired(item, role) for item in setting.items()]


def _paired(item: Setting, role: Setting) -> Draft:
    """Read a worker of a mode: a url, or `[url, bootstrap port or null]`."""
    match [item, item.with_value(None)] if isinstance(item.value, str) else item.items():
        case [url, port]:
            url.text()
            return Draft(url, {"role": role} if port.value is None else {"role": role, "bootstrap_port": port})
    raise item.error("must be a url, or a list of a url and a bootstrap port or null")


def _draft(item: Setting, names: tuple[str, ...], known: Collection[str] | None, problem: str) -> Draft:
    """Read a table with exactly one of some names, and options that are known."""
    entries = item.entries()
    named = [entries.pop(key) for key in names if key in entries]
    if len(named) != 1:
        raise item.error(problem)
    named[0].text()
    return Draft(named[0], entries if known is None else _known(entries, known))


def _known(entries: dict[str, Setting], known: Collection[str]) -> dict[str, Setting]:
    """Refuse keys that are not known."""
    for key, setting in entries.items():
        if key not in known:
            raise setting.error(f"unknown key{did_you_mean(key, known)}")
    return entries
