"""Caches that workers of a model can read, such as a Mooncake store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import listed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from cachelb._core import RouterFleet

TTL_S = 1800.0
"""Seconds that a block of a shared cache is trusted after an event announced it."""


@dataclass(frozen=True, slots=True)
class SharedCaches:
    """The shared caches of a router: `Router.shared_caches`."""

    _fleet: RouterFleet = field(repr=False)

    def add(
        self,
        name: str,
        *,
        model: str | None = None,
        load_ms_per_token: float | None = None,
        startup_ms: float = 0.0,
        media: Iterable[Literal["cpu", "disk"]] = (),
        ttl_s: float | None = TTL_S,
        kv_blocks: int | None = None,
        workers: Iterable[Any] | None = None,
    ) -> None:
        """Register the cache that workers of a model can read, or update it; its known blocks stay.

        Every candidate that reads it is credited the blocks that continue its own, so a shared cache narrows the gap
        between those and never makes one look worse by itself. Its blocks come from its own events
        (`RouterEvents.apply_events` with its name) and from those of its workers: events that say "external" or
        "remote", and the media named here. Under `adaptive` a block counts by what loading it saves of computing it;
        `overlap-cost` has `shared_cache_multiplier`.

        Args:
            name: Its name, which no worker has as its key.
            model: The model that it holds blocks of; None is the first one. A model has at most one shared cache.
            load_ms_per_token: Milliseconds that loading takes per prompt token; None counts a block as 0.6 of one in
                device memory.
            startup_ms: Milliseconds before the first token is loaded.
            media: Media that mean this cache in the events of its workers: vLLM's Mooncake store connector sends "cpu".
            ttl_s: Seconds that a block is trusted after an event announced it, for senders that never remove; None
                trusts it until it is removed.
            kv_blocks: Blocks it holds, as its events count them; None is as many as a worker may hold.
            workers: Those that read it and whose events feed it, or their keys, registered or yet to come; None is all
                of the model. One that leaves and comes back reads it again.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, `workers` is empty, the name is that of a worker or of another
                model's shared cache, or the model has another shared cache; the message has the remedy.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0", "gpu1"])
            >>> router.shared_caches.add("mooncake", load_ms_per_token=0.01, media=["cpu"])
            >>> router.shared_caches.blocks()
            {'mooncake': 0}
        """
        given = {**locals()}
        del given["self"]
        given["media"] = [media] if isinstance(media, str) else listed("media", media)
        given["workers"] = None if workers is None else listed("workers", workers)
        self._fleet.add_shared_cache(given)

    def remove(self, name: str) -> bool:
        """Forget a shared cache and its blocks.

        Args:
            name: Its name.

        Returns:
            Whether it was registered.

        Raises:
            TypeError: The name is no text.
        """
        return self._fleet.remove_shared_cache(name)

    def blocks(self) -> dict[str, int]:
        """Count the blocks of each shared cache.

        Returns:
            The known blocks by name.
        """
        return dict(self._fleet.shared_caches())
