"""JSON Schema of configuration files, derived from the objects that they configure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from cachelb import policies
from cachelb.config import schema
from cachelb.config.layer import PAIRED
from cachelb.config.model import KvEventsConfig, WorkerConfig
from cachelb.config.option_schema import NAME, NULL, Schema, describe, trial
from cachelb.config.resolve import checked_bodies
from cachelb.discovery.text import KINDS, read_text
from cachelb.policies import plugins
from cachelb.router import Router
from cachelb.sources import MetricsSource

Build: TypeAlias = Callable[..., object]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Schema] = {"type": "string", "pattern": "\\S"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file.

    It has the types, choices, bounds, defaults and descriptions of all options, and refuses unknown keys. Rules between
    options, formats of texts and keys of mappings are left to `load`. Bounds of objects whose extra is not installed
    are missing.

    Returns:
        The schema, in types that JSON has.

    Example:
        >>> block_size = json_schema()["$defs"]["router"]["properties"]["block_size"]
        >>> block_size["type"], block_size["minimum"], block_size["default"]
        ('integer', 1, 16)
    """
    shared: dict[schema.Option, Schema] = {}
    names = {name: _spellings(name) for name in policies.POLICIES}
    defs: dict[str, Schema] = {NAME: _any_name(names.values())}
    for name in names:
        options = schema.policy_options(name)
        known = {key: shared[option] for key, option in options.items() if _is_kept(option) and option in shared}
        # Small blocks restrict other options least.
        smallest = {"block_size": 1} if "block_size" in options else {}
        table = _table(_rule(name), options, partial(policies.make, name, **smallest), {"type": _TEXT, **known})
        shared |= {option: table["properties"][key] for key, option in options.items() if _is_kept(option)}
        defs[_rule(name)] = table
    defs["policy"] = {
        "anyOf": [_ref(NAME), {"type": "object", "properties": {"type": _ref(NAME)}}],
        "allOf": [_when(_at(pattern, "type"), _ref(_rule(name))) for name, pattern in names.items()],
    }
    slots = {slot: _or_null("policy") for slot in schema.SLOTS}
    shadow = {"type": "array", "items": {"allOf": [_ref("policy"), _when({"type": "object"}, {"required": ["type"]})]}}
    defs["router"] = _table("router", schema.router_options(), Router, {**slots, "shadow": shadow, "bodies": NULL})
    defs["router"]["patternProperties"] |= {pattern: _ref(_rule(name)) for name, pattern in names.items()}
    defs |= _fleet()
    for section, owner in (("kv_events", KvEventsConfig), ("load", MetricsSource), ("bodies", checked_bodies)):
        defs[section] = _table(section, schema.section_options(section) or {}, owner)
    defs["mode"] = {
        **_closed("mode", {**_mode(), **slots, "kv_events": _or_null("kv_events")}),
        "required": ["type"],
    }
    sources = {"anyOf": [_ref("source"), {"type": "array", "items": _ref("source")}, NULL]}
    top: Schema = {
        "router": _or_null("router"),
        "routing": _or_null("router"),
        "mode": _or_null("mode"),
        **slots,
        "workers": {"anyOf": [{"type": "array", "items": _ref("worker")}, NULL]},
        "shared_caches": {"anyOf": [{"type": "array", "items": _ref("shared_cache")}, NULL]},
        "discovery": sources,
        **{section: _or_null(section) for section in ("kv_events", "load", "bodies")},
        "model_path": {"anyOf": [_TEXT, NULL]},
    }
    defs["file"] = _closed("file", top)
    return {
        "$schema": _DIALECT,
        "title": "Configuration of a cachelb router",
        "$ref": "#/$defs/file",
        "allOf": list(_rules_by_name(names)),
        "$defs": defs,
    }


# === policies ===


def _rule(policy: str) -> str:
    return f"policy.{policy}"


def _spellings(policy: str) -> str:
    """Return the pattern of a policy's names."""
    names = (policy, *(alias for alias, target in policies.ALIASES.items() if target == policy))
    return f"^({'|'.join(map(_loose, names))})$"


def _any_name(patterns: Iterable[str]) -> Schema:
    """Describe the name of any policy: those of this package first, for editors that complete."""
    others = [r"^[^:]+:[^:]+$", *(f"^{_loose(name)}$" for name in plugins.names())]  # `module:Class` first
    return {
        "anyOf": [
            {"enum": list(policies.POLICIES)},
            *({"type": "string", "pattern": pattern} for pattern in (*patterns, *others)),
        ]
    }


