"""An event loop in a thread of its own, for use from synchronous tests and from other loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Nothing that runs here waits for a client; a call that takes this long never returns.
_DEADLINE_S: Final = 60.0


class LoopThread:
    """Runs an event loop until it is stopped."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """Run a coroutine in the thread and wait for it."""
        assert self._loop is not None
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the fleet is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_DEADLINE_S)

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in the thread and wait for its result.

        In the thread itself, or once it has ended, the function is called at once.
        """
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return function(*args, **kwargs)

        async def called() -> _T:
            return function(*args, **kwargs)

        return self.run(called())

    def stop(self) -> None:
        """Cancel what still runs, close the loop and join the thread. Idempotent."""
        if not self._thread.is_alive():
            return
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_DEADLINE_S)

    def _run(self) -> None:
        asyncio.run(self._until_stopped())  # cancels leftover tasks on its way out

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()
