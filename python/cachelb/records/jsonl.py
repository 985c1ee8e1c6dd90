"""Writes decision records to a file of bounded size, from a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from cachelb.common.arguments import seconds, whole
from cachelb.common.runs import Runs
from cachelb.records.schema import decision_line, marker_line

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from cachelb.types import DecisionRecord

R_co = TypeVar("R_co", covariant=True)

_log = logging.getLogger("cachelb.records")

_CHUNK = 128  # the router copies this many records under its lock, in well under 0.1 ms
_JOIN_S = 10.0


class RecordSource(Protocol):
    """The source of records; `Router.records` is one."""

    def since(self, cursor: int, limit: int = ..., /) -> tuple[list[DecisionRecord], int, int]:
        """Return the records after the cursor, the new cursor, and how many were overwritten meanwhile."""
        ...


class Recording(Protocol[R_co]):
    """An object with records; `cachelb.Router` is one."""

    @property
    def records(self) -> R_co:
        """The records of its finished requests."""
        ...


@dataclass(frozen=True, slots=True)
class RecordsStats:
    """Statistics of a `JsonlRecords` since its start.

    Attributes:
        written: Records written.
        lost: Records that the router had overwritten before they could be read.
        failed: Records of writes that failed; the first of them may be in the file all the same.
        errors: Attempts to write that failed.
        rotations: Times a new file was begun.
        last_error: The last error in words, kept after recovery; None if there was none.

    Example:
        >>> from cachelb.records import JsonlRecords
        >>> JsonlRecords("decisions.jsonl").stats().lost
        0
    """

    written: int = 0
    lost: int = 0
    failed: int = 0
    errors: int = 0
    rotations: int = 0
    last_error: str | None = None


class JsonlRecords:
    """Appends the record of every finished request to a file, as `Router.attach` starts it.

    It adds nothing to the selection path: a thread reads the requests finished since the last time. Records that it
    cannot read or write in time are counted, with their number in a line of the file. The file and the older
    ones kept beside it never hold more than `max_bytes` each.

    Example:
        >>> from cachelb.records import JsonlRecords
        >>> JsonlRecords("decisions-{pid}.jsonl", max_bytes=1 << 20, keep=3).stats().written
        0
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_bytes: int = 64 << 20, interval_s: float = 0.5, keep: int = 1
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            path: The file; it is appended to. `{pid}` in it becomes the process id: processes of one gateway need a
                file each.
            max_bytes: Size at which a new file is begun.
            interval_s: Seconds between two reads of the router, which remembers 4,096 requests.
            keep: Older files to keep, as `path.1` (the latest), `path.2` and so on.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        whole("max_bytes", max_bytes, 4096, 1 << 62)
        whole("keep", keep, 0, 1000)
        interval_s = seconds("interval_s", interval_s)
        self._path = os.fspath(path)
        self._max_bytes = max_bytes
        self._interval_s = interval_s
        self._keep = keep
        self._runs: Runs[_Run] = Runs()
        self._before: RecordsStats = RecordsStats()

    def start(self, router: Recording[RecordSource], /) -> None:
        """Begin to write.

        Args:
            router: The source of the records. Those it still remembers are written too.

        Raises:
            RuntimeError: It is running already.
        """
        self._runs.claim(self)
        path = Path(self._path.replace("{pid}", str(os.getpid())))
        self._runs.latest = _Run(router, _File(path, self._max_bytes, self._keep), self._interval_s)
        self._runs.latest.start()

    def flush(self) -> None:
        """Write finished requests now. Does nothing before the start or after the end."""
        if self._runs.latest is not None and self._runs.is_here():
            self._runs.latest.drain()

    def stop(self) -> None:
        """Write finished requests, close the file and wait for the thread. Idempotent."""
        run = self._runs.stop()
        if run is not None:
            self._before = run.stats()

    def stats(self) -> RecordsStats:
        """Return the statistics of writing.

        Returns:
            Counters since the last start, which the end keeps; all zero before it.
        """
        run = self._runs.latest
        return self._before if run is None else run.stats()


