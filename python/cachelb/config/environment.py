"""Reads `CACHELB_*` environment variables into a document that overrides the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from cachelb.config import schema
from cachelb.config.document import Document, Keys
from cachelb.errors import ConfigError, did_you_mean
from cachelb.secret import from_text

_PREFIX = "CACHELB_"
_OURS_ELSEWHERE = frozenset({"CACHELB_DATA"})  # where the tests find their traces
# Kubernetes sets such variables in every pod for every service, including one named cachelb or cachelb-something.
_KUBERNETES = re.compile(r"CACHELB_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def read_environment(environ: Mapping[str, str]) -> Document:
    """Collect the `CACHELB_*` variables; one that sets no known option is an error.

    `CACHELB_WORKERS` is a list separated by commas; `CACHELB_DISCOVERY` is the short text of a source of workers, or a
    JSON list of them; `CACHELB_BLOCK_SIZE` and its like set options of the router; `CACHELB_POLICY__CACHE_THRESHOLD`
    and its like set an option in a section. Numbers, true, false, null and JSON lists and objects are read as such, all
    else is text.

    Example:
        >>> read_environment({"CACHELB_BLOCK_SIZE": "32", "CACHELB_POLICY__LOAD": "inflight"}).data
        {'router': {'block_size': 32}, 'policy': {'load': 'inflight'}}
    """
    data: dict[str, object] = {}
    origins: dict[Keys, str] = {}
    options = schema.router_options()
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX) or variable in _OURS_ELSEWHERE:
            continue
        name = variable.removeprefix(_PREFIX)
        section, separator, key = name.lower().partition("__")
        known = schema.section_options(section) if separator and key and name.isupper() else None
        if name == "WORKERS":
            data["workers"] = [worker.strip() for worker in text.split(",") if worker.strip()]
            origins["workers",] = f"env {variable}"
            continue
        if name == "DISCOVERY":
            data["discovery"] = from_text(text)
            origins["discovery",] = f"env {variable}"
            continue
        if name.isupper() and name.lower() in options:
            section, key, known = "router", name.lower(), options
        elif known is None:
            if _KUBERNETES.fullmatch(variable):
                continue
            raise ConfigError(f"env {variable}: sets nothing{did_you_mean(variable, _names(options))}")
        table = data.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = _value(text, known.get(key))
        origins[section, key] = f"env {variable}"
    return Document("environment", data, origins)


def _names(options: Mapping[str, schema.Option]) -> list[str]:
    """List the known variables."""
    names = ["WORKERS", "DISCOVERY", *(name.upper() for name, option in options.items() if not option.is_code)]
    for section in schema.SECTIONS:
        names += [f"{section}__{key}".upper() for key in schema.section_options(section) or ("option",)]
    return [_PREFIX + name for name in names]


def _value(text: str, option: schema.Option | None) -> object:
    """Read a value; a variable is text, so numbers and the like are recognised."""
    if option is not None and option.is_text:
        return text
    if option is not None and option.is_texts:
        return from_text(text)
    if option is not None and isinstance(option.default, tuple) and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
