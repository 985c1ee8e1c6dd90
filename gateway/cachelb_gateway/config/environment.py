"""Reads `CACHELB_*` environment variables, each as a layer that overrides the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from cachelb.common.secret import from_text
from cachelb.errors import ConfigError, did_you_mean
from cachelb_gateway.config import schema

_PREFIX = "CACHELB_"
_OURS_ELSEWHERE = frozenset({"CACHELB_DATA"})  # where the tests find their traces
# Kubernetes sets such variables in every pod for every service, including one named cachelb or cachelb-something.
_KUBERNETES = re.compile(r"CACHELB_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Give origin and settings of the `CACHELB_*` variables; one that sets no known option is an error.

    `CACHELB_WORKERS` is a list separated by commas; `CACHELB_DISCOVERY` is the short text of a source of workers, or a
    JSON list of them; `CACHELB_BLOCK_SIZE` and its like set options of the router; `CACHELB_POLICY__CACHE_THRESHOLD`
    and its like set an option in a section. Numbers, true, false, null and JSON lists and objects are read as such, all
    else is text.

    Example:
        >>> list(read_environment({"CACHELB_POLICY__LOAD": "inflight"}))
        [('env CACHELB_POLICY__LOAD', {'policy': {'load': 'inflight'}})]
    """
    sections = {"router": schema.router_options(), **schema.sections(), **{slot: {} for slot in schema.SLOTS}}
    for variable, text in sorted(environ.items()):  # a policy before its options
        if not variable.startswith(_PREFIX) or variable in _OURS_ELSEWHERE:
            continue
        name = variable.removeprefix(_PREFIX)
        section, separator, key = name.lower().partition("__")
        if name == "WORKERS":
            yield f"env {variable}", {"workers": _parts(text)}
        elif name == "DISCOVERY":
            yield f"env {variable}", {"discovery": from_text(text)}
        elif name.isupper() and name.lower() in sections["router"]:
            option = sections["router"][name.lower()]
            yield f"env {variable}", {"router": {name.lower(): _value(text, option)}}
        elif name.isupper() and separator and key and section in sections and section != "router":
            yield f"env {variable}", {section: {key: _value(text, sections[section].get(key))}}
        elif not _KUBERNETES.fullmatch(variable):
            names = [
                "WORKERS",
                "DISCOVERY",
                *(key.upper() for key, each in sections.pop("router").items() if each.kind),
            ]
            names += [
                f"{table}__{key}".upper() for table, options in sections.items() for key in options or ("option",)
            ]
            raise ConfigError(
                f"env {variable}: sets nothing{did_you_mean(variable, (_PREFIX + name for name in names))}"
            )


def _parts(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _value(text: str, option: schema.Option | None) -> object:
    """Read a value; a variable is text, so numbers and the like are recognised."""
    kinds = option.types if option else frozenset()
    is_list = text.lstrip().startswith("[")
    if option and isinstance(option.default, tuple) and not is_list:
        return _parts(text)
    if "string" in kinds and not (is_list and "array" in kinds):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
