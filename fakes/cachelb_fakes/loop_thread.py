"""An event loop in a thread of its own, for use from synchronous tests and from other loops alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Final, ParamSpec, TypeVar

from cachelb.common.loops import TaskThread

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Nothing that runs here waits for a client; a call that takes this long never returns.
_DEADLINE_S: Final = 60.0


class LoopThread(TaskThread):
    """Runs an event loop until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name, join_s=_DEADLINE_S, name_threads=1)
        self.start()

    def wait(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """Run a coroutine in the thread and wait for it."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the fleet is closed")
        return self.run(coroutine).result(_DEADLINE_S)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the thread, in its turn and without waiting for it."""
        self._loop.call_soon_threadsafe(function, *args)

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in the thread and wait for its result.

        In the thread itself, or once it has ended, the function is called at once.
        """
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return function(*args, **kwargs)

        async def called() -> _T:
            return function(*args, **kwargs)

        return self.wait(called())
