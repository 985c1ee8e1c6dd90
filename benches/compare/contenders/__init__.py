"""Indexes of other systems, one file each, which imports its system when an index is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from benches.compare.contenders.dynamo import Dynamo
from benches.compare.contenders.hash_trie import Trie
from benches.compare.contenders.nested_maps import NestedMaps
from benches.compare.contenders.ray_tree import Ray
from benches.structures.indexes import OWN, Index
from benches.structures.running import installed

if TYPE_CHECKING:
    from collections.abc import Iterable


class Foreign(Index, Protocol):
    """An index of another system.

    Attributes:
        package: The package to install for it.
        module: The module that is then importable.
    """

    package: str
    module: str


FOREIGN: tuple[type[Foreign], ...] = (Dynamo, Ray, Trie)
_ROUTERS = {"litellm": "litellm"}


def available() -> list[type[Index]]:
    """Return cachelb's indexes, nested maps, and the other systems' indexes that are installed."""
    found: Iterable[type[Foreign]] = (index for index in FOREIGN if installed(index.module))
    return [*OWN, NestedMaps, *found]


def missing() -> list[str]:
    """Return the packages that would have to be installed for the others."""
    wanted = {index.package: index.module for index in FOREIGN} | _ROUTERS
    return [package for package, module in wanted.items() if not installed(module)]
