"""One worker of a fake fleet, as a test sees it."""

from __future__ import annotations

import copy

from cachelb_fakes.fleet.counts import Counts, SeenRequest
from cachelb_fakes.fleet.faults import Failing, Fault, FaultRates, Pull, PullFault
from cachelb_fakes.fleet.replica import Replica
from cachelb_fakes.loop_thread import LoopThread


class FakeWorker(Failing):
    """One worker; `FakeFleet` makes them. Its methods may be called from any thread.

    Attributes:
        name: "w0", "w1" and so on, in the order the workers were added; a name is never used twice.
        events: Publishes the changes of its prefix cache, and fails at it on demand; None without `kv_events`.
        peer_address: ``host:port`` from which other engines copy its blocks; empty without `peers`.
        url: ``http://127.0.0.1:port`` or ``unix:///path``, the same for the worker's whole life.

    Example:
        >>> from cachelb_fakes import FakeFleet
        >>> with FakeFleet(1) as fleet:
        ...     worker = fleet.workers[0]
        ...     worker.stop()
        ...     print(worker.name, worker.listening, worker.counts.started)
        w0 False 0
    """

    def __init__(self, replica: Replica, thread: LoopThread) -> None:
        self.name = replica.name
        self.url = replica.address.url
        self.events = replica.events
        self.peer_address = "" if replica.peer_address is None else replica.peer_address.url.removeprefix("http://")
        self._replica = replica
        self._thread = thread

    def __repr__(self) -> str:
        return f"FakeWorker({self.name!r}, {self.url!r})"

    @property
    def counts(self) -> Counts:
        """A copy of the worker's counts, consistent in itself."""
        return self._thread.call(self._copy_counts)

    @property
    def requests(self) -> list[SeenRequest]:
        """The last requests for completions that could be read, oldest first."""
        return self._thread.call(list, self._replica.seen)

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return self._replica.listening

    @property
    def cached_blocks(self) -> int:
        """Blocks its prefix cache holds."""
        return self._thread.call(len, self._replica.engine.cache)

    def release(self) -> None:
        """Release the stalled requests."""
        self._thread.call(self._replica.release)

    def heal(self) -> None:
        """Forget the faults planned here and the worker's own rates, let stalled requests go, listen again."""
        self._thread.wait(self._replica.heal())

    def fail_pulls(self, kind: PullFault, *, times: int | None = None, blocks: int = 0) -> None:
        """Plan a fault for the next copies that other engines make from its host memory.

        Args:
            kind: "miss" sends nothing; "evict" drops host memory before it is asked; "short" sends `blocks`; "stall"
                sends nothing until the other engine gives up.
            times: Copies it strikes; None for every one until `heal`.
            blocks: The blocks that "short" sends.

        Raises:
            ValueError: An argument is out of range.
        """
        self._thread.call(self._replica.engine.pull_faults.add, Pull(kind, blocks), times)

    def reset_cache(self) -> None:
        """Drop the prefix cache, as vLLM's `/reset_prefix_cache` does: its event comes with the next change."""
        self._thread.call(self._replica.engine.cache.clear)

    def stop(self) -> None:
        """Go down as a killed process does. Its address stays its own."""
        self._thread.wait(self._replica.stop())

    def start(self, *, restart: bool = False) -> None:
        """Come up again at the same address.

        Args:
            restart: Come up with an empty cache, and with metrics that start from 0. Otherwise both are kept, as if
                only the network had been away.
        """
        self._thread.wait(self._replica.start(restart=restart))

    def _copy_counts(self) -> Counts:
        counts = copy.copy(self._replica.counts)
        counts.faults = counts.faults.copy()
        return counts

    def _plan(self, fault: Fault, times: int | None) -> None:
        if fault.kind == "refuse" and times is None:
            self._thread.wait(self._replica.refuse())
        else:
            self._thread.call(self._replica.plan.add, fault, times)

    def _use_rates(self, rates: FaultRates) -> None:
        self._thread.call(setattr, self._replica, "rates", rates)
