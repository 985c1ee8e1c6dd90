"""A configuration as written: values with their path and place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cachelb.errors import ConfigError

Keys: TypeAlias = tuple[str | int, ...]

_LOGIN = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Document:
    """One source of settings.

    Example:
        >>> document = Document("gateway.toml", {}, {("workers",): "gateway.toml:3"})
        >>> document.origin(("workers", 0)), document.origin(("router",))
        ('gateway.toml:3', 'gateway.toml')
    """

    name: str  # for messages: a file, or "mapping"
    data: object
    # places such as "gateway.toml:5" by keys as written; nested values inherit them
    origins: Mapping[Keys, str] = field(default_factory=dict)

    def origin(self, keys: Keys) -> str:
        """Return the place of a value, as exact as known."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.origins:
                return self.origins[keys[:length]]
        return self.name


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a document.

    Example:
        >>> root = Setting({"router": {"block-size": 32}}, (), Document("gateway.json", None))
        >>> size = root.entries()["router"].entries()["block_size"]
        >>> size.value, size.path, size.origin
        (32, 'router.block-size', 'gateway.json')
    """

    value: Any
    keys: Keys  # as written
    document: Document

    @property
    def path(self) -> str:
        """Dotted path, as written."""
        return dotted(self.keys)

    @property
    def origin(self) -> str:
        """The place of the value."""
        return self.document.origin(self.keys)

    def with_value(self, value: object) -> Setting:
        """Return another value that is written at the same place."""
        return Setting(value, self.keys, self.document)

    def error(self, problem: str) -> ConfigError:
        """Make the exception for the value, which names the place and the path."""
        where = f"{self.origin}: {self.path}" if self.keys else self.document.name
        return ConfigError(f"{where}: {masked(problem)}")

    def entries(self) -> dict[str, Setting]:
        """Read a table; hyphens in its keys count as underscores."""
        found: dict[str, Setting] = {}
        for key, setting in self.raw_entries().items():
            plain = key.replace("-", "_")
            if plain in found:
                raise setting.error(f"the same key as {found[plain].path}; keep one of them")
            found[plain] = setting
        return found

    def raw_entries(self) -> dict[str, Setting]:
        """Read a table whose keys are names, not options."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be a table of keys and values, not {kind(self.value)}")
        found = {}
        for key, value in self.value.items():
            if not isinstance(key, str):
                raise self.error(f"keys must be text, and {key!r} is {kind(key)}")
            found[key] = Setting(value, (*self.keys, key), self.document)
        return found

    def items(self) -> list[Setting]:
        """Read a list."""
        if not isinstance(self.value, list | tuple):
            raise self.error(f"must be a list, not {kind(self.value)}")
        return [Setting(item, (*self.keys, n), self.document) for n, item in enumerate(self.value)]

    def text(self) -> str:
        """Read a nonempty string."""
        if not isinstance(self.value, str):
            raise self.error(f"must be text, not {kind(self.value)}")
        if not self.value.strip():
            raise self.error("must not be empty")
        if not self.value.isprintable():
            raise self.error(f"must be printable text, got {self.value!a}")
        return self.value


def masked(text: str) -> str:
    """Hide users and passwords in the urls of a text.

    Example:
        >>> masked("http://me:secret@gpu0:8000")
        'http://***@gpu0:8000'
    """
    return _LOGIN.sub("//***@", text)


def dotted(keys: Keys) -> str:
    """Join keys of tables and positions in lists to a dotted path.

    Example:
        >>> dotted(("workers", 0, "url"))
        'workers[0].url'
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_shown(key)}" for key in keys).removeprefix(".")


def _shown(key: str) -> str:
    """Write a key so that it cannot move the cursor of a terminal."""
    return key if key.isprintable() else ascii(key)


def kind(value: object) -> str:
    """Name the type of a value in the words of configuration files.

    Example:
        >>> kind({}), kind(True), kind(None)
        ('a table', 'a boolean', 'null')
    """
    if value is None:
        return "null"
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return type(value).__name__


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Mapping, "a table"),
    ((list, tuple), "a list"),
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "text"),
)
