"""Which options there are: read from the signatures of the objects they belong to."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachelb import policies
from cachelb.config.model import KvEventsConfig
from cachelb.router import Router
from cachelb.sources import MetricsSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cachelb.config.document import Setting

SLOTS = ("policy", "prefill_policy", "decode_policy")
"""The router's options that name a policy."""

SECTIONS = (*SLOTS, "kv_events", "load")
"""Tables of options beside the router's own."""

SECRETS = frozenset({"hash_seed", "headers", "secret"})
"""Options whose values are not shown."""

_CODE = re.compile(r"Callable|\bKey\b|\bClock\b|SSLContext")
_TEXT = re.compile(r"str( \| None)?")
_TEXTS = re.compile(r"str \| Sequence\[str\] \| None")


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of a function.

    Attributes:
        default: What it is if nobody sets it.
        is_text: It takes nothing but text.
        is_texts: It takes a text, or several.
        is_code: It takes a function or another object that no file can hold.
    """

    default: Any
    is_text: bool
    is_texts: bool
    is_code: bool


def router_options() -> Mapping[str, Option]:
    """List what the router takes.

    Returns:
        Options by name.
    """
    return _keywords(Router)


def worker_options() -> Mapping[str, Option]:
    """List what a worker takes.

    Returns:
        Options by name.

    Example:
        >>> worker_options()["role"].default
        'both'
    """
    return _keywords(Router.add_worker)


def policy_options(name: str) -> Mapping[str, Option]:
    """List what a policy takes.

    Args:
        name: Its name.

    Returns:
        Options by name, other spellings among them.

    Example:
        >>> policy_options("power-of-two")["choices"].default
        2
    """
    policy = policies.make(name)
    if isinstance(policy, policies.BuiltinPolicy):
        return {option: _option(default, kind) for option, kind, default, _ in policy.keywords().values()}
    own: Callable[..., Any] = type(policy)
    return _keywords(own)


def option_aliases(name: str) -> Mapping[str, str]:
    """List the other spellings of a policy's options.

    Args:
        name: Its name.

    Returns:
        The options they stand for, by spelling.

    Example:
        >>> option_aliases("cache-aware")["max_blocks_per_backend"]
        'max_blocks_per_worker'
    """
    aliases: Mapping[str, str] = getattr(type(policies.make(name)), "option_aliases", {})
    return aliases


def section_options(section: str) -> Mapping[str, Option] | None:
    """List what a table takes.

    Args:
        section: One of `SECTIONS`.

    Returns:
        Options by name; none for a policy, since they depend on which. None if there is no such table.

    Example:
        >>> list(section_options("kv_events"))
        ['topic_filter', 'default_port', 'replay_port', 'enabled', 'relay']
        >>> section_options("kv_event") is None
        True
    """
    if section in SLOTS:
        return MappingProxyType({})
    if section == "kv_events":
        return _keywords(KvEventsConfig)
    return _keywords(MetricsSource) if section == "load" else None


def policy_name(name: Setting) -> str:
    """Find a policy.

    Args:
        name: Its name or an alias.

    Returns:
        Its canonical name.

    Raises:
        ConfigError: There is no such policy.
    """
    try:
        policy = policies.make(name.text())
    except (TypeError, ValueError) as error:
        raise name.error(str(error)) from error
    # What others register is known by the name it is registered under, whatever it calls itself.
    return policy.name if isinstance(policy, policies.BuiltinPolicy) else name.text()


def misplaced(key: str) -> str:
    """End a message about an unknown key with where it would be right.

    Args:
        key: The key.

    Returns:
        The hint, empty if the key is no option of the router.

    Example:
        >>> misplaced("block_size"), misplaced("block_sise")
        (" ('block_size' belongs in [router])", '')
    """
    return f" ({key!r} belongs in [router])" if key in router_options() else ""


def is_policy(name: str) -> bool:
    """Say whether there is a policy of that name.

    Args:
        name: A name or an alias.

    Returns:
        True if there is.
    """
    try:
        policies.make(name)
    except ValueError:
        return False
    return True


def _option(default: object, annotation: str) -> Option:
    return Option(
        default,
        is_text=bool(_TEXT.fullmatch(annotation)),
        is_texts=bool(_TEXTS.fullmatch(annotation)),
        is_code=bool(_CODE.search(annotation)),
    )


@cache
def _keywords(function: Callable[..., Any]) -> Mapping[str, Option]:
    """Read the keyword-only parameters of a function."""
    found = inspect.signature(function).parameters
    options = {
        name: _option(parameter.default, str(parameter.annotation))
        for name, parameter in found.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return MappingProxyType(options)
