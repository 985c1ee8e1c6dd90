"""The known options, read from the signatures of their objects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from cachelb import policies
from cachelb.bodies import RequestBodies
from cachelb.config.document import Setting
from cachelb.config.model import KvEventsConfig
from cachelb.discovery.text import KINDS
from cachelb.router import Router
from cachelb.sources import MetricsSource

SLOTS = ("policy", "prefill_policy", "decode_policy")
"""The router's options that name a policy."""

SECTIONS = (*SLOTS, "kv_events", "load", "bodies")
"""Tables of options beside the router's own."""

SECRETS = frozenset({"hash_seed", "headers", "secret"})
"""Options whose values are not shown."""

_CODE = re.compile(r"Callable|\bKey\b|\bClock\b|SSLContext|\bRequestBodies\b|\bRenderer\b")
_TEXT = re.compile(r"str( \| None)?")
_TEXTS = re.compile(r"str \| Sequence\[str\] \| None")
_TEXT_OF = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)  # in a docstring


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of a function."""

    default: Any
    annotation: str
    text: str = ""  # its description

    @property
    def is_text(self) -> bool:
        """Whether it takes text only."""
        return bool(_TEXT.fullmatch(self.annotation))

    @property
    def is_texts(self) -> bool:
        """Whether it takes one text or several."""
        return bool(_TEXTS.fullmatch(self.annotation))

    @property
    def is_code(self) -> bool:
        """Whether it takes a function or another object that no file can hold."""
        return bool(_CODE.search(self.annotation))

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


def router_options() -> Mapping[str, Option]:
    """List the options of the router."""
    return _keywords(Router)


def worker_options() -> Mapping[str, Option]:
    """List the options of a worker."""
    return _keywords(Router.add_worker)


def shared_cache_options() -> Mapping[str, Option]:
    """List the options of a shared cache."""
    return _keywords(Router.add_shared_cache)


def discovery_options(kind: str) -> Mapping[str, Option]:
    """List the options of a kind of source of workers, the required ones too."""
    return _keywords(KINDS[kind], inspect.Parameter.POSITIONAL_OR_KEYWORD)


def policy_options(name: str) -> Mapping[str, Option]:
    """List the options of a policy, other spellings included."""
    policy = policies.make(name)
    if isinstance(policy, policies.BuiltinPolicy):
        return {option: Option(default, kind, text) for option, kind, default, text in policy.keywords().values()}
    own: Callable[..., Any] = type(policy)
    return _keywords(own)


def option_aliases(name: str) -> Mapping[str, str]:
    """Map the other spellings of a policy's options to the options."""
    aliases: Mapping[str, str] = getattr(type(policies.make(name)), "option_aliases", {})
    return aliases


def section_options(section: str) -> Mapping[str, Option] | None:
    """List the options of a table; empty for a policy's, which depend on the policy, and None for an unknown table."""
    if section in SLOTS:
        return MappingProxyType({})
    owners: dict[str, Callable[..., Any]] = {
        "kv_events": KvEventsConfig,
        "load": MetricsSource,
        "bodies": RequestBodies,
    }
    return _keywords(owners[section]) if section in owners else None


def policy_name(name: Setting) -> str:
    """Return the canonical name of a policy's name or alias."""
    try:
        policy = policies.make(name.text())
    except (TypeError, ValueError) as error:
        raise name.error(str(error)) from error
    # Policies of others are known by the name that finds them, not by their own.
    return policy.name if policies.POLICIES.get(policy.name) is type(policy) else name.text()


def misplaced(key: str) -> str:
    """Return a hint where an unknown key belongs, empty if it is not an option of the router.

    Example:
        >>> misplaced("block_size"), misplaced("block_sise")
        (" ('block_size' belongs in [router])", '')
    """
    return f" ({key!r} belongs in [router])" if key in router_options() and key not in SECTIONS else ""


def is_policy(name: str) -> bool:
    """Return whether a name or an alias belongs to a policy."""
    try:
        policies.make(name)
    except ValueError:
        return False
    return True


@cache
def _keywords(function: Callable[..., Any], *others: inspect._ParameterKind) -> Mapping[str, Option]:
    """Read the keyword-only parameters of a function, and those of other kinds."""
    found = inspect.signature(function).parameters
    makers = (function, getattr(function, "__init__", None), getattr(function, "__new__", None))
    texts = dict(pair for maker in makers for pair in _TEXT_OF.findall(inspect.getdoc(maker) or ""))
    options = {
        name: Option(parameter.default, str(parameter.annotation), texts.get(name, ""))
        for name, parameter in found.items()
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, *others)
    }
    return MappingProxyType(options)
