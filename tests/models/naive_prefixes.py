"""The obvious radix tree: every prefix that a worker holds, with when it was used."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class NaivePrefixes:
    """Prefixes of strings by worker; what others said apart, which goes first."""

    max_units: int | None = None
    local: dict[str, dict[str, int]] = field(default_factory=dict)
    remote: dict[str, dict[str, int]] = field(default_factory=dict)
    clock: int = 0

    def held(self, worker: str) -> set[str]:
        """All prefixes that the worker holds."""
        return {*self.local.get(worker, ()), *self.remote.get(worker, ())}

    def size(self) -> int:
        """The sum over workers."""
        return sum(len(self.held(worker)) for worker in self.local)

    def insert(self, key: str, worker: str, *, remote: bool) -> int:
        """Touch the whole path, then evict what no longer fits."""
        before = len(self.held(worker))
        self.local.setdefault(worker, {})
        self.remote.setdefault(worker, {})
        key = key[: self.max_units]
        if not key or (remote and key in self.local[worker]):
            return 0
        self.clock += 1
        into = (self.remote if remote else self.local)[worker]
        into.update({key[:end]: self.clock for end in range(1, len(key) + 1)})
        self._prune(worker)
        new = len(self.held(worker)) - before
        if self.max_units is not None:
            self.evict(self.max_units)
        return new

    def overlaps(self, key: str) -> dict[str, int]:
        """Leading characters by worker."""
        found = {}
        for worker in self.local:
            held = self.held(worker)
            depth = next((end for end in range(len(key)) if key[: end + 1] not in held), len(key))
            if depth:
                found[worker] = depth
        return found

    def evict(self, max_units: int, worker: str | None = None) -> int:
        """Take the deepest of what was used longest ago, again and again."""
        workers = list(self.local) if worker is None else [worker] if worker in self.local else []
        gone = 0
        for lanes in (self.remote, self.local):
            while sum(len(self.held(name)) for name in workers) > max_units:
                ages = [(age, -len(path), name, path) for name in workers for path, age in lanes[name].items()]
                if not ages:
                    break
                *_, name, path = min(ages)
                before = len(self.held(name))
                del lanes[name][path]
                self._prune(name)
                gone += before - len(self.held(name))
        return gone

    def remove(self, worker: str) -> int:
        """Forget a worker."""
        gone = len(self.held(worker))
        self.local.pop(worker, None)
        self.remote.pop(worker, None)
        return gone

    def _prune(self, worker: str) -> None:
        """What others said goes where nothing hangs on it and the worker holds it anyway."""
        remote, local = self.remote[worker], self.local[worker]
        for path in sorted(remote, key=len, reverse=True):
            leaf = not any(other != path and other.startswith(path) for other in remote)
            if leaf and path in local:
                del remote[path]
