"""The keywords of the router that is being built; this file goes when it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def router(
    *,
    key: Callable[[Any], str] | None = None,
    policy: str = "cache-aware",
    block_size: int = 16,
    max_memory_mb: float = 256,
    seed: int | None = None,
    hash_seed: int | None = None,
    replicas: int = 1,
    clock: Callable[[], float] | None = None,
    prefill_policy: str = "prefill-times-batch",
    decode_policy: str | None = None,
    pd_uncached_token_threshold: int = 0,
    pd_fallback: bool = False,
    shadow: tuple[str, ...] = (),
    booking_ttl_s: float = 3600,
    max_report_age_s: float = 2.0,
    veto_kv_usage: float | None = None,
    veto_waiting: int | None = None,
    breaker_failures: int = 5,
    breaker_cooldown_s: float = 5.0,
    models: dict[str, int] | None = None,
) -> None:
    """Name the router's options."""


def add_worker(
    *,
    weight: float = 1.0,
    role: str = "both",
    dp_size: int = 1,
    models: tuple[str, ...] = (),
    gpu: str | None = None,
    kv_blocks: int | None = None,
    slow_start_s: float = 0.0,
) -> None:
    """Name a worker's options."""
