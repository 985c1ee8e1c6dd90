"""The workers' cached prefixes in a file, for the next start."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from typing import Any

from cachelb.common.arguments import number, require, seconds
from cachelb.common.runs import Runs
from cachelb.router import Router
from cachelb.router.shared_state import TTL_S
from cachelb.state.keeping import FileKeeper
from cachelb.types import Restored


@dataclass(frozen=True, slots=True)
class SnapshotFileStats:
    """Statistics of a snapshot file. Counters only rise.

    Attributes:
        start: How the router started: "warm" with the restored counts, or "cold" with the reason.
        restored: The restored counts, None after a cold start.
        written: Snapshots written.
        bytes: Length of the last of them.
        failures: Snapshots that could not be written; the first in a row is logged.
        error: Why the last one could not be written, empty if it was.

    Example:
        >>> from cachelb.state import SnapshotFile
        >>> SnapshotFile("router.snapshot").stats().start
        'cold: not attached yet'
    """

    start: str
    restored: Restored | None
    written: int
    bytes: int
    failures: int
    error: str


@dataclass(eq=False, repr=False)
class SnapshotFile:
    """Keeps the workers' cached prefixes in a file, so that the router is warm after a restart.

    Attach it before the first request: `attach` returns once the file was read. A new file is written every
    `interval_s` and when the router is closed, and then replaces the old one: a crash leaves one or the other. With a
    file that is missing, damaged, too old, or of a router with another `secret` or block size, the router starts cold;
    `stats` and the log have the reason. A full or read-only disk does not disturb routing either. A forked child leaves
    the file to its parent.

    Args:
        path: The file, one per router process. Only its owner may read it. A link is replaced by the file; a folder,
            pipe or device is left alone.
        interval_s: Seconds between two snapshots.
        max_age_s: Seconds after which a snapshot is not restored, since engines have other blocks by then.
        restore: Read the file at the start; False only writes.
        ttl_s: Seconds that restored prefixes are trusted unless a request finds them again.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> import tempfile
        >>> from cachelb import Router
        >>> from cachelb.state import SnapshotFile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for _ in range(2):
        ...         with Router(["gpu0"], secret="known to all gateways") as router:
        ...             file = SnapshotFile(f"{folder}/router.snapshot")
        ...             router.attach(file)
        ...             decision = router.select_worker(tokens=range(64))
        ...             print(file.stats().start[:4], decision.matched_tokens)
        ...             decision.on_complete()
        cold 0
        warm 48
    """

    path: str | PathLike[str]
    _: KW_ONLY
    interval_s: float = 60.0
    max_age_s: float = 3600.0
    restore: bool = True
    ttl_s: float = TTL_S

    def __post_init__(self) -> None:
        """Check the options."""
        found = os.fspath(self.path)
        if not isinstance(found, str):
            raise TypeError(f"path must be text or a path of text, got {type(found).__name__}")
        if "\0" in found or os.path.basename(found) in {"", ".", ".."}:  # noqa: PTH119 - a Path drops the slash at the end
            raise ValueError(f"path must name a file, got {found!r}")
        require("restore", self.restore, bool, "True or False")
        # The working directory may change.
        self._path = os.path.abspath(found)  # noqa: PTH100 - as above
        self.interval_s = seconds("interval_s", self.interval_s)
        self.max_age_s = number("max_age_s", self.max_age_s)
        self.ttl_s = number("ttl_s", self.ttl_s)
        self._runs: Runs[FileKeeper] = Runs()
        self._counted: FileKeeper | None = None
        self._start = "cold: not attached yet"
        self._restored: Restored | None = None

    def start(self, router: Router[Any], /) -> None:
        """Restore the file, and begin to write it.

        Args:
            router: The router to restore and to write.

        Raises:
            RuntimeError: It is attached already; one file serves one router.
            SnapshotError: The router has no `secret`, so it could never restore the file.
        """
        if self._runs.claim(self):  # a forked child: the file is the parent's
            return
        run = FileKeeper(router, self._path, self.interval_s)
        self._start, self._restored = "cold: it was asked for", None
        if self.restore:
            self._start, self._restored = run.restore(self.max_age_s, self.ttl_s)
        self._runs.latest = self._counted = run
        run.start()

    def stop(self) -> None:
        """Write the file once more, and wait for that. Idempotent."""
        self._runs.stop()

    def stats(self) -> SnapshotFileStats:
        """Return the statistics of the file.

        Returns:
            Counters since it was attached; in a forked child, those of its parent until the fork.
        """
        counts = (0, 0, 0, "") if self._counted is None else self._counted.counts()
        return SnapshotFileStats(self._start, self._restored, *counts)
