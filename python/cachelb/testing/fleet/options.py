"""The options of one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

EngineKind: TypeAlias = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker behaves; `FakeFleet` documents the fields.

    Raises:
        TypeError: ``models`` is one string.
        ValueError: A value is out of range.
    """

    engine: EngineKind
    models: Sequence[str] | None
    block_size: int
    kv_blocks: int
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
        if isinstance(self.models, str):
            raise TypeError(f"models is the string {self.models!r}, it must be a list of names")
        if self.models is not None and not self.models:
            raise ValueError("models is empty: name at least one, or pass None to accept every name")
        for name in ("block_size", "kv_blocks", "max_running", "default_max_tokens", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("prefill_tps", "decode_tps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0")
        for name in ("time_scale", "remember"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 0")

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache holds, which is also the longest context."""
        return self.kv_blocks * self.block_size
