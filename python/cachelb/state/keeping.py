"""The thread that writes snapshots of a router to a file, and the reader of that file."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cachelb.errors import CachelbError

if TYPE_CHECKING:
    from typing import Any

    from cachelb.router import Router
    from cachelb.types import Restored

_log = logging.getLogger("cachelb.state")

_SUFFIX = ".tmp"
_LEFT_BEHIND_S = 3600.0
"""Age in seconds from which an unfinished file counts as abandoned."""


class FileKeeper:
    """Runs until stopped, then writes once more."""

    def __init__(self, router: Router[Any], path: str, interval_s: float) -> None:
        """Prepare; `start` begins. A router that could never restore its file is refused."""
        router.shared_state.check_secret()
        self.pid = os.getpid()
        self._router = router
        self._path = Path(path)
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cachelb-snapshots", daemon=True)
        self._written = self._bytes = self._failures = 0
        self._error = ""

    def start(self) -> None:
        """Begin to write."""
        self._clean()
        self._thread.start()

    def stop(self) -> None:
        """Write once more, and wait for that, unless called in the writing thread: a finalizer runs anywhere."""
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def counts(self) -> tuple[int, int, int, str]:
        """Snapshots written, bytes of the last, failures, and why the last failed."""
        return self._written, self._bytes, self._failures, self._error

    # --- reading ---

    def restore(self, max_age_s: float, ttl_s: float) -> tuple[str, Restored | None]:
        """Restore the file. Returns how the router starts, and what was restored."""
        try:
            data = self._read()
            age_s = max(0.0, time.time() - self._router.shared_state.taken_ms(data) / 1e3)
            if age_s > max_age_s:
                return self._cold(f"the snapshot is {age_s:.0f} s old, more than {max_age_s:g}"), None
            found = self._router.shared_state.restore(data, ttl_s=ttl_s)
        except FileNotFoundError:
            return self._cold("there is no snapshot yet"), None
        except (OSError, CachelbError, MemoryError) as error:
            return self._cold(str(error) or type(error).__name__), None
        start = f"warm: {found.blocks} blocks on {found.workers} workers, kept {found.age_s:.0f} s ago"
        _log.info("this router starts %s, in %s", start, self._path)
        return start, found

    def _read(self) -> bytes:
        # Opening must not block, as on a pipe.
        opened = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(f"{self._path} is no regular file")
            with open(opened, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(opened)

    def _cold(self, reason: str) -> str:
        _log.warning("this router starts cold: %s (%s)", reason, self._path)
        return f"cold: {reason}"

    # --- writing ---

    def _keep(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._try_to_write()
        self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._bytes = self.write()
        except Exception as error:  # noqa: BLE001 - neither routing nor writing may stop
            self._failures += 1
            if not self._error:
                _log.warning("no snapshot could be written to %s: %s", self._path, error)
            self._error = str(error) or type(error).__name__
        else:
            self._written += 1
            self._error = ""

    def write(self) -> int:
        """Replace the file by a new one. Returns its length."""
        self._refuse_what_is_no_file()
        # Readable by its owner only, with a unique name.
        opened, name = tempfile.mkstemp(_SUFFIX, self._prefix, self._path.parent)
        try:
            with open(opened, "wb") as file:  # noqa: PTH123 - a descriptor
                length = sum(map(file.write, self._router.shared_state.pieces()))
                file.flush()
                os.fsync(opened)
            os.replace(name, self._path)  # noqa: PTH105 - a name
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108 - a name
            raise
        self._sync_folder()
        return length

    def _refuse_what_is_no_file(self) -> None:
        """Refuse pipes, devices and folders: root could replace `/dev/null`."""
        with contextlib.suppress(FileNotFoundError):
            mode = self._path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise OSError(f"{self._path} is no regular file")

    def _sync_folder(self) -> None:
        """Make the rename durable, where folders can be synchronised."""
        with contextlib.suppress(OSError):
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def _prefix(self) -> str:
        return f".{self._path.name}."

    def _clean(self) -> None:
        """Remove unfinished files of a crash."""
        with contextlib.suppress(OSError):
            for left in self._path.parent.iterdir():
                ours = left.name.startswith(self._prefix) and left.name.endswith(_SUFFIX)
                if ours and time.time() - left.stat().st_mtime > _LEFT_BEHIND_S:
                    left.unlink()