def write_all(write: Callable[[memoryview], int | None], data: bytes | bytearray) -> None:
    """Write all of it to a file without a buffer, which may take less at a time."""
    left = memoryview(data)
    while left:
        left = left[write(left) or 0 :]


class _File:
    """A file to append to, rotated when it is full. Errors leave it closed, to be opened next time."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: io.FileIO | None = None
        self._size = 0
        self.rotations = 0

    def append(self, lines: list[str]) -> None:
        """Write whole lines, in few writes; after an `OSError` some may be written, the last in part."""
        batch = bytearray()
        for line in lines:
            encoded = line.encode()
            if self._opened() + len(batch) + len(encoded) > self._max_bytes and self._size + len(batch) > 0:
                self._write(batch)
                self._rotate()
                batch = bytearray()
            batch += encoded
        self._write(batch)

    def close(self) -> None:
        """Close it, if it is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> int:
        """Open the file if need be; return its size."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            self._size = self._file.tell()
            if self._size > 0 and not self._ends_a_line():
                self._size += self._file.write(b"\n") or 0  # the last writer was cut off
        return self._size

    def _ends_a_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _write(self, data: bytearray) -> None:
        self._opened()
        assert self._file is not None  # noqa: S101 - opened a line above
        try:
            write_all(self._file.write, data)
        except OSError:
            self.close()
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        """Move the file to `.1`, that to `.2`, and so on; the oldest goes."""
        self.close()
        for number in range(self._keep, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        if self._keep == 0:
            self._path.unlink(missing_ok=True)
        self.rotations += 1


class _Run:
    """One life of the thread, from start to stop."""

    def __init__(self, router: Recording[RecordSource], file: _File, interval_s: float) -> None:
        self.pid = os.getpid()
        self._records = router.records
        self._file = file
        self._interval_s = interval_s
        _, self._cursor, _ = self._records.since(0, 0)  # earlier records count as missed only if they are still there
        self._ended = threading.Event()
        self._draining = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="cachelb-records", daemon=True)
        self._counts: Counter[str] = Counter()  # by the names of `RecordsStats`
        self._missing = 0
        self._last_error: str | None = None
        self._is_failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after it wrote the rest."""
        self._ended.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("the thread that writes records is blocked in a write and ends once the write returns")

    def stats(self) -> RecordsStats:
        """Return the counters."""
        return RecordsStats(rotations=self._file.rotations, last_error=self._last_error, **self._counts)

    def drain(self) -> None:
        """Write everything that finished so far."""
        with self._draining:
            while True:
                records, self._cursor, lost = self._records.since(self._cursor, _CHUNK)
                self._counts["lost"] += lost
                self._missing += lost
                self._write(records)
                if len(records) < _CHUNK:
                    return

    def _write(self, records: list[DecisionRecord]) -> None:
        lines = [decision_line(record) for record in records]
        if self._missing > 0:
            lines.insert(0, marker_line("lost", time_s=time.time(), records=self._missing))
        if not lines:
            return
        try:
            self._file.append(lines)
        except OSError as error:
            self._counts["failed"] += len(records)
            self._missing += len(records)
            reason = f"{type(error).__name__}: {error.strerror or 'unknown'}"
            self._fail(reason, f"records cannot be written and are lost until they can: {reason}")
            return
        self._counts["written"] += len(records)
        self._missing = 0
        if self._is_failing:
            self._is_failing = False
            _log.info("records can be written again")

    def _fail(self, reason: str, text: str, error: Exception | None = None) -> None:
        """Count a failure; log the first of a row."""
        self._counts["errors"] += 1
        self._last_error = reason
        if not self._is_failing:
            self._is_failing = True
            _log.error(text, exc_info=error)

    def _work(self) -> None:
        try:
            ended = False
            while not ended:
                ended = self._ended.wait(self._interval_s)
                self._drain_safely()
        finally:
            self._file.close()

    def _drain_safely(self) -> None:
        try:
            self.drain()
        except Exception as error:  # noqa: BLE001 - a router in trouble must not end the thread, and it is logged
            self._fail(type(error).__name__, "records cannot be read from the router", error)
