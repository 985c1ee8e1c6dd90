"""Reads TOML, JSON and YAML files into documents, with the line of each value where the format has it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelb.config.document import Document, Keys, dotted
from cachelb.errors import ConfigError
from cachelb.extras import need

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import yaml

_TABLE = re.compile(r"\s*(\[\[?)\s*([\w.\-\"' ]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*|"[^"]*"|'[^']*')\s*=""")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_file(path: str | os.PathLike[str]) -> Document:
    """Read a configuration file in the format of its suffix: .toml, .json, .yaml or .yml. Errors name line and column.

    Example:
        >>> read_file("gateway.ini")
        Traceback (most recent call last):
        cachelb.ConfigError: gateway.ini: a configuration ends in .json, .toml, .yaml or .yml, not in '.ini'
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
        data, lines = reader(text, str(file))
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error
    return Document(str(file), data, {keys: f"{file}:{line}" if line else str(file) for keys, line in lines.items()})


def _read_json(text: str, name: str) -> tuple[object, dict[Keys, int]]:
    """Parse JSON; the standard parser has no lines."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{name}: the key {key!r} is there twice in one object; keep one of them")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=unique), {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ConfigError:
        raise
    except ValueError as error:  # a number of more digits than the interpreter converts
        raise ConfigError(f"{name}: not JSON: {error}") from error


def _read_toml(text: str, name: str) -> tuple[object, dict[Keys, int]]:
    """Parse TOML."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        problem = _TOML_PLACE.sub("", str(error))
        line, column = (place[1], place[2]) if place and place[1] else _end(text)
        raise ConfigError(f"{name}:{line}:{column}: not TOML: {problem}") from error
    except ValueError as error:
        raise ConfigError(f"{name}: not TOML: {error}") from error
    return data, _toml_lines(text, data)


def _end(text: str) -> tuple[int, int]:
    """Return line and column behind the last character."""
    return text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1


def _toml_lines(text: str, data: Mapping[str, object]) -> dict[Keys, int]:
    """Find the lines of keys that begin a line, which is how nearly every TOML file is written.

    The parser has no lines. A key quoted inside a longer string is not in the data, or appears twice; its line is then
    0 rather than a wrong one.
    """
    table: Keys = ()
    tables: dict[Keys, int] = {}
    lines: dict[Keys, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _names(header[2])
            if header[1] == "[[":
                tables[table] = tables.get(table, -1) + 1
                table = (*table, tables[table])
            keys = table
        elif assignment := _KEY.match(line):
            keys = (*table, *_names(assignment[1]))
        else:
            continue
        lines[keys] = 0 if keys in lines else number
    return {keys: line for keys, line in lines.items() if _has(data, keys)}


def _names(written: str) -> Keys:
    """Split a dotted key; a quoted one is one name."""
    if written[0] in "\"'":
        return (written[1:-1],)
    return tuple(part.strip() for part in written.split("."))


def _has(data: Any, keys: Keys) -> bool:  # noqa: ANN401 - of any depth
    """Return whether the data has a value under keys."""
    for key in keys:
        try:
            data = data[key]
        except (IndexError, KeyError, TypeError):
            return False
    return True


def _read_yaml(text: str, name: str) -> tuple[object, dict[Keys, int]]:
    """Parse YAML."""
    need(f"reading {name}", "yaml")
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[Keys, int] = {}
        if node is not None:
            _yaml_lines(node, (), name, lines, set())
        return (loader.construct_document(node) if node is not None else None), lines
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


def _yaml_lines(node: yaml.Node, keys: Keys, name: str, lines: dict[Keys, int], seen: set[int]) -> None:
    """Record the line of every value; a duplicate key, which would silently override the first, is refused.

    Values repeated by an alias are recorded at their first place: a few nested aliases would make millions of values.
    """
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, child in enumerate(node.value):
            lines[*keys, number] = child.start_mark.line + 1
            _yaml_lines(child, (*keys, number), name, lines, seen)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            continue
        inner = (*keys, key.value)
        if inner in lines:
            raise ConfigError(f"{name}:{key.start_mark.line + 1}: the key {dotted(inner)} is there twice")
        lines[inner] = key.start_mark.line + 1
        _yaml_lines(value, inner, name, lines, seen)


_READERS: dict[str, Callable[[str, str], tuple[object, dict[Keys, int]]]] = {
    ".json": _read_json,
    ".toml": _read_toml,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}
