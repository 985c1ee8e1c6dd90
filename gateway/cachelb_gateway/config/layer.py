"""Reads the settings of one source, in any of the accepted layouts, into tables by section."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from cachelb import policies
from cachelb.errors import did_you_mean
from cachelb_gateway.config import schema
from cachelb_gateway.config.setting import Setting, Table, kind
from cachelb_gateway.discovery.text import KINDS, read_text

PAIRED: Final = "vllm_prefill_decode"
"""The mode of vllm-router that names prefill and decode workers."""


@dataclass
class Layer:
    """The settings of a file, a mapping or a variable."""

    tables: dict[str, Table] = field(default_factory=dict)  # router, slots of policies, kv_events, load, bodies
    lists: dict[str, list[Table]] = field(default_factory=dict)  # shadow, workers, discovery, those of schema.LISTS
    model_path: Setting | None = None

    def put(self, section: str, key: str, setting: Setting) -> None:
        """Add a setting; it may be written in two places if both agree."""
        put(self.tables.setdefault(section, {}), key, setting)

    def policy(self, slot: str, table: Table) -> None:
        """Add options of a policy, those of the router too, which it may hold."""
        for key, setting in table.items():
            self.put(slot, key, setting)
        self.hoist(table)

    def hoist(self, table: Table) -> None:
        """Add the router's options of a policy's table."""
        known = schema.router_options()
        for key in (key for key in table if key in known):
            self.put("router", key, known[key].checked(table[key]))


def read_layer(data: object, origin: str) -> Layer:
    """Sort the settings of a file, a mapping or a variable."""
    layer = Layer()
    for key, setting in Setting(data, "", origin).entries().items():
        if key not in _READERS:
            hint = f" ({key!r} belongs in [router])" if key in schema.router_options() else did_you_mean(key, _READERS)
            raise setting.error(f"unknown key{hint}")
        if setting.value is not None:  # an empty YAML table is null
            _READERS[key](layer, setting)
    return layer


def put(table: Table, key: str, setting: Setting) -> None:
    """Add a setting; it may be written in two places if both agree."""
    other = table.setdefault(key, setting)
    if (type(other.value), other.value) != (type(setting.value), setting.value):
        problem = f"contradicts {other.path} ({other.origin})"
        named = f"{setting.value!r} {problem}, {other.value!r}" if key == "type" else problem  # no secret
        raise setting.error(f"{named}; keep one of them")


def policy_table(setting: Setting) -> Table:
    """Read a policy: its name, or a table of options with its name as `type`."""
    if not isinstance(setting.value, str | Mapping):
        raise setting.error(f"must be the name of a policy or a table of its options, not {kind(setting.value)}")
    table = {"type": setting} if isinstance(setting.value, str) else setting.entries()
    return {key: each.at(schema.policy_name(each)) if key == "type" else each for key, each in table.items()}


def _router(layer: Layer, section: Setting) -> None:
    """Read `[router]`, or `routing:`, where a table of options is named after its policy."""
    known = schema.router_options()
    for key, setting in section.entries().items():
        if key in (*schema.SLOTS, "shadow"):
            if setting.value is not None:
                (_shadow if key == "shadow" else _READERS[key])(layer, setting)
        elif key in _READERS:
            raise setting.error(f"unknown key; {key} stands at the top level: [{key}]")
        elif key in known:
            layer.put("router", key, known[key].checked(setting))
        elif isinstance(setting.value, Mapping) and key.replace("_", "-") in {*policies.POLICIES, *policies.ALIASES}:
            layer.policy("policy", {**setting.entries(), "type": setting.at(schema.policy_name(setting.at(key)))})
        elif any(key in policy.keywords() for policy in policies.POLICIES.values()):
            raise setting.error("is an option of a policy; write it under [policy]")
        else:
            raise setting.error(f"unknown key{did_you_mean(key, known)}")


def _section(name: str) -> Callable[[Layer, Setting], None]:
    def read(layer: Layer, section: Setting) -> None:
        layer.tables.setdefault(name, {})
        known = schema.sections()[name]
        for key, setting in known_only(section.entries(), known).items():
            layer.put(name, key, known[key].checked(setting))

    return read


def _slot(name: str) -> Callable[[Layer, Setting], None]:
    return lambda layer, setting: layer.policy(name, policy_table(setting))


def _shadow(layer: Layer, section: Setting) -> None:
    layer.lists["shadow"] = [policy_table(item) for item in section.items()]
    for item, table in zip(section.items(), layer.lists["shadow"], strict=True):
        if "type" not in table:
            raise item.error("names no policy; add one as type")
        layer.hoist(table)


def _model_path(layer: Layer, setting: Setting) -> None:
    layer.model_path = setting.at(setting.text())


def _workers(layer: Layer, section: Setting) -> None:
    """Read `[[workers]]`, or a list of urls."""
    known = ("url", "bootstrap_port", *schema.worker_options())
    read = layer.lists.setdefault("workers", [])
    for item in section.items():
        if isinstance(item.value, str):
            read.append({"url": item.at(item.text())})
            continue
        table = item.entries()
        if "key" in table and "url" not in table:
            table["url"] = table.pop("key")
        read.append(_named(item, table, "url", known, "a worker has one url (or key, if it is no url)"))


def _list(name: str) -> Callable[[Layer, Setting], None]:
    def read(layer: Layer, section: Setting) -> None:
        known, problem = ("name", *schema.list_options(name)), f"a {name[:-1].replace('_', ' ')} has a name"
        layer.lists[name] = [_named(item, item.entries(), "name", known, problem) for item in section.items()]

    return read


def _discovery(layer: Layer, section: Setting) -> None:
    """Read `[discovery]`, `[[discovery]]`, or the short texts of sources."""
    items = section.items() if isinstance(section.value, list | tuple) else [section]
    layer.lists["discovery"] = [_source(item) for item in items]


def _source(item: Setting) -> Table:
    """Read a source of workers: a table with its kind, or a short text."""
    if isinstance(item.value, str):
        try:
            name, options = read_text(item.text())
        except ValueError as error:
            raise item.error(str(error)) from error
        return {key: item.at(value) for key, value in {"kind": name, **options}.items()}
    table = _named(item, item.entries(), "kind", None, f"names no kind; add one of {', '.join(KINDS)} as kind")
    name = table["kind"].value
    if name not in KINDS:
        raise table["kind"].error(f"there is no kind {name!r}, but {', '.join(KINDS)}")
    known = schema.discovery_options(name)
    known_only(table, ("kind", *known))
    for key, option in known.items():
        if option.is_required and key not in table:
            raise table["kind"].error(f"a source of kind {name!r} needs {key}")
    return table


def _mode(layer: Layer, section: Setting) -> None:
    """Read `mode:` of vllm-router."""
    table = _named(section, section.entries(), "type", None, f"has no type; the one that is known is {PAIRED!r}")
    named = table.pop("type")
    if named.value.replace("-", "_") != PAIRED:
        raise named.error(f"there is no mode {named.value!r}; the one that is known is {PAIRED!r}, else leave mode out")
    workers = layer.lists.setdefault("workers", [])
    for key, setting in known_only(table, ("prefill_urls", "decode_urls", *schema.SLOTS, "kv_events")).items():
        if setting.value is not None and key in _READERS:
            _READERS[key](layer, setting)
        elif setting.value is not None:
            role = setting.at(key.removesuffix("_urls"))
            workers += [_paired(item) | {"role": role} for item in setting.items()]


def _paired(item: Setting) -> Table:
    """Read a worker of a mode: a url, or `[url, bootstrap port or null]`."""
    match [item, item.at(None)] if isinstance(item.value, str) else item.items():
        case [url, port]:
            return {"url": url.at(url.text())} | ({} if port.value is None else {"bootstrap_port": port})
    raise item.error("must be a url, or a list of a url and a bootstrap port or null")


def _named(item: Setting, table: Table, name: str, known: Collection[str] | None, problem: str) -> Table:
    """Check that a table has a name and only options that are known."""
    if name not in table or "key" in table:
        raise item.error(problem)
    table[name].text()
    return table if known is None else known_only(table, known)


def known_only(table: Table, known: Collection[str]) -> Table:
    """Refuse keys that are not known."""
    for key, setting in table.items():
        if key not in known:
            raise setting.error(f"unknown key{did_you_mean(key, known)}")
    return table


_READERS: Final[dict[str, Callable[[Layer, Setting], None]]] = {
    "router": _router,
    "routing": _router,
    "mode": _mode,
    "workers": _workers,
    "discovery": _discovery,
    "model_path": _model_path,
    **{slot: _slot(slot) for slot in schema.SLOTS},
    **{name: _list(name) for name in schema.LISTS},
    **{name: _section(name) for name in schema.sections()},
}
