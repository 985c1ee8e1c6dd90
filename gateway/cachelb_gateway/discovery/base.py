"""Base of every source of workers: a thread, the guard, and the answers it gives to the router."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from cachelb.common.arguments import listed, number, require
from cachelb.common.loops import LoopThread
from cachelb.common.runs import Runs
from cachelb.router import Router
from cachelb.types import DiscoveryStats
from cachelb_gateway.discovery.addresses import DiscoveryError
from cachelb_gateway.discovery.guard import MOST_WORKERS, DropGuard

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("cachelb_gateway.discovery")

_KEEP_S: Final = 1.0
_JOIN_S: Final = 5.0
_NAME_THREADS: Final = 4
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_MOST_DOUBLINGS: Final = 10


def backoff_s(failures: int, longest_s: float = _LONGEST_BACKOFF_S) -> float:
    """Return how long to wait after failures in a row: longer each time, and never the same for two routers."""
    pause_s = _FIRST_BACKOFF_S * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(pause_s, longest_s) * random.uniform(0.5, 1.0)


class DiscoveryRun(LoopThread):
    """Passes the answers of a source through the guard to the router.

    The source looks for workers until it is cancelled; it calls `found` and `failed` in the thread of the run.
    """

    def __init__(
        self, source: WorkerSource, router: Router[Any], drop_wait_s: float, worker_options: Mapping[str, Any]
    ) -> None:
        super().__init__("cachelb-discovery", join_s=_JOIN_S, name_threads=_NAME_THREADS)
        self._source = source
        self._name = source.name
        self._router = router
        self._guard = DropGuard(drop_wait_s)
        self._options = worker_options
        # In the child of a fork, those that the parent found.
        self._guard.held = router.discovered.found_by(source)
        self._found: frozenset[str] = frozenset()
        self._urls: dict[str, str] = {}
        self._answers = self._failures = 0
        self._answered_s: float | None = None
        self._failing = ""
        self._is_refused = False

    def start(self) -> None:
        """Start the thread."""
        self._router.discovered.join(self._source, self.stats)
        super().start()

    def stop(self) -> None:
        """End the thread, and wait for it; the workers stay registered."""
        if self._end() is False:
            _log.warning("%s: its thread is blocked in a call and ends once the call returns", self._name)
        self._router.discovered.leave(self._source)

    def found(self, workers: Iterable[str]) -> None:
        """Take an answer: all workers there are."""
        try:
            urls, names = self._router.discovered.named(self._router, listed("workers", workers, MOST_WORKERS))
        except (TypeError, ValueError) as error:
            raise DiscoveryError(str(error)) from error
        now_s = time.monotonic()
        waits = self._guard.waits
        self._found = frozenset(names)
        held = self._guard.answer(self._found, now_s)
        known = {name: name for name in held} | self._urls | dict(zip(names, urls, strict=True))
        # In the order of the answer, which is the order of registration.
        order = dict.fromkeys(names) | known
        self._urls = {name: known[name] for name in order if name in held}
        if self._guard.waits != waits:
            text = "%s finds %d workers after %d; waiting for an answer that confirms it"
            _log.warning(text, self._name, len(self._found), len(held))
        self._sync()
        if self._failing:
            _log.info("%s answers again", self._name)
        # Last, so that statistics show an answer after its effect.
        self._failing = ""
        self._answered_s = now_s
        self._answers += 1

    def failed(self, reason: str) -> None:
        """Count a failure, and log it if it is another one than before. The workers stay."""
        if reason != self._failing:
            _log.warning("%s does not answer: %s; the workers of the last answer stay", self._name, reason)
        self._failing = reason
        self._failures += 1

    def confirm_in_s(self) -> float | None:
        """Return the seconds until another answer is due, as it can confirm a drop; None if nothing waits for it."""
        return self._guard.confirm_in_s(time.monotonic())

    def stats(self) -> DiscoveryStats:
        """Return the statistics; from any thread."""
        held, found, answered_s = self._guard.held, self._found, self._answered_s
        return DiscoveryStats(
            source=self._name,
            found=len(found),
            waiting=len(held - found),
            answers=self._answers,
            failures=self._failures,
            waits=self._guard.waits,
            age_s=None if answered_s is None else time.monotonic() - answered_s,
            failing=self._failing,
        )

    def _sync(self) -> None:
        """Register the workers. One that was removed by hand is registered again."""
        try:
            self._router.discovered.sync(self._router, self._source, self._urls.values(), self._options)
        except Exception:  # noqa: BLE001 - logged; a router in trouble must not end discovery
            if not self._is_refused:
                _log.exception("%s: the router refuses workers", self._name)
            self._is_refused = True
        else:
            self._is_refused = False

    async def _main(self) -> None:
        """Follow the source for ever; only an error of its code ends it, and it begins again."""
        keeping = asyncio.create_task(self._keep())
        failures = 0
        try:
            while True:
                answers = self._answers
                try:
                    await self._source.follow(self)
                    self.failed("follow() has returned")
                except Exception as error:  # noqa: BLE001 - logged; of a subclass of the user
                    if not failures:
                        _log.exception("%s has failed; it is started again", self._name)
                    self.failed(type(error).__name__)
                failures = 1 if self._answers > answers else failures + 1
                await asyncio.sleep(backoff_s(failures))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            if self._answers:
                self._sync()


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
        self._runs.latest = DiscoveryRun(self, router, self._drop_wait_s, self._worker_options)
        self._runs.latest.start()

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
