"""Base of every source of workers: a thread, the guard, and the answers it gives to the router."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cachelb.common.arguments import number, require
from cachelb.common.runs import Runs
from cachelb.router import Router
from cachelb.types import DiscoveryStats
from cachelb_gateway.discovery.errors import DiscoveryError
from cachelb_gateway.discovery.run import DiscoveryRun, backoff_s

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_WAIT_S = 3600.0
_LEAST_PAUSE_S = 0.01


class Findings(Protocol):
    """Takes the answers of a `WorkerSource`.

    Example:
        >>> from cachelb_gateway.discovery import Findings
        >>> class Printer:
        ...     def found(self, workers):
        ...         print(sorted(workers))
        ...     def failed(self, reason): ...
        ...     def confirm_in_s(self): ...
        >>> findings: Findings = Printer()
        >>> findings.found(["http://gpu1:8000", "http://gpu0:8000"])
        ['http://gpu0:8000', 'http://gpu1:8000']
    """

    def found(self, workers: Iterable[str], /) -> None:
        """Take an answer.

        Args:
            workers: The URLs of all workers there are.

        Raises:
            DiscoveryError: They are too many, or no text.
        """
        ...

    def failed(self, reason: str, /) -> None:
        """Count a failure; the workers of the last answer stay.

        Args:
            reason: A short text for statistics and log.
        """
        ...

    def confirm_in_s(self) -> float | None:
        """Return when another answer is due, as it may confirm that most workers are gone.

        Returns:
            Seconds from now, None if nothing waits for it.
        """
        ...


class WorkerSource(ABC):
    """A source that registers the workers it finds with a router. Subclasses implement `follow`.

    `Router.attach` starts it in a thread. Workers that are no longer found take no new requests and leave with their
    last one. A failure changes nothing. Several sources can be attached: a worker stays while one of them finds it.
    Workers that were registered by hand stay until they are removed by hand, and `Router.sync_workers` leaves those of
    sources alone. A worker that is removed by hand while a source finds it is back within a second; `set_ready` keeps
    it out. Detached, a source leaves its workers registered.

    If an answer lacks more than half of the workers, those dropped in the last `drop_wait_s` included, all are kept
    until an answer `drop_wait_s` later still lacks them.

    Args:
        name: Its name in statistics and log.
        drop_wait_s: Seconds that the loss of more than half of the workers waits to be confirmed, 3600 at most; 0
            accepts it at once.
        worker_options: Options of `Router.add_worker` for each new worker, such as `role` and `models`.

    Raises:
        TypeError: An argument has the wrong type, or there is no such option.
        ValueError: An argument is out of range.

    Example:
        >>> import asyncio
        >>> from cachelb import Router
        >>> from cachelb_gateway.discovery import WorkerSource
        >>> class Fixed(WorkerSource):
        ...     async def follow(self, findings):
        ...         findings.found(["http://gpu0:8000", "http://gpu1:8000"])
        ...         await asyncio.Event().wait()
        >>> with Router() as router:
        ...     router.attach(Fixed("fixed"))
        ...     decision = asyncio.run(router.select_worker_when_ready(timeout_s=60, tokens=range(64)))
        ...     decision.on_complete()
        >>> decision.worker in ("http://gpu0:8000", "http://gpu1:8000")
        True
    """

    def __init__(
        self, name: str, *, drop_wait_s: float = 10.0, worker_options: Mapping[str, Any] | None = None
    ) -> None:
        require("name", name, str, "text")
        self._name = name
        self._drop_wait_s = number("drop_wait_s", drop_wait_s, least=0.0, most=_LONGEST_WAIT_S)
        self._worker_options = _checked(worker_options)
        self._runs: Runs[DiscoveryRun] = Runs()

    @property
    def name(self) -> str:
        """Its name in statistics and log."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @abstractmethod
    async def follow(self, findings: Findings, /) -> None:
        """Look for workers until cancelled. Runs in an event loop of its own; an exception starts it again.

        Args:
            findings: Takes every answer, and every failure.
        """

    def start(self, router: Router[Any], /) -> None:
        """Start looking for workers.

        Args:
            router: The router to register them with. Its workers are texts, as URLs are.

        Raises:
            RuntimeError: The source is running already; one source serves one router.
            TypeError: The router's `key` function does not take a URL.
        """
        router.discovered.named(router, ["http://127.0.0.1:1"])
        self._runs.claim(self)
        run = DiscoveryRun(
            self,
            self._name,
            router,
            self.follow,
            drop_wait_s=self._drop_wait_s,
            worker_options=self._worker_options,
        )
        self._runs.latest = run
        run.start()

    def stop(self) -> None:
        """Stop looking; the workers stay registered. Idempotent."""
        self._runs.stop()

    def stats(self) -> DiscoveryStats:
        """Return the statistics.

        Returns:
            Counters since the start; all zero before it.
        """
        run = self._runs.latest
        return DiscoveryStats(source=self._name) if run is None else run.stats()


class PolledWorkers(WorkerSource):
    """A source that asks again and again. Subclasses implement `look`.

    Args:
        name: Its name in statistics and log.
        drop_wait_s: Seconds that the loss of more than half of the workers waits to be confirmed.
        worker_options: Options of `Router.add_worker` for each new worker.

    Example:
        >>> from cachelb_gateway.discovery import PolledWorkers
        >>> class Inventory(PolledWorkers):
        ...     async def look(self):
        ...         return ["http://gpu0:8000"], 5.0
        >>> Inventory("inventory").stats().answers  # router.attach(...) starts it
        0
    """

    most_backoff_s: ClassVar[float] = 30.0
    """The longest pause after failures; the first is half a second, and each is twice as long as the one before."""

    @abstractmethod
    async def look(self) -> tuple[Sequence[str], float]:
        """Ask for the workers once.

        Returns:
            The URLs of all workers there are, and the seconds until the next question.

        Raises:
            DiscoveryError: There is no usable answer.
            OSError: Likewise.
        """

    async def follow(self, findings: Findings, /) -> None:
        """Ask, report and wait, until cancelled.

        Args:
            findings: Takes every answer, and every failure.
        """
        failures = 0
        while True:
            try:
                workers, pause_s = await self.look()
                findings.found(workers)
                failures = 0
                due_s = findings.confirm_in_s()
                pause_s = pause_s if due_s is None else min(pause_s, due_s)
            except (DiscoveryError, OSError) as error:
                failures += 1
                findings.failed(str(error) if isinstance(error, DiscoveryError) else type(error).__name__)
                pause_s = backoff_s(failures, self.most_backoff_s)
            await asyncio.sleep(max(pause_s, _LEAST_PAUSE_S))


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copy options of workers; a router that is thrown away checks them."""
    require("worker_options", {} if options is None else options, Mapping, "a table of options")
    copied = dict(options or {})
    try:
        Router[str]().add_worker("http://127.0.0.1:1", **copied)
    except (TypeError, ValueError) as error:
        raise type(error)(f"worker_options: {error}") from error
    return copied
