"""Workers that sources of discovery registered with a router, by the sources that found each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachelb.router.router import Router
    from cachelb.types import DiscoveryStats


class Discovered:
    """The union of what several sources found. A worker that was registered without a source is of none of them.

    A source is any object, known by its identity.
    """

    def __init__(self) -> None:
        # Empty sets are of workers whose sources were stopped: another source that finds them adopts them.
        self._sources_of: dict[str, set[int]] = {}
        self._running: dict[int, Callable[[], DiscoveryStats]] = {}
        self._lock = threading.Lock()

    def join(self, source: object, stats: Callable[[], DiscoveryStats]) -> None:
        """Add a source that starts."""
        self._running[id(source)] = stats

    def leave(self, source: object) -> None:
        """Take out a source that stops; its workers stay registered."""
        with self._lock:
            self._running.pop(id(source), None)
            for sources in self._sources_of.values():
                sources.discard(id(source))

    def found(self) -> set[str]:
        """Return the keys of the workers that running sources find."""
        # Without the lock, under which a router's `key` function may be called.
        return {key for key, sources in list(self._sources_of.items()) if sources}

    def found_by(self, source: object) -> frozenset[str]:
        """Return the keys of the workers that a source finds."""
        return frozenset(key for key, sources in list(self._sources_of.items()) if id(source) in sources)

    def stats(self) -> tuple[DiscoveryStats, ...]:
        """Return the statistics of the running sources."""
        return tuple(stats() for stats in list(self._running.values()))

    def in_child(self) -> Discovered:
        """Return a copy for a forked child: the lock may be held by a thread that is not there."""
        copy = Discovered()
        copy._sources_of = {key: set(sources) for key, sources in self._sources_of.items()}
        return copy

    def named(self, router: Router[Any], workers: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return workers and their keys; a worker without one is refused."""
        return router._fleet.named(workers)

    def sync(self, router: Router[Any], source: object, found: Iterable[str], options: Mapping[str, Any]) -> None:
        """Register what a source finds, and drain what it no longer finds unless another source does.

        Workers that are registered already keep their options. Those registered without a source stay.
        """
        urls, keys = router._fleet.named(found)
        wanted = dict(zip(keys, urls, strict=True))
        with self._lock:
            registered = set(router.keys())
            for key, url in wanted.items():
                if key not in registered:
                    self._add(router, source, key, url, options)
                elif key in self._sources_of:
                    self._sources_of[key].add(id(source))
            for key, sources in list(self._sources_of.items()):
                if key in wanted:
                    continue
                if id(source) in sources:
                    sources.discard(id(source))
                    if not sources:
                        router.remove_worker(key, drain=True)
                        del self._sources_of[key]
                elif not sources and key not in registered:
                    del self._sources_of[key]

    def _add(self, router: Router[Any], source: object, key: str, url: str, options: Mapping[str, Any]) -> None:
        # Noted first: in the child of a fork in between, a worker without a source would stay for ever.
        self._sources_of.setdefault(key, set()).add(id(source))
        try:
            router.add_worker(url, **options)
        except BaseException:
            self._sources_of.pop(key, None)
            raise
