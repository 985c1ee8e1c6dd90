"""Names of a package that are imported on first use, and old names that warn."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Names: TypeAlias = Mapping[str, Sequence[str]]


def lazy(package: str, names: Names, moved: Names = MappingProxyType({})) -> Callable[[str], object]:
    """Make the `__getattr__` of a package, of its names by the module that has them; `moved` ones warn.

    Its own modules are at its own name.
    """
    homes, old = ({name: home for home, those in table.items() for name in those} for table in (names, moved))

    def find(name: str) -> object:
        home = homes.get(name) or old.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module
        from warnings import warn

        found = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        if name in old:
            text = f"{package}.{name} is now {home}.{name}; the old name goes in cachelb 0.5"
            warn(text, DeprecationWarning, stacklevel=2)
        else:
            vars(sys.modules[package])[name] = found
        return found

    return find