def _rules_by_name(names: Mapping[str, str]) -> Iterable[Schema]:
    """Make the rules for tables of options whose policy `[router]` names, or the default."""
    for slot in schema.SLOTS:
        for name, pattern in names.items():
            named = _at(pattern, "router", slot)
            yield _when(named, {"properties": {slot: _when({"type": "object"}, _ref(_rule(name)))}})
    places = (("router", "policy"), ("routing", "policy"), ("policy", "type"), ("mode", "policy"))
    unnamed: Schema = {"not": {"anyOf": [_at(None, *place) for place in places]}}
    default = _rule(schema.router_options()["policy"].default)
    yield _when(unnamed, {"properties": {"policy": _when({"type": "object"}, _ref(default))}})


def _at(pattern: str | None, *keys: str) -> Schema:
    """Describe a document that has a text of a pattern, or anything, at a path."""
    found: Schema = {} if pattern is None else {"type": "string", "pattern": pattern}
    for key in reversed(keys):
        found = {"type": "object", "required": [key], "properties": {key: found}}
    return found


# === tables ===


def _fleet() -> dict[str, Schema]:
    """Describe workers, shared caches and sources of workers."""
    router = Router[str]
    port = schema.Option(None, "int | None", "Port where decode workers fetch the KV cache of a prefill worker.")
    with_port = {"bootstrap_port": describe(port, trial(partial(WorkerConfig, "w", "both"), "bootstrap_port", ()))}
    worker = _table(
        "worker_table",
        schema.worker_options(),
        lambda **options: router().add_worker("w", **options),
        {"url": _TEXT, "key": _TEXT, **with_port},
    )
    worker["oneOf"] = [{"required": ["url"]}, {"required": ["key"]}]
    cache = _table(
        "shared_cache",
        schema.shared_cache_options(),
        lambda **options: router().add_shared_cache("c", **options),
        {"name": _TEXT},
    )
    kinds: dict[str, Schema] = {}
    for kind, make in KINDS.items():
        options = schema.discovery_options(kind)
        least = read_text(f"{kind}:x" if kind != "dns" else "srv:x")[1]
        table = _table(f"source.{kind}", options, lambda make=make, least=least, **more: make(**{**least, **more}))
        table["properties"]["kind"] = {"const": kind}
        table["required"] = ["kind", *(key for key, option in options.items() if option.is_required)]
        kinds[f"source.{kind}"] = table
    return {
        "worker_table": worker,
        "worker": {"anyOf": [_TEXT, _ref("worker_table")]},
        "shared_cache": {**cache, "required": ["name"]},
        **kinds,
        "source": {"anyOf": [_TEXT, *map(_ref, kinds)]},
    }


def _mode() -> Schema:
    """Describe the layout with prefill and decode workers."""
    port: Schema = {"anyOf": [{"$ref": "#/$defs/worker_table/properties/bootstrap_port"}, NULL]}
    pair = {"type": "array", "prefixItems": [_TEXT, port], "minItems": 2, "maxItems": 2}
    urls = {"anyOf": [{"type": "array", "items": {"anyOf": [_TEXT, pair]}}, NULL]}
    kind = {"type": "string", "pattern": f"^{_loose(PAIRED.replace('_', '-'))}$"}
    return {"type": kind, "prefill_urls": urls, "decode_urls": urls}


def _table(name: str, options: Mapping[str, schema.Option], build: Build, others: Schema | None = None) -> Schema:
    """Describe a table of options, each tried alone, beside others that are described."""
    known = dict(others or {})
    for key, option in options.items():
        if _is_kept(option) and key not in known:
            known[key] = describe(option, trial(build, key, options))
    return _closed(name, known)


def _closed(name: str, properties: Schema) -> Schema:
    """Describe a table that has no other keys; hyphens count as underscores."""
    loose = {
        f"^{_loose(key.replace('_', '-'))}$": {"$ref": f"#/$defs/{name}/properties/{key}"}
        for key in properties
        if "_" in key
    }
    return {"type": "object", "properties": properties, "patternProperties": loose, "additionalProperties": False}


def _is_kept(option: schema.Option) -> bool:
    return not option.is_code


# === forms ===


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _or_null(name: str) -> Schema:
    return {"anyOf": [_ref(name), NULL]}  # an empty YAML table is null


def _when(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


def _loose(name: str) -> str:
    return re.escape(name).replace("\\-", "[-_]")
