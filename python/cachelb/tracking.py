"""Tracked answers: a stream that reports to its decision.

`Decision.track` and `Decision.track_sync` return these objects. They are not generators: a generator that was never
started runs none of its code when it is dropped, and the request would stay booked.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from cachelb.answers import Reporting, ResponseId

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from cachelb.answers import Usage
    from cachelb.types import Outcome

__all__ = ["TrackedIterator", "TrackedStream"]

_T = TypeVar("_T")

_COUNTS = ("cached_tokens", "prompt_tokens", "output_tokens")

_KEPT = 8
"""Items passed to `usage_of`. Engines send the usage last, or before a closing mark; a proxy may split it."""

_KEPT_LENGTH = 1 << 16
"""Bytes of each of them, from its end: the upstream sets the size of items."""

_DONE = b"data: [DONE]"

_log = logging.getLogger("cachelb.tracking")


class Tracker(Reporting, Protocol):
    """A decision, or a pair of them, that a stream reports to."""

    def on_error(self, error_or_status: BaseException | int) -> Outcome: ...
    def cancel(self) -> None: ...
    def _unread(self) -> None: ...


class _Tracked(Generic[_T]):
    """Turns items into calls on a decision."""

    _CLOSE: ClassVar[str]  # the method that closes the upstream
    _open = False

    def __init__(
        self,
        decision: Tracker,
        items: Any,  # noqa: ANN401 - an iterable, asynchronous or not
        tokens_of: Callable[[_T], int] | None = None,
        usage_of: Callable[[Sequence[_T]], Usage | None] | None = None,
    ) -> None:
        self._iterator = iterator = self._iterate(items)
        parts = (iterator,) if iterator is items else (iterator, items)
        self._upstream: tuple[Any, ...] = tuple(part for part in parts if callable(getattr(part, self._CLOSE, None)))
        self._decision = decision
        self._tokens_of = tokens_of
        self._usage_of = usage_of
        self._last: deque[_T] = deque(maxlen=_KEPT)
        self._is_unread = False
        self._response_id = ResponseId(decision)
        self._open = True

    def _iterate(self, items: Any) -> Any:  # noqa: ANN401 - as above
        raise NotImplementedError

    def _item(self, item: _T) -> None:
        if self._tokens_of is None:
            self._decision.on_tokens(1)
        else:
            self._count(item, self._tokens_of)
        if isinstance(item, bytes):
            self._response_id.feed(item)
        if self._usage_of is not None:
            kept = item
            if isinstance(item, (bytes, str)):
                kept = cast("_T", item[-_KEPT_LENGTH:])
            self._last.append(kept)

    def _is_over(self) -> bool:
        """Return whether the latest item ends with the closing mark of a stream."""
        last = self._last[-1] if self._last else None
        return isinstance(last, bytes) and last.rstrip().endswith(_DONE)

    def _end(self) -> None:
        usage: dict[str, Any] = {}
        try:
            if self._usage_of is not None:
                found: Any = self._usage_of(tuple(self._last)) or {}
                usage = {name: found[name] for name in _COUNTS if name in found}
        except Exception as error:  # noqa: BLE001 - the client has its answer by now, with or without counts
            self._note_unread(error)
        finally:
            self._decision.on_complete(**usage)

    def _count(self, item: _T, tokens_of: Callable[[_T], int]) -> None:
        """Count the tokens of an item; an uncountable item is one."""
        try:
            self._decision.on_tokens(tokens_of(item))
        except Exception as error:  # noqa: BLE001 - an odd item must not end the answer
            self._note_unread(error)
            self._decision.on_tokens(1)

    def _note_unread(self, error: Exception) -> None:
        self._decision._unread()  # noqa: SLF001 - a decision of this package
        if not self._is_unread:
            _log.warning("the token counts of an answer are unreadable: %s; logged once", type(error).__name__)
        self._is_unread = True


class TrackedStream(_Tracked[_T]):
    """An asynchronous iterator over the parts of an answer that reports to the decision.

    The first item is the first token, and every item adds its tokens; the end completes the request, an exception of
    the upstream goes to `on_error`, and any other end of the iteration cancels it: `aclose()`, a cancelled task, or
    dropping this object, started or not. The upstream is closed exactly once. Unreadable counts, because `tokens_of` or
    `usage_of` raises or returns none, are left out and counted (`RouterStats.unread_usage`).

    Example:
        >>> import asyncio
        >>> from cachelb import Router
        >>> router = Router(["gpu0"])
        >>> async def upstream():
        ...     yield b"Hello"
        ...     yield b" world"
        >>> async def answer():
        ...     return [part async for part in router.select_worker(by_load=True).track(upstream())]
        >>> asyncio.run(answer()), router.loads()
        ([b'Hello', b' world'], {'gpu0': 0})
    """

    _CLOSE = "aclose"
    _loop: asyncio.AbstractEventLoop | None = None

    def _iterate(self, items: AsyncIterable[_T]) -> AsyncIterator[_T]:
        # Here, so that importing cachelb does not import it.
        import asyncio

        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        return aiter(items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        if not self._open:
            raise StopAsyncIteration
        try:
            item: _T = await anext(self._iterator)
        except StopAsyncIteration:
            await self._finish(self._end)
            raise
        except BaseException as error:
            await self._finish(self._decision.on_error, error)
            raise
        try:
            self._item(item)
        except BaseException:
            await self._finish(self._decision.cancel)
            raise
        return item

    async def aclose(self) -> None:
        """Cancel the request if it has not ended, and close the upstream."""
        if self._open:
            await self._finish(self._decision.cancel)

    async def _finish(self, report: Callable[..., object], *arguments: BaseException) -> None:
        """Release the load first, without interruption, then close."""
        self._open = False
        try:
            report(*arguments)
        finally:
            await _aclose(self._upstream)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._open:
            return
        self._open = False
        self._decision.cancel()
        if not self._upstream:
            return
        if self._loop is None or self._loop.is_closed():
            _log.warning("a stream was dropped without its event loop: its upstream is left to the collector")
            return
        # A task of its own, even in the loop's thread: this call cannot wait.
        self._loop.call_soon_threadsafe(_close_later, self._loop, self._upstream)


class TrackedIterator(_Tracked[_T]):
    """As `TrackedStream`, for an iterator that is not asynchronous.

    Example:
        >>> from cachelb import Router
        >>> router = Router(["gpu0"])
        >>> list(router.select_worker(by_load=True).track_sync([b"Hello", b" world"])), router.loads()
        ([b'Hello', b' world'], {'gpu0': 0})
    """

    _CLOSE = "close"

    def _iterate(self, items: Iterable[_T]) -> Iterator[_T]:
        return iter(items)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        if not self._open:
            raise StopIteration
        try:
            item: _T = next(self._iterator)
        except StopIteration:
            self._finish(self._end)
            raise
        except BaseException as error:
            self._finish(self._decision.on_error, error)
            raise
        try:
            self._item(item)
        except BaseException:
            self._finish(self._decision.cancel)
            raise
        return item

    def close(self) -> None:
        """Cancel the request if it has not ended, and close the upstream."""
        if self._open:
            self._finish(self._decision.cancel)

    def _finish(self, report: Callable[..., object], *arguments: BaseException) -> None:
        self._open = False
        try:
            report(*arguments)
        finally:
            with ExitStack() as stack:
                for part in reversed(self._upstream):
                    stack.callback(part.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


async def _aclose(upstream: tuple[Any, ...]) -> None:
    async with AsyncExitStack() as stack:
        for part in reversed(upstream):
            stack.push_async_callback(part.aclose)


_closing: set[asyncio.Task[None]] = set()
"""A loop keeps only weak references to its tasks."""


def _close_later(loop: asyncio.AbstractEventLoop, upstream: tuple[Any, ...]) -> None:
    task = loop.create_task(_aclose(upstream))
    _closing.add(task)
    task.add_done_callback(_closing.discard)
