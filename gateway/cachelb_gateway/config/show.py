"""Lists every effective value with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cachelb._core import worker_name
from cachelb_gateway.config import schema
from cachelb_gateway.config.model import RouterConfig

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
        >>> from cachelb_gateway.config import Shown
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
        >>> from cachelb_gateway import config
        >>> shown = show(config.load({"policy": {"objective": "ttft"}}, environ={}))
        >>> [row for row in shown if row.path in ("policy.objective", "policy.ttl_s")]
        [Shown(path='policy.objective', value='ttft', origin='mapping'),
         Shown(path='policy.ttl_s', value=None, origin='default')]
    """
    router: dict[str, Any] = {**config.options, "policy": config.policy.name}
    router |= {slot: policy.name for slot in schema.SLOTS[1:] if (policy := getattr(config, slot)) is not None}
    options = {key: each for key, each in schema.router_options().items() if key != "shadow"}
    tables: list[tuple[str, Mapping[str, schema.Option], Mapping[str, Any]]] = [("router", options, router)]
    tables.append(("router", {}, {f"shadow[{n}]": each.name for n, each in enumerate(config.shadow)}))
    chosen = {slot: getattr(config, slot) for slot in schema.SLOTS}
    for path, policy in {**chosen, **{f"shadow[{n}]": each for n, each in enumerate(config.shadow)}}.items():
        if policy is not None:
            hidden = {*schema.option_aliases(policy.name), *schema.router_options()}
            own = {key: each for key, each in schema.policy_options(policy.name).items() if key not in hidden}
            tables.append((path, own, policy.options))
    for n, worker in enumerate(config.workers):
        fixed = {"url": worker_name(worker.key), "role": worker.role, "bootstrap_port": worker.bootstrap_port}
        tables.append((f"workers[{n}]", schema.worker_options(), {**worker.options, **fixed}))
    for name in schema.LISTS:
        for n, made in enumerate(getattr(config, name)):
            tables.append((f"{name}[{n}]", schema.list_options(name), {"name": made.name, **made.options}))
    for n, each in enumerate(config.discovery):
        found = {"kind": each.kind, **each.options}
        tables.append((f"discovery[{n}]", schema.discovery_options(each.kind), found))
    for name, known in schema.sections().items():
        if (values := getattr(config, name)) is not None:
            given = values if isinstance(values, Mapping) else {key: getattr(values, key) for key in known}
            tables.append((name, known, given))
    if config.model_path is not None:
        tables.append(("", {}, {"model_path": config.model_path}))
    return [row for table in tables for row in _rows(config.origins, *table)]


def _rows(
    origins: Mapping[str, str], table: str, options: Mapping[str, schema.Option], values: Mapping[str, Any]
) -> Iterator[Shown]:
    """List a table of options; those that take code are left out."""
    defaults = {key: option.default for key, option in options.items() if option.kind is not None}
    for key, value in {
        **defaults,
        **{key: each for key, each in values.items() if key not in options or key in defaults},
    }.items():
        path = f"{table}.{key}".removeprefix(".")
        shown = _SET if key in schema.SECRETS and value is not None else _jsonable(value)
        yield Shown(path, shown, origins.get(path, _DEFAULT))


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - any option
    """Convert read-only containers to JSON types."""
    if hasattr(value, "items"):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
