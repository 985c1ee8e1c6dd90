"""JSON Schema of configuration files, made of the signatures of the objects that they configure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from cachelb import policies
from cachelb.config import schema
from cachelb.config.layer import PAIRED
from cachelb.discovery.text import KINDS
from cachelb.policies import plugins

Schema: TypeAlias = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string", "pattern": "\\S"}
_NAME: Final = "policy-name"
_PLAIN: Final[Mapping[str, Schema]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "PathLike": {"type": "string"},
    "PolicyLike": {"$ref": f"#/$defs/{_NAME}"},
    "PolicyName": {"$ref": f"#/$defs/{_NAME}"},
    "Any": {},
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file.

    It has the types, choices, defaults and descriptions of all options, and refuses unknown keys. Ranges, rules between
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
    router = _table("router", schema.router_options(), {**slots, "shadow": _list(_ref("policy")), "bodies": _NULL})
    router["patternProperties"] |= {name["pattern"]: _ref(f"policy.{key}") for key, name in names.items()}
    port = {"type": "integer", "description": "Port where decode workers fetch the KV cache of a prefill worker."}
    pair = {"type": "array", "prefixItems": [_TEXT, _or_null(port)], "minItems": 2, "maxItems": 2}
    urls = _or_null(_list(_any_of([_TEXT, pair])))
    mode = {"type": _spelled([PAIRED.replace("_", "-")]), "prefill_urls": urls, "decode_urls": urls}
    worker = _table("worker", schema.worker_options(), {"url": _TEXT, "key": _TEXT, "bootstrap_port": _or_null(port)})
    cache = _table("shared_cache", schema.shared_cache_options(), {"name": _TEXT})
    defs: dict[str, Schema] = {
        _NAME: {"anyOf": [{"enum": [*policies.POLICIES]}, *names.values(), others]},
        **{f"policy.{key}": _table(f"policy.{key}", schema.policy_options(key), {"type": names[key]}) for key in names},
        "policy": {
            "anyOf": [
                _ref(_NAME),
                *(_ref(f"policy.{key}") for key in names),
                {"type": "object", "properties": {"type": others}, "required": ["type"]},
            ]
        },
        "router": router,
        "worker": {**worker, "oneOf": [{"required": ["url"]}, {"required": ["key"]}]},
        "shared_cache": {**cache, "required": ["name"]},
        **{f"source.{kind}": _source(kind) for kind in KINDS},
        "source": {"anyOf": [_TEXT, *(_ref(f"source.{kind}") for kind in KINDS)]},
        **{key: _table(key, schema.section_options(key) or {}) for key in ("kv_events", "load", "bodies")},
    }
    sections = {key: _or_null(_ref(key)) for key in ("kv_events", "load", "bodies")}
    defs["mode"] = {**_closed("mode", {**mode, **slots, "kv_events": sections["kv_events"]}), "required": ["type"]}
    top: Schema = {
        "router": _or_null(_ref("router")),
        "routing": _or_null(_ref("router")),
        "mode": _or_null(_ref("mode")),
        **slots,
        "workers": _or_null(_list(_any_of([_TEXT, _ref("worker")]))),
        "shared_caches": _or_null(_list(_ref("shared_cache"))),
        "discovery": _any_of([_ref("source"), _list(_ref("source")), _NULL]),
        **sections,
        "model_path": _or_null(_TEXT),
    }
    defs["file"] = _closed("file", top)
    return {"$schema": _DIALECT, "title": "Configuration of a cachelb router", "$ref": "#/$defs/file", "$defs": defs}


def _source(kind: str) -> Schema:
    options = schema.discovery_options(kind)
    required = ["kind", *(key for key, option in options.items() if option.is_required)]
    return {**_table(f"source.{kind}", options, {"kind": {"const": kind}}), "required": required}


def _table(name: str, options: Mapping[str, schema.Option], others: Schema | None = None) -> Schema:
    """Describe a table of options, beside others that are described."""
    described = {key: _option(option) for key, option in options.items() if not option.is_code}
    return _closed(name, described | (others or {}))


def _closed(name: str, properties: Schema) -> Schema:
    """Describe a table that has no other keys; hyphens count as underscores."""
    loose = {
        _spelled([key.replace("_", "-")])["pattern"]: {"$ref": f"#/$defs/{name}/properties/{key}"}
        for key in properties
        if "_" in key
    }
    return {"type": "object", "properties": properties, "patternProperties": loose, "additionalProperties": False}


def _option(option: schema.Option) -> Schema:
    described = _kind(ast.parse(option.annotation, mode="eval").body) or {}
    if option.text:
        described = {"description": " ".join(option.text.split()), **described}
    if not option.is_required and (option.default is None or isinstance(option.default, str | int | float | tuple)):
        described["default"] = list(option.default) if isinstance(option.default, tuple) else option.default
    return described


def _kind(node: ast.expr) -> Schema | None:
    """Describe a type; None if no file holds such values."""
    match node:
        case ast.BinOp():
            kinds = [kind for part in (node.left, node.right) if (kind := _kind(part)) is not None]
            return _any_of(kinds) if kinds else None
        case ast.Constant(value=None):
            return dict(_NULL)
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id="PathLike" as name)):
            return dict(_PLAIN[name]) if name in _PLAIN else None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return {"enum": [word.value for word in _parts(words) if isinstance(word, ast.Constant)]}
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[_, values])):
            return {"type": "object", "additionalProperties": _kind(values)}
        case ast.Subscript(value=ast.Name(id="Sequence" | "Iterable" | "tuple"), slice=items):
            item = _kind(_parts(items)[0]) or {}
            return _any_of([item, _list(item)]) if item == _PLAIN["str"] or "enum" in item else _list(item)
    raise TypeError(f"no JSON Schema for the type {ast.unparse(node)!r}; add it to this function")


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


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
    return _any_of([kind, _NULL])  # an empty YAML table is null


def _any_of(kinds: Iterable[Schema]) -> Schema:
    """Describe a value of one of several kinds."""
    flat = [each for kind in kinds for each in kind.get("anyOf", [kind])]
    return {"anyOf": [each for n, each in enumerate(flat) if each not in flat[:n]]} if len(flat) > 1 else flat[0]
