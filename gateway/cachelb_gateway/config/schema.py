"""The known options and their types, read from the signatures of their objects."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from cachelb import policies
from cachelb.bodies import RequestBodies
from cachelb.events import ZmqSource
from cachelb.peers.groups import PeerGroups
from cachelb.router import Health, Pairs, Router
from cachelb.router.settings import FLAT_PAIRS
from cachelb.router.shared_caches import SharedCaches
from cachelb.sources import MetricsSource
from cachelb_gateway.config.setting import Setting
from cachelb_gateway.discovery.text import KINDS

Schema: TypeAlias = dict[str, Any]

SLOTS: Final = ("policy", "prefill_policy", "decode_policy")
"""The router's options that name a policy."""

LISTS: Final[Mapping[str, Callable[..., Any]]] = {"shared_caches": SharedCaches.add, "peer_groups": PeerGroups.add}
"""Lists of tables with a name, by the call that takes their options."""

SECRETS: Final = frozenset({"hash_seed", "headers", "secret"})
"""Options whose values are not shown."""

_CODE: Final = (
    *("BuiltinPolicy", "CacheLayout", "Callable", "Clock", "Endpoint", "Key", "LearnedModel", "Renderer"),
    *("RequestBodies", "SSLContext", "W", "bytes", "ssl"),
)
_POLICY: Final[Schema] = {"$ref": "#/$defs/policy-name"}
_PLAIN: Final[Mapping[str, Schema]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "PathLike": {"type": "string"},
    "PolicyLike": _POLICY,
    "PolicyName": _POLICY,
    "Any": {},
}


@dataclass(frozen=True)
class Option:
    """One keyword of a function."""

    default: Any
    annotation: str

    @cached_property
    def kind(self) -> Schema | None:
        """JSON Schema of its type; None if it takes a function or another object that no file can hold."""
        return _kind(ast.parse(self.annotation, mode="eval").body)

    @property
    def types(self) -> frozenset[str | None]:
        """JSON types that it takes."""
        return frozenset(each.get("type") for each in (self.kind or {}).get("anyOf", [self.kind or {}]))

    def checked(self, setting: Setting) -> Setting:
        """Return a setting of the option, unless no file can hold one."""
        if self.kind is None:
            raise setting.error("cannot be written in a configuration; give it in code")
        return setting

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


def router_options() -> Mapping[str, Option]:
    """List the options of the router, the fields of its groups beside its own arguments."""
    own = {name: option for name, option in _keywords(Router).items() if name not in ("pairs", "health")}
    pairs = _keywords(Pairs)
    return {**own, **{flat: pairs[name] for flat, name in FLAT_PAIRS.items()}, **_keywords(Health)}


def worker_options() -> Mapping[str, Option]:
    """List the options of a worker."""
    return _keywords(Router.add_worker)


def list_options(name: str) -> Mapping[str, Option]:
    """List the options of each table in one of `LISTS`."""
    return _keywords(LISTS[name])


def discovery_options(kind: str) -> Mapping[str, Option]:
    """List the options of a kind of source of workers, the required ones too."""
    return _keywords(KINDS[kind], inspect.Parameter.POSITIONAL_OR_KEYWORD)


def policy_options(name: str) -> Mapping[str, Option]:
    """List the options of a policy, other spellings included."""
    policy = policies.make(name)
    if isinstance(policy, policies.BuiltinPolicy):
        return {option: Option(default, kind) for option, kind, default, _ in policy.keywords().values()}
    own: Callable[..., Any] = type(policy)
    return _keywords(own)


def option_aliases(name: str) -> Mapping[str, str]:
    """Map the other spellings of a policy's options to the options."""
    aliases: Mapping[str, str] = getattr(type(policies.make(name)), "option_aliases", {})
    return aliases


def sections() -> dict[str, Mapping[str, Option]]:
    """List the options of the tables that configure one object beside the router."""
    sources = {"kv_events": ZmqSource, "load": MetricsSource}
    switch = {"enabled": Option(True, "bool")}  # noqa: FBT003 - a default
    switched = {name: {**_keywords(made), **switch} for name, made in sources.items()}
    return {**switched, "bodies": _keywords(RequestBodies)}


def policy_name(name: Setting) -> str:
    """Return the canonical name of a policy's name or alias."""
    try:
        policy = policies.make(name.text())
    except (TypeError, ValueError) as error:
        raise name.error(str(error)) from error
    # Policies of others are known by the name that finds them, not by their own.
    return policy.name if policies.POLICIES.get(policy.name) is type(policy) else name.text()


def any_of(kinds: Iterable[Schema]) -> Schema:
    """Describe a value of one of several kinds."""
    flat = [each for kind in kinds for each in kind.get("anyOf", [kind])]
    return {"anyOf": [each for n, each in enumerate(flat) if each not in flat[:n]]} if len(flat) > 1 else flat[0]


def _kind(node: ast.expr) -> Schema | None:  # noqa: PLR0911 - a case each
    match node:
        case ast.BinOp():
            kinds = [_kind(part) for part in (node.left, node.right)]
            described = [kind for kind in kinds if kind is not None]
            return any_of(described) if described not in ([], [{"type": "null"}]) else None
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id="PathLike" as name)):
            return None if name in _CODE else dict(_PLAIN.get(name, {}))
        case ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name)) if name in _CODE:
            return None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return {"enum": [word.value for word in _parts(words) if isinstance(word, ast.Constant)]}
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[_, values])):
            value = _kind(values)
            return None if value is None else {"type": "object", "additionalProperties": value}
        case ast.Subscript(value=ast.Name(id="Sequence" | "Iterable" | "tuple"), slice=items):
            item = _kind(_parts(items)[0]) or {}
            several = {"type": "array", "items": item}
            return any_of([item, several]) if item == _PLAIN["str"] or "enum" in item else several
    return {}  # a type of a policy from elsewhere


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


@cache
def _keywords(function: Callable[..., Any], *others: inspect._ParameterKind) -> Mapping[str, Option]:
    """Read the keyword-only parameters of a function, and those of other kinds."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, *others)
    found = inspect.signature(function).parameters.items()
    return MappingProxyType({name: Option(p.default, _written(p)) for name, p in found if p.kind in kinds})


def _written(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return "Any"
    is_text = isinstance(parameter.annotation, str)
    return parameter.annotation if is_text else inspect.formatannotation(parameter.annotation)
