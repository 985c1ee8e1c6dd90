"""The contenders: one file per project, each of which imports its project only when it is used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cachelb.bench.rivals.dynamo import Dynamo
from cachelb.bench.rivals.hash_trie import Trie
from cachelb.bench.rivals.nested_maps import NestedMaps
from cachelb.bench.rivals.own import Arrays, Blocks, Text
from cachelb.bench.rivals.ray_tree import Ray

if TYPE_CHECKING:
    from cachelb.bench.rivals.index import Index

INDEXES: tuple[type[Index], ...] = (Blocks, Arrays, Text, NestedMaps, Dynamo, Ray, Trie)
"""All there are; a new one of each is empty."""

_ROUTERS = {"litellm": "litellm"}


def is_here(module: str) -> bool:
    """Return whether a module could be imported.

    Example:
        >>> is_here("json"), is_here("no.such.module")
        (True, False)
    """
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def available() -> list[type[Index]]:
    """Find the contenders that are installed."""
    return [index for index in INDEXES if is_here(index.module)]


def missing() -> list[str]:
    """List the packages to install for the absent contenders."""
    wanted = {index.package: index.module for index in INDEXES} | _ROUTERS
    return [package for package, module in wanted.items() if not is_here(module)]
