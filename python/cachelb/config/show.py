"""Lists every effective value with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cachelb._core import worker_name
from cachelb.config import schema
from cachelb.config.document import Keys, dotted
from cachelb.config.model import KvEventsConfig, PolicyConfig, RouterConfig

_DEFAULT = "default"
_SET = "set"


@dataclass(frozen=True, slots=True)
class Shown:
    """One effective value.

    Attributes:
        path: Its dotted path in the natural form of a configuration.
        value: The value, in types that JSON has; "set" for a secret.
        origin: Its place, or "default".

    Example:
        >>> from cachelb.config import Shown
        >>> Shown("block_size", 16, "default").origin
        'default'
    """

    path: str
    value: Any
    origin: str


def show(config: RouterConfig) -> list[Shown]:
    """List every effective value, including defaults.

    Args:
        config: The configuration.

    Returns:
        The values, in the order of the natural form.

    Example:
        >>> from cachelb import config
        >>> shown = show(config.load({"policy": {"objective": "ttft"}}, environ={}))
        >>> [row for row in shown if row.path in ("policy.objective", "policy.ttl_s")]
        [Shown(path='policy.objective', value='ttft', origin='mapping'),
         Shown(path='policy.ttl_s', value=None, origin='default')]
    """
    return list(_rows(config))


def _rows(config: RouterConfig) -> Iterator[Shown]:
    """Go through the sections."""
    chosen: dict[str, PolicyConfig | None] = {slot: getattr(config, slot) for slot in schema.SLOTS}
    yield from _router_rows(config, chosen)
    for slot, policy in chosen.items():
        yield from _policy_rows(config, (slot,), policy)
    for n, policy in enumerate(config.shadow):
        yield from _policy_rows(config, ("shadow", n), policy)
    for n, worker in enumerate(config.workers):
        yield _row(config, ("workers", n, "url"), worker_name(worker.key))
        values = {**worker.options, "role": worker.role}
        yield from _table_rows(config, ("workers", n), schema.worker_options(), values)
        yield _row(config, ("workers", n, "bootstrap_port"), worker.bootstrap_port)
    for n, cache in enumerate(config.shared_caches):
        yield _row(config, ("shared_caches", n, "name"), cache.name)
        yield from _table_rows(config, ("shared_caches", n), schema.shared_cache_options(), cache.options)
    for n, source in enumerate(config.discovery):
        yield _row(config, ("discovery", n, "kind"), source.kind)
        yield from _table_rows(config, ("discovery", n), schema.discovery_options(source.kind), source.options)
    if (events := config.kv_events) is not None:
        fields = KvEventsConfig.__dataclass_fields__
        yield from (_row(config, ("kv_events", key), getattr(events, key)) for key in fields)
    if config.load is not None:
        yield from _table_rows(config, ("load",), schema.section_options("load") or {}, config.load)
    if (bodies := config.bodies) is not None:
        options = schema.section_options("bodies") or {}
        yield from _table_rows(config, ("bodies",), options, {key: getattr(bodies, key) for key in options})
    if config.model_path is not None:
        yield _row(config, ("model_path",), config.model_path)


def _router_rows(config: RouterConfig, chosen: Mapping[str, PolicyConfig | None]) -> Iterator[Shown]:
    """List the router's options, policies by name."""
    for key, option in schema.router_options().items():
        if key in chosen:
            policy = chosen[key]
            yield _row(config, ("router", key), policy.name if policy else option.default)
        elif key == "shadow":
            yield from (_row(config, ("router", key, n), policy.name) for n, policy in enumerate(config.shadow))
        elif not option.is_code:
            yield _row(config, ("router", key), config.options.get(key, option.default))


def _policy_rows(config: RouterConfig, keys: Keys, policy: PolicyConfig | None) -> Iterator[Shown]:
    """List a policy's own options, without other spellings and without those of the router."""
    if policy is None:
        return
    hidden = {*schema.option_aliases(policy.name), *schema.router_options()}
    own = {key: option for key, option in schema.policy_options(policy.name).items() if key not in hidden}
    yield from _table_rows(config, keys, own, policy.options)


def _table_rows(
    config: RouterConfig, keys: Keys, options: Mapping[str, schema.Option], values: Mapping[str, Any]
) -> Iterator[Shown]:
    """List a table of options."""
    for key, option in options.items():
        if not option.is_code:
            yield _row(config, (*keys, key), values.get(key, option.default))


def _row(config: RouterConfig, keys: Keys, value: object) -> Shown:
    """Show one value."""
    path = dotted(keys)
    if keys[-1] in schema.SECRETS and value is not None:
        value = _SET
    return Shown(path, _jsonable(value), config.origins.get(path, _DEFAULT))


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - any option
    """Convert read-only containers to JSON types."""
    if hasattr(value, "items"):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
