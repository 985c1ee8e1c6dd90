"""Captures of live traffic: records with the shape of each prompt, from which the traffic can be replayed.

A capture is a record file whose decisions have one field more, `capture`:

- `units` and `block_size`: the length of the prompt, and of its blocks, as the router counts them;
- `blocks`: chained hashes of its full blocks, 8 bytes each in Base64, under a random key that ends with the capture;
- `session`, `tenant`: names under the same key, None without one.

The first line, of kind `"capture"`, has the policy and the size of the workers' caches. The last one, of kind `"end"`,
has the reason of the end and the number of requests that are missing; a file without it was cut off.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cachelb.common.arguments import seconds as in_seconds
from cachelb.common.arguments import whole
from cachelb.common.runs import Runs
from cachelb.records.jsonl import RecordSource, write_all
from cachelb.records.schema import decision_line, marker_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb._core import RouterFleet
    from cachelb.records.jsonl import Recording

_log = logging.getLogger("cachelb.records")

_CHUNK: Final = 128
_INTERVAL_S: Final = 0.25
_JOIN_S: Final = 10.0
_WAITING_BYTES: Final = 32 << 20
_OPEN_BYTES: Final = 128 << 20
_ROW_BYTES: Final = 400  # of a prompt's fields but its blocks
_LEAST_BYTES: Final = 4096
_MOST_BLOCKS: Final = 90_000  # fit into the longest line that is read
MOST_SECONDS: Final = 86_400.0


class CaptureSource(RecordSource, Protocol):
    """The source of a capture; `Router.records` is one."""

    @property
    def policy(self) -> object:
        """The policy, whose text is its name."""
        ...

    @property
    def capture(self) -> RouterFleet:
        """The native capture of prompts."""
        ...


@dataclass(frozen=True, slots=True)
class CaptureStats:
    """Statistics of a capture.

    Attributes:
        requests: Requests written.
        open: Requests of the capture that have not finished.
        missed: Requests left out, as they came faster than they could be read.
        bytes: Bytes written.
        ended: "time", "full", "stopped" or "failed"; None while it runs.
        last_error: Error of the file, None if there was none.

    Example:
        >>> from cachelb.records import Capture
        >>> Capture("capture.jsonl").stats().ended is None
        True
    """

    requests: int = 0
    open: int = 0
    missed: int = 0
    bytes: int = 0
    ended: str | None = None
    last_error: str | None = None


class Tap:
    """The lines of one capture of a router, read a piece at a time by one thread.

    After `seconds` it takes no more requests, and ends when those it has are finished, or after `linger_s`.
    """

    def __init__(self, records: CaptureSource, seconds: float, linger_s: float, max_bytes: int) -> None:
        """Begin; a RuntimeError if another capture of the router runs."""
        self._records, self._capture = records, records.capture
        self._capture.start_capture(os.urandom(16), _WAITING_BYTES)
        _, self._cursor, _ = self._records.since(1 << 62, 0)
        self._begin_s = time.monotonic()
        self._seconds, self._linger_s, self._max_bytes = seconds, linger_s, max_bytes
        self._open: dict[str, dict[str, Any]] = {}
        self._open_bytes = 0
        self._is_taking = True
        self.stats = CaptureStats()

    def read(self, ending: str | None = None) -> bytes:
        """Return the lines since the last time, and the last one at the end: then `stats.ended` is set.

        With `ending`, it ends now for that reason, unless it has ended.
        """
        if self.stats.ended is not None:
            return b""
        lines = [] if self.stats.bytes else [self._marker("capture", seconds=self._seconds)]
        age_s = time.monotonic() - self._begin_s
        reason = self._drain(lines) or ending
        if self._is_taking and age_s >= self._seconds:
            self._is_taking = False
            self._capture.stop_capture()
        if reason is None and not self._is_taking and (not self._open or age_s >= self._seconds + self._linger_s):
            reason = "time"
        self.stats = replace(self.stats, open=len(self._open))
        if reason is not None:
            self._capture.stop_capture()
            missing = {"requests": self.stats.requests, "open": self.stats.open, "missed": self.stats.missed}
            lines.append(self._marker("end", reason=reason, **missing))
            self._open.clear()
        piece = "".join(lines).encode()
        self.stats = replace(self.stats, bytes=self.stats.bytes + len(piece), ended=reason)
        return piece

    def _drain(self, lines: list[str]) -> str | None:
        """Add a line for each finished request; return "full" where they are as long as they may be."""
        left = self._max_bytes - self.stats.bytes - sum(map(len, lines))
        count = missed = 0
        while True:
            # A record that is here was decided before the prompts are taken.
            records, self._cursor, lost = self._records.since(self._cursor, _CHUNK)
            missed += lost + self._take()
            for record in records:
                prompt = self._open.pop(record.id, None)
                if prompt is None and (record.part != "prefill" or not self._is_taking):
                    continue
                if prompt is not None:
                    self._open_bytes -= len(prompt["blocks"]) + _ROW_BYTES
                # The id of a decision is in logs and headers.
                line = decision_line(replace(record, id=str(self.stats.requests + count)), prompt)
                left -= len(line)
                if left < _LEAST_BYTES:
                    self._count(count, missed + 1)
                    return "full"
                lines.append(line)
                count += 1
            if len(records) < _CHUNK:
                self._count(count, missed)
                return None

    def _take(self) -> int:
        """Take the prompts of new decisions; return how many there was no room for."""
        rows, missed = self._capture.captured()
        for name, units, block_size, session, tenant, blocks in rows:
            encoded = base64.b64encode(blocks).decode()
            if self._open_bytes + len(encoded) > _OPEN_BYTES or len(blocks) > 8 * _MOST_BLOCKS:
                missed += 1
                continue
            self._open_bytes += len(encoded) + _ROW_BYTES
            keyed = {"session": session, "tenant": tenant}
            shown = {key: None if value is None else f"{value:016x}" for key, value in keyed.items()}
            self._open[name] = {"units": units, "block_size": block_size, **shown, "blocks": encoded}
        return missed

    def _count(self, requests: int, missed: int) -> None:
        stats = self.stats
        self.stats = replace(stats, requests=stats.requests + requests, missed=stats.missed + missed)

    def _marker(self, kind: str, **fields: object) -> str:
        """Return a line on the capture as a whole."""
        names = ("key", "dp_rank", "gpu", "kv_tokens")
        workers = [dict(zip(names, row, strict=True)) for row in self._capture.cache_sizes()]
        return marker_line(kind, time_s=time.time(), policy=str(self._records.policy), workers=workers, **fields)


class Capture:
    """Writes the requests of some minutes to a file, for `cachelb doctor analyze` and `cachelb replay`.

    `Router.attach` starts it. A thread writes what has finished; selections copy the hashes of their blocks, and do
    nothing more once it has ended. It holds neither prompts nor names of tenants and sessions (`cachelb.records`).

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cachelb import Router
        >>> from cachelb.records import Capture
        >>> with tempfile.TemporaryDirectory() as folder, Router(["gpu0"]) as router:
        ...     capture = Capture(f"{folder}/capture.jsonl", seconds=60)
        ...     router.attach(capture)
        ...     router.select_worker(tokens=range(64)).on_complete(cached_tokens=0, output_tokens=5)
        ...     router.detach(capture)
        ...     capture.stats().requests, capture.stats().ended, len(Path(folder, "capture.jsonl").read_bytes()) > 0
        (1, 'stopped', True)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seconds: float = 300.0,
        linger_s: float = 60.0,
        max_bytes: int = 256 << 20,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            path: The file; one that exists is replaced.
            seconds: For how long requests are taken.
            linger_s: For how long, after that, those that were taken may finish.
            max_bytes: Size at which it ends early.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        self._path = Path(path)
        self._seconds, self._linger_s, self._max_bytes = check_limits(seconds, linger_s, max_bytes)
        self._runs: Runs[_Run] = Runs()
        self._before = CaptureStats()

    def start(self, router: Recording[CaptureSource], /) -> None:
        """Begin. In a forked child, which has requests of its own, it does nothing: the file is the parent's.

        Args:
            router: The router.

        Raises:
            OSError: The file cannot be written.
            RuntimeError: This capture, or another one of the router, runs already.
        """
        if self._runs.claim(self):
            router.records.capture.stop_capture()
            return
        file = self._path.open("wb", buffering=0)
        try:
            tap = Tap(router.records, self._seconds, self._linger_s, self._max_bytes)
        except RuntimeError:
            file.close()
            raise
        self._runs.latest = _Run(tap, file.write, file.close)
        self._runs.latest.start()

    def stop(self) -> None:
        """Write the rest and end it, unless it has ended. Idempotent."""
        run = self._runs.stop()
        if run is not None:
            self._before = run.stats()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end.

        Args:
            timeout_s: Seconds to wait at most; None waits as long as it takes.

        Returns:
            Whether it has ended.
        """
        run = self._runs.latest
        return run is None or run.done.wait(timeout_s)

    def stats(self) -> CaptureStats:
        """Return its statistics, also after the end.

        Returns:
            Counters since the start.
        """
        run = self._runs.latest
        return self._before if run is None else run.stats()


def check_limits(seconds: float, linger_s: float, max_bytes: int) -> tuple[float, float, int]:
    """Check the bounds of a capture."""
    taken = in_seconds("seconds", seconds)
    if taken > MOST_SECONDS:
        raise ValueError(f"seconds must be {MOST_SECONDS:g} at most, got {taken:g}")
    return taken, in_seconds("linger_s", linger_s, least=0.0), whole("max_bytes", max_bytes, 4 * _LEAST_BYTES, 1 << 40)


class _Run:
    """The thread of a capture."""

    def __init__(self, tap: Tap, write: Callable[[memoryview], int | None], close: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self.done = threading.Event()
        self._tap, self._write, self._close = tap, write, close
        self._stopping = threading.Event()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._work, name="cachelb-capture", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the capture, and wait for that."""
        self._stopping.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("the thread of a capture is blocked in a write and ends once the write returns")

    def stats(self) -> CaptureStats:
        """Return the counters."""
        return replace(self._tap.stats, last_error=self._error)

    def _work(self) -> None:
        try:
            while self._tap.stats.ended is None:
                is_last = self._stopping.wait(_INTERVAL_S)
                write_all(self._write, self._tap.read("stopped" if is_last else None))
        except Exception as error:  # noqa: BLE001 - it must not end the thread silently, and it is logged
            self._error = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            _log.error("a capture ends, as its file cannot be written: %s", self._error)
            self._tap.read("failed")
        finally:
            self._close()
            self.done.set()
