"""A thread with an event loop, for sources that work beside the caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class LoopThread(ABC):
    """Runs `_main` in an event loop of its own, from `start` to `stop`, with so many threads to look names up."""

    def __init__(self, name: str, *, join_s: float, name_threads: int) -> None:
        self.pid = os.getpid()
        self._join_s, self._name_threads = join_s, name_threads
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    async def _main(self) -> None:
        """Work until cancelled."""

    def start(self) -> None:
        """Start the thread."""
        self._task = self._loop.create_task(self._main())
        self._thread.start()

    def _end(self) -> bool | None:
        """Cancel everything and wait for the thread; return whether it has ended, None if it is the calling one."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        if threading.current_thread() is self._thread:  # in a call of the user's, or in a finalizer
            return None
        self._thread.join(self._join_s)
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _work(self) -> None:
        assert self._task is not None  # noqa: S101 - set before the thread starts
        names = ThreadPoolExecutor(self._name_threads, thread_name_prefix=f"{self._thread.name}-names")
        self._loop.set_default_executor(names)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            names.shutdown(wait=False, cancel_futures=True)  # a hanging name server must not hold up `stop`
            self._loop.close()


class TaskThread(LoopThread):
    """Runs coroutines that other threads give it."""

    def run(self, coroutine: Coroutine[object, object, _T]) -> Future[_T]:
        """Begin with a coroutine; return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel what still runs, and wait for the thread. Idempotent."""
        self._end()

    async def _main(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
