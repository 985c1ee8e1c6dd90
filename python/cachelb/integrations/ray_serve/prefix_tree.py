"""A drop-in for the prefix tree of Ray's own `PrefixCacheAffinityRouter`: the same methods, `RadixTree` underneath.

Ray's words are kept here: a tenant is a worker. Sizes count characters (code points).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from cachelb._core import RadixTree


class PrefixTree:
    """The prompts sent to each replica, with the methods of Ray's `PrefixTree` and `PrefixTreeActor`.

    Texts are recorded for tenants that were added; for others, every call is a no-op. Safe from threads.

    Example:
        >>> tree = PrefixTree()
        >>> tree.add_tenants(["replica-a", "replica-b"], 0)
        >>> tree.insert("helloworld", "replica-a", 1)
        >>> tree.insert("hellothere", "replica-b", 2)
        >>> tree.prefix_match("hellothomas")
        ('helloth', ['replica-b'])
        >>> tree.prefix_match("hellothomas", ["replica-a"])
        ('hello', ['replica-a'])
        >>> tree.evict_tenant_by_lru("replica-a", 1), tree.tenant_to_char_count
        (10, {'replica-a': 0, 'replica-b': 10})
    """

    def __init__(self, tree: RadixTree | None = None) -> None:
        """Make an empty tree.

        Args:
            tree: The tree of the texts, a new `RadixTree` by default.
        """
        self._tree = RadixTree() if tree is None else tree
        self._lock = threading.RLock()
        self._tenants: dict[str, None] = {}  # in the order in which they were added
        self._evictions: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def tenant_to_char_count(self) -> dict[str, int]:
        """Characters of each tenant."""
        with self._lock:
            return {tenant: self._tree.size(tenant) for tenant in self._tenants}

    def add_tenants(self, tenants: Iterable[str], time_s: float) -> None:
        """Make tenants known. Those that are known already stay as they are.

        Args:
            tenants: Their names.
            time_s: The time, in seconds; only there because Ray's has it.
        """
        del time_s
        with self._lock:
            self._tenants.update(dict.fromkeys(tenants))

    def insert(self, text: str, tenant: str, time_s: float) -> None:
        """Record that a tenant was given a text.

        Args:
            text: The text.
            tenant: The tenant; nothing happens if it was not added.
            time_s: The time of use, in seconds.
        """
        with self._lock:
            if tenant in self._tenants and text:
                self._tree.insert(_plain(text), tenant, at=time_s)

    def prefix_match(self, text: str, available_tenants: Sequence[str] | None = None) -> tuple[str, list[str] | None]:
        """Find the longest prefix of a text that a tenant holds, and its holders.

        Args:
            text: The text.
            available_tenants: The candidates; unknown ones are passed over. None and an empty list mean all.

        Returns:
            The prefix and its holders, in the order given; "" and all of them if no tenant holds any of it; "" and
            None if none of them is known.
        """
        with self._lock:
            tenants = [tenant for tenant in available_tenants or self._tenants if tenant in self._tenants]
            if not tenants:
                return "", None
            match = self._tree.match_prefix(_plain(text), among=tenants)
            if not match.matched:
                return "", tenants
            return text[: match.matched], [tenant for tenant in tenants if tenant in match.workers]

    def remove_tenants(self, tenants: Iterable[str]) -> dict[str, int]:
        """Forget tenants.

        Args:
            tenants: Their names.

        Returns:
            How many characters each of them had, 0 for one that is not known.
        """
        removed: dict[str, int] = {}
        with self._lock:
            for tenant in tenants:
                known = tenant in self._tenants
                removed[tenant] = self._tree.size(tenant) if known else 0
                if known:
                    del self._tenants[tenant]
                    self._tree.remove_worker(tenant)
        return removed

    def evict_tenant_by_lru(self, tenant: str, min_remove_size: int) -> int:
        """Evict a tenant's least recently used texts. Texts of the same time are evicted together.

        Args:
            tenant: The tenant.
            min_remove_size: Characters to drop at least, or all there are.

        Returns:
            How many characters were dropped, 0 if the tenant is not known.
        """
        with self._lock:
            if tenant not in self._tenants or min_remove_size <= 0:
                return 0
            return self._tree.evict_oldest(tenant, min_remove_size)

    def get_smallest_tenants(self) -> list[str] | None:
        """Find the tenants with the fewest characters.

        Returns:
            Their names, None if there are no tenants.
        """
        counts = self.tenant_to_char_count
        if not counts:
            return None
        smallest = min(counts.values())
        return [tenant for tenant, count in counts.items() if count == smallest]

    def start_eviction_loop(self, eviction_threshold: int, eviction_target: int, interval_secs: float) -> bool:
        """Begin to evict in the background, unless that has begun.

        Args:
            eviction_threshold: Characters above which a tenant is evicted from.
            eviction_target: Characters it may have afterwards.
            interval_secs: Seconds between two looks.

        Returns:
            Whether this call began it.
        """
        with self._lock:
            if self._evictions is not None:
                return False
            self._stop.clear()
            self._evictions = threading.Thread(
                target=self._evict_until_stopped,
                args=(eviction_threshold, eviction_target, interval_secs),
                name="cachelb-prefix-tree",
                daemon=True,
            )
            self._evictions.start()
            return True

    def stop_eviction_loop(self) -> None:
        """Stop the eviction loop, if it runs."""
        self._stop.set()
        with self._lock:
            thread, self._evictions = self._evictions, None
        if thread is not None:
            thread.join()

    def getattr(self, attribute: str) -> Any:  # noqa: ANN401 - whatever is asked for
        """Read an attribute: an actor has methods only.

        Args:
            attribute: Its name, such as `tenant_to_char_count`.

        Returns:
            Its value.
        """
        return getattr(self, attribute)

    def setattr(self, attribute: str, value: Any) -> None:  # noqa: ANN401 - whatever is given
        """Set an attribute: an actor has methods only.

        Args:
            attribute: Its name.
            value: Its new value.
        """
        setattr(self, attribute, value)

    def _evict_until_stopped(self, threshold: int, target: int, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            for tenant, count in self.tenant_to_char_count.items():
                if count > threshold:
                    self.evict_tenant_by_lru(tenant, count - target)


def _plain(text: str) -> str:
    """Replace halves of surrogate pairs one for one: a str may hold them, UTF-8 may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
