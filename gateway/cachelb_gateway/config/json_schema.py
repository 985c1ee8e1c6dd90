"""JSON Schema of configuration files, made of the signatures of the objects that they configure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cachelb import policies
from cachelb.policies import plugins
from cachelb_gateway.config import schema
from cachelb_gateway.config.layer import PAIRED
from cachelb_gateway.config.schema import Schema, any_of
from cachelb_gateway.discovery.text import KINDS

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string", "pattern": "\\S"}
_NAME: Final = "policy-name"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file.

    It has the types, choices and defaults of all options, and refuses unknown keys. Ranges, rules between
    options, formats of texts and keys of mappings are left to `load`.

    Returns:
        The schema, in types that JSON has.

    Example:
        >>> block_size = json_schema()["$defs"]["router"]["properties"]["block_size"]
        >>> block_size["type"], block_size["default"]
        ('integer', 16)
    """
    names = {name: _spelled(_spellings(name)) for name in policies.POLICIES}
    others = _spelled(plugins.names(), "[^:]+:[^:]+")  # `module:Class`
    slots = {slot: _or_null(_ref("policy")) for slot in schema.SLOTS}
    router = _table(schema.router_options(), {**slots, "shadow": _or_null(_list(_ref("policy")))})
    router["patternProperties"] = {name["pattern"]: _ref(f"policy.{key}") for key, name in names.items()}
    port = {"type": "integer"}
    pair = {"type": "array", "prefixItems": [_TEXT, _or_null(port)], "minItems": 2, "maxItems": 2}
    urls = _or_null(_list(any_of([_TEXT, pair])))
    mode = {"type": _spelled([PAIRED.replace("_", "-")]), "prefill_urls": urls, "decode_urls": urls}
    worker = _table(schema.worker_options(), {"url": _TEXT, "key": _TEXT, "bootstrap_port": _or_null(port)})
    defs: dict[str, Schema] = {
        _NAME: {"anyOf": [{"enum": [*policies.POLICIES]}, *names.values(), others]},
        **{f"policy.{key}": _table(schema.policy_options(key), {"type": names[key]}) for key in names},
        "policy": {
            "anyOf": [
                _ref(_NAME),
                *(_ref(f"policy.{key}") for key in names),
                {"type": "object", "properties": {"type": others}, "required": ["type"]},
            ]
        },
        "router": router,
        "worker": {**worker, "oneOf": [{"required": ["url"]}, {"required": ["key"]}]},
        **{
            key[:-1]: {**_table(schema.list_options(key), {"name": _TEXT}), "required": ["name"]}
            for key in schema.LISTS
        },
        **{f"source.{kind}": _source(kind) for kind in KINDS},
        "source": {"anyOf": [_TEXT, *(_ref(f"source.{kind}") for kind in KINDS)]},
        **{key: _table(options) for key, options in schema.sections().items()},
    }
    sections = {key: _or_null(_ref(key)) for key in schema.sections()}
    defs["mode"] = {**_closed({**mode, **slots, "kv_events": sections["kv_events"]}), "required": ["type"]}
    top: Schema = {
        "router": _or_null(_ref("router")),
        "routing": _or_null(_ref("router")),
        "mode": _or_null(_ref("mode")),
        **slots,
        "workers": _or_null(_list(any_of([_TEXT, _ref("worker")]))),
        **{key: _or_null(_list(_ref(key[:-1]))) for key in schema.LISTS},
        "discovery": any_of([_ref("source"), _list(_ref("source")), _NULL]),
        **sections,
        "model_path": _or_null(_TEXT),
    }
    defs["file"] = _closed(top)
    return {"$schema": _DIALECT, "title": "Configuration of a cachelb router", "$ref": "#/$defs/file", "$defs": defs}


def _source(kind: str) -> Schema:
    options = schema.discovery_options(kind)
    required = ["kind", *(key for key, option in options.items() if option.is_required)]
    return {**_table(options, {"kind": {"const": kind}}), "required": required}


def _table(options: Mapping[str, schema.Option], others: Schema | None = None) -> Schema:
    """Describe a table of options, beside others that are described."""
    described = {key: _option(option) for key, option in options.items() if option.kind is not None}
    return _closed(described | (others or {}))


def _closed(properties: Schema) -> Schema:
    """Describe a table that has no other keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _option(option: schema.Option) -> Schema:
    described = dict(option.kind or {})
    if not option.is_required and (option.default is None or isinstance(option.default, str | int | float | tuple)):
        described["default"] = list(option.default) if isinstance(option.default, tuple) else option.default
    return described


def _spellings(policy: str) -> list[str]:
    return [policy, *(alias for alias, target in policies.ALIASES.items() if target == policy)]


def _spelled(names: Iterable[str], *patterns: str) -> Schema:
    """Describe one of some names, whose hyphens count as underscores."""
    loose = (re.escape(name).replace("\\-", "[-_]") for name in names)
    return {"type": "string", "pattern": f"^({'|'.join((*loose, *patterns))})$"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(kind: Schema) -> Schema:
    return any_of([kind, _NULL])  # an empty YAML table is null
