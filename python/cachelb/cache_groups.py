"""Cache groups of hybrid models: the parts of a prompt that an engine's layers keep, and where it can resume.

Layers with full attention keep every block of a prompt; layers with sliding windows, recurrent state or chunked
attention keep the blocks that a resumed prompt reads. A prompt is resumed where every group has those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from cachelb.common.arguments import listed, require, whole

CacheKind: TypeAlias = Literal["full_attention", "mla_attention", "sliding_window", "mamba", "chunked_local_attention"]
"""Kinds of groups, as vLLM names them in its events."""

FULL_KINDS: Final = ("full_attention", "mla_attention")
"""Kinds of groups that keep every block."""

_SPARSE: Final = ("sliding_window", "mamba")
_MOST_GROUPS: Final = 64
_MOST_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same blocks of a prompt.

    Attributes:
        kind: How they attend.
        block_size: Tokens per block.
        window: Tokens that a sliding window sees, the newest included; for ``sliding_window``.
        chunk: Tokens of an attention chunk; for ``chunked_local_attention``.

    Raises:
        ValueError: A value is out of range, or belongs to another kind.

    Example:
        >>> from cachelb.cache_groups import CacheGroup
        >>> CacheGroup("sliding_window", 32, window=128).is_full
        False
    """

    kind: CacheKind
    block_size: int
    window: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(CacheKind):
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(get_args(CacheKind))}")
        whole("block_size", self.block_size, 1, _MOST_TOKENS)
        for name, kind in (("window", "sliding_window"), ("chunk", "chunked_local_attention")):
            value = getattr(self, name)
            if self.kind == kind:
                if value is None:
                    raise ValueError(f"{kind} needs {name}: pass that of the model, such as {name}=1024")
                whole(name, value, 1, _MOST_TOKENS)
            elif value is not None:
                raise ValueError(f"{name} is {value!r} for {self.kind}; leave it out, only {kind} has one")

    @property
    def is_full(self) -> bool:
        """Whether it keeps every block."""
        return self.kind in FULL_KINDS

    @property
    def is_sparse(self) -> bool:
        """Whether it keeps blocks only where a prompt is likely to be resumed."""
        return self.kind in _SPARSE


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of an engine, and how it retains blocks.

    Attributes:
        groups: The groups in the engine's order; one or more keep everything.
        retention_interval: Where groups with sliding windows or recurrent state keep blocks, as
            `--prefix-cache-retention-interval`: at the ends of prompts and where prompts part (0), at every so
            many tokens too, or everywhere (None).
        eagle: Whether speculation by EAGLE or MTP reads one block beyond the resume point.
        announced: Whether KV events describe all groups, as those of vLLM and TensorRT-LLM do. False for engines whose
            events describe full attention only, such as SGLang: then prompts are predicted to resume where they end
            and where they part, on blocks that events confirm, and after an answer with fewer `cached_tokens` no
            more than that is predicted of the prompt until another request is routed along it.

    Raises:
        TypeError: An attribute is of another type.
        ValueError: No group keeps everything, or groups do not go together.

    Example:
        >>> from cachelb.cache_groups import CacheGroup, CacheLayout
        >>> layout = CacheLayout([CacheGroup("sliding_window", 64, window=128), CacheGroup("full_attention", 32)])
        >>> layout.alignment, layout.hash_block
        (64, 32)
    """

    groups: Sequence[CacheGroup]
    retention_interval: int | None = 0
    eagle: bool = False
    announced: bool = True
    alignment: int = field(init=False, repr=False)
    """Tokens that resume points are multiples of."""
    hash_block: int = field(init=False, repr=False)
    """Tokens per hash: every group's blocks are named by the hash of the prompt up to their end."""

    def __post_init__(self) -> None:
        groups = tuple(listed("groups", self.groups, _MOST_GROUPS))
        for group in groups:
            require("groups", group, CacheGroup, "of CacheGroup")
        if not any(group.is_full for group in groups):
            kinds = ", ".join(group.kind for group in groups) or "none"
            raise ValueError(f"groups are {kinds}: add one of {' or '.join(FULL_KINDS)}")
        sizes = [group.block_size for group in groups]
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "alignment", math.lcm(*sizes))
        object.__setattr__(self, "hash_block", math.gcd(*sizes))
        if self.alignment > _MOST_TOKENS:
            raise ValueError(
                f"blocks of {sizes} tokens end together every {self.alignment} only; use sizes that divide"
            )
        for name in ("eagle", "announced"):
            require(name, getattr(self, name), bool, "True or False")
        self._check_together()
        self._check_interval()

    def _check_together(self) -> None:
        kinds = {group.kind for group in self.groups}
        if "chunked_local_attention" in kinds and self.alignment != self.hash_block:
            raise ValueError("chunked_local_attention needs groups of one block_size; give all the same")
        if "chunked_local_attention" in kinds and self.eagle:
            raise ValueError("eagle does not go with chunked_local_attention; leave one out")
        if kinds <= {"mamba", *FULL_KINDS}:
            finer = [g.block_size for g in self.groups if g.kind == "mamba" and g.block_size > self.hash_block]
            if finer:
                raise ValueError(
                    f"mamba blocks of {finer[0]} tokens beside hashes of {self.hash_block} resume inside blocks, which "
                    "is not modelled; give all groups the same block_size"
                )

    def _check_interval(self) -> None:
        if self.retention_interval is None:
            return
        whole("retention_interval", self.retention_interval, 0, _MOST_TOKENS)
        if self.retention_interval % self.alignment:
            raise ValueError(
                f"retention_interval is {self.retention_interval}, it must be 0, None or a multiple of {self.alignment}"
            )
        if self.retention_interval and not any(group.is_sparse for group in self.groups):
            raise ValueError(
                f"retention_interval is {self.retention_interval}, but no group is sliding_window or mamba; use 0"
            )

    @classmethod
    def of(cls, layout: CacheLayout | Mapping[str, Any]) -> CacheLayout:
        """Read a layout as configuration files write it; a layout stays what it is.

        Args:
            layout: A table with the arguments of this class, `groups` being tables with those of `CacheGroup`;
                `retention_interval` is "all" where blocks are kept everywhere.

        Returns:
            The layout.

        Raises:
            TypeError: It is neither, or an argument has the wrong type.
            ValueError: A key is unknown or missing, or a value is out of range.

        Example:
            >>> from cachelb.cache_groups import CacheLayout
            >>> group = {"kind": "full_attention", "block_size": 16}
            >>> CacheLayout.of({"groups": [group], "eagle": True}).alignment
            16
        """
        if isinstance(layout, CacheLayout):
            return layout
        words = "a cachelb.cache_groups.CacheLayout or a table with its arguments"
        require("cache_layout", layout, Mapping, words)
        given = _only("cache_layout", layout, ("groups",), ("retention_interval", "eagle"))
        groups = [
            CacheGroup(**_only(f"cache_layout.groups[{n}]", group, ("kind", "block_size"), ("window", "chunk")))
            for n, group in enumerate(listed("cache_layout.groups", given.pop("groups"), _MOST_GROUPS))
        ]
        if given.get("retention_interval") == "all":
            given["retention_interval"] = None
        return cls(groups, **given)


def _only(name: str, table: object, needed: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """Return the items of a table, or refuse one with other keys or without those that are needed."""
    known = (*needed, *others)
    require(name, table, Mapping, f"a table with {', '.join(known)}")
    items: dict[str, Any] = {str(key): value for key, value in dict(table).items()}  # type: ignore[call-overload]
    unknown = [key for key in items if key not in known]
    if unknown:
        raise ValueError(f"{name} has no {unknown[0]!r}; it takes {', '.join(known)}")
    missing = [key for key in needed if key not in items]
    if missing:
        raise ValueError(f"{name} needs {missing[0]!r}")
    return items
