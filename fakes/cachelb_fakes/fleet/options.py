"""The options of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cachelb.cache_groups import CacheLayout
from cachelb.common.arguments import number, require, whole

EngineKind: TypeAlias = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTier:
    """Host memory of an engine, and the link over which others copy from it.

    Prompts are written to it as they are computed, least recently used blocks first out. An engine finds blocks in its
    own host memory as in its cache, at no time. Blocks of engines with different `hash_seed` never match.

    Args:
        blocks: Blocks that it holds.
        ms_per_token: Milliseconds of a copy per token.
        startup_ms: Milliseconds before the first token.
        timeout_s: Seconds after which an engine computes what a source does not send. vLLM gives up after 40.
        hash_seed: `PYTHONHASHSEED` of the engine.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb_fakes import FakeFleet, PeerTier
        >>> with FakeFleet(2, peers=PeerTier(blocks=1024)) as fleet:
        ...     fleet.workers[0].peer_address.startswith("127.0.0.1:")
        True
    """

    blocks: int
    ms_per_token: float = 0.01
    startup_ms: float = 27.0
    timeout_s: float = 40.0
    hash_seed: str = "0"

    def __post_init__(self) -> None:
        """Check every field."""
        whole("blocks", self.blocks, 1)
        for name in ("ms_per_token", "startup_ms", "timeout_s"):
            number(name, getattr(self, name), least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker; `FakeFleet` documents the fields."""

    engine: EngineKind
    models: Sequence[str] | None
    block_size: int
    kv_blocks: int
    cache_groups: CacheLayout | None
    peers: PeerTier | None
    max_running: int
    prefill_tps: float
    decode_tps: float
    time_scale: float
    default_max_tokens: int
    stream_interval: int
    remember: int
    kv_events: bool
    kv_replay: bool
    report_cached_tokens: bool

    def __post_init__(self) -> None:
        """Check every field."""
        if self.engine not in get_args(EngineKind):
            raise ValueError(f"engine is {self.engine!r}, it must be 'vllm' or 'sglang'")
        if isinstance(self.models, str) or not isinstance(self.models, Sequence | None):
            raise TypeError(f"models must be a list of names, got the {type(self.models).__name__} {self.models!r}")
        if self.models is not None and not self.models:
            raise ValueError("models is empty: name at least one, or pass None to accept every name")
        for name in ("block_size", "kv_blocks", "max_running", "default_max_tokens", "stream_interval"):
            whole(name, getattr(self, name), 1)
        for name in ("prefill_tps", "decode_tps"):
            number(name, getattr(self, name))
        number("time_scale", self.time_scale, least=0.0)
        whole("remember", self.remember, 0)
        if self.peers is not None:
            require("peers", self.peers, PeerTier, "a PeerTier or None")
        if self.cache_groups is not None:
            self._check_groups(self.cache_groups)

    def _check_groups(self, layout: CacheLayout) -> None:
        require("cache_groups", layout, CacheLayout, "a CacheLayout or None")
        if self.engine != "vllm":
            raise ValueError(f"cache_groups is for the engine 'vllm', not for {self.engine!r}; leave it out")
        if self.peers is not None:
            raise ValueError("peers is for engines with full attention in every layer: leave out cache_groups")
        if self.block_size != layout.hash_block:
            raise ValueError(
                f"block_size is {self.block_size}, but the blocks of cache_groups are multiples of "
                f"{layout.hash_block}: pass block_size={layout.hash_block}"
            )
        if self.kv_tokens < 1:
            raise ValueError(f"kv_blocks is {self.kv_blocks}, too few for {layout.alignment} tokens in every group")

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache holds if every group keeps them all, which is also the longest context."""
        if self.cache_groups is None:
            return self.kv_blocks * self.block_size
        step = self.cache_groups.alignment
        return self.kv_blocks // sum(step // group.block_size for group in self.cache_groups.groups) * step
