"""Names of a package that are imported on first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cachelb.common.moved import moved_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Make the `__getattr__` of a package, of its names by the module that has them; those that moved warn.

    Its own modules are at its own name.
    """
    homes = {name: home for home, those in names.items() for name in those}

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            return moved_name(package, name, stacklevel=5)
        from importlib import import_module

        found = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        vars(sys.modules[package])[name] = found
        return found

    return find
