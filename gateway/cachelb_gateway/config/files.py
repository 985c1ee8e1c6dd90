"""Reads TOML, JSON and YAML files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelb.common.extras import need
from cachelb.errors import ConfigError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_file(path: str | os.PathLike[str]) -> object:
    """Read a configuration file in the format of its suffix: .toml, .json, .yaml or .yml. Syntax errors have a line.

    Example:
        >>> read_file("gateway.ini")
        Traceback (most recent call last):
        cachelb.errors.ConfigError: gateway.ini: a configuration ends in .json, .toml, .yaml or .yml, not in '.ini'
    """
    file = Path(path)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        *most, last = _READERS
        raise ConfigError(f"{file}: a configuration ends in {', '.join(most)} or {last}, not in {file.suffix!r}")
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text at byte {error.start}") from error
    try:
        return reader(text, str(file))
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error


def _read_json(text: str, name: str) -> object:
    """Parse JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{name}: the key {key!r} is there twice in one object; keep one of them")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ConfigError:
        raise
    except ValueError as error:  # a number of more digits than the interpreter converts
        raise ConfigError(f"{name}: not JSON: {error}") from error


def _read_toml(text: str, name: str) -> object:
    """Parse TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        problem = _TOML_PLACE.sub("", str(error))
        line, column = (place[1], place[2]) if place and place[1] else _end(text)
        raise ConfigError(f"{name}:{line}:{column}: not TOML: {problem}") from error
    except ValueError as error:
        raise ConfigError(f"{name}: not TOML: {error}") from error


def _end(text: str) -> tuple[int, int]:
    """Return line and column behind the last character."""
    return text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1


def _read_yaml(text: str, name: str) -> object:
    """Parse YAML."""
    need(f"reading {name}", "yaml")
    import yaml

    class Unique(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - theirs
            """Refuse a duplicate key, which would silently override the first."""
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    raise ConfigError(f"{name}:{key.start_mark.line + 1}: the key {key.value!r} is there twice")
                keys |= {key.value} - {"<<"} if isinstance(key, yaml.ScalarNode) else set()
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Unique)  # noqa: S506 - a safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{place}: not YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line, column = _end(text[: error.position])
        raise ConfigError(f"{name}:{line}:{column}: not YAML: {error.reason}") from error
    except ConfigError:
        raise
    except (ValueError, OverflowError, TypeError) as error:  # such as a date of month 13
        raise ConfigError(f"{name}: not YAML: {error}") from error


_READERS: dict[str, Callable[[str, str], object]] = {
    ".json": _read_json,
    ".toml": _read_toml,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}
