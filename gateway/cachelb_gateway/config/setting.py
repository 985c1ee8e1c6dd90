"""A value of a configuration with its path and origin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cachelb.errors import ConfigError

_LOGIN = re.compile(r"//[^/@\s]*@")
_MAX_NESTING = 8  # of a value; options are numbers, texts and lists of them


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a file, a mapping or a variable.

    Example:
        >>> Setting({"block_size": 32}, "router", "gateway.json").entries()["block_size"]
        Setting(value=32, path='router.block_size', origin='gateway.json')
    """

    value: Any
    path: str  # as written
    origin: str

    def at(self, value: object) -> Setting:
        """Return another value that is written at the same place."""
        return replace(self, value=value)

    def error(self, problem: str) -> ConfigError:
        """Make the exception for the value, which names origin and path, and no password in a url."""
        return ConfigError(": ".join(filter(None, (self.origin, self.path, _LOGIN.sub("//***@", problem)))))

    def entries(self) -> Table:
        """Read a table."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be a table of keys and values, not {kind(self.value)}")
        found = {}
        for key, value in self.value.items():
            if not isinstance(key, str):
                raise self.error(f"keys must be text, and {key!r} is {kind(key)}")
            shown = key if key.isprintable() else ascii(key)  # the cursor of a terminal stays
            found[key] = Setting(value, f"{self.path}.{shown}".removeprefix("."), self.origin)
        return found

    def items(self) -> list[Setting]:
        """Read a list."""
        if not isinstance(self.value, list | tuple):
            raise self.error(f"must be a list, not {kind(self.value)}")
        return [Setting(item, f"{self.path}[{n}]", self.origin) for n, item in enumerate(self.value)]

    def text(self) -> str:
        """Read a nonempty string."""
        if not isinstance(self.value, str):
            raise self.error(f"must be text, not {kind(self.value)}")
        if not self.value.strip():
            raise self.error("must not be empty")
        if not self.value.isprintable():
            raise self.error(f"must be printable text, got {self.value!a}")
        return self.value

    def plain(self) -> Any:  # noqa: ANN401 - a value of any option
        """Copy the value against later changes; refuse nesting that no option has."""
        return self._copy(self.value, 0)

    def _copy(self, value: object, nesting: int) -> object:
        if nesting > _MAX_NESTING:
            raise self.error(f"is nested more than {_MAX_NESTING} deep")
        if isinstance(value, Mapping):
            return {key: self._copy(item, nesting + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return tuple(self._copy(item, nesting + 1) for item in value)
        return value


Table: TypeAlias = dict[str, Setting]


def kind(value: object) -> str:
    """Name the type of a value in the words of configuration files.

    Example:
        >>> kind({}), kind(True), kind(None)
        ('a table', 'a boolean', 'null')
    """
    match value:
        case None:
            return "null"
        case Mapping():
            return "a table"
        case list() | tuple():
            return "a list"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
    return "text" if isinstance(value, str) else type(value).__name__
