"""The life of one forwarded request: select, send, retry before the first byte, report, and end with its client."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from cachelb.answers import read_usage, retry_after
from cachelb.common.arguments import seconds, whole
from cachelb.errors import BodyError, CachelbError, NoWorkerAvailable, Overloaded
from cachelb.requests import RequestError
from cachelb.tracking import TrackedStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from cachelb.tracking import Tracker

__all__ = ["Answer", "ClientLeft", "Forward", "Refusal", "refusal"]

D = TypeVar("D", bound="Tracker")

_ERROR = 400
_RETRIED = frozenset({"failed", "backpressure"})


class ClientLeft(CachelbError):  # noqa: N818 - not an error of the caller
    """The client left before the answer was complete; the request was cancelled.

    Example:
        >>> from cachelb.forward import ClientLeft, refusal
        >>> refusal(ClientLeft()).status
        499
    """


class Refusal(NamedTuple):
    """An answer of the gateway itself, for a client: it names no worker.

    Example:
        >>> Refusal("no worker is available", 503, {"retry-after": "1"}).status
        503
    """

    text: str
    status: int
    headers: dict[str, str]


def refusal(error: BaseException) -> Refusal:
    """Return the answer to a request that `Router.forward` could not have answered.

    Args:
        error: The exception it raised, or one of `cachelb.requests.read_request`.

    Returns:
        The text, the status and the headers: 400, 408, 413 for the request itself, 429 of an `Admission`, 503 without
        a worker, 499 for a client that left, 504 for a timeout, else 502.

    Example:
        >>> import cachelb
        >>> from cachelb.forward import refusal
        >>> refusal(cachelb.NoWorkerAvailable({"http://gpu0:8000": "not ready"}))
        Refusal(text='no worker is available', status=503, headers={'retry-after': '1'})
    """
    match error:
        case RequestError() | BodyError():
            return Refusal(str(error), getattr(error, "status", 400), {})
        case Overloaded():
            return Refusal("too many requests wait", error.status, error.headers)
        case NoWorkerAvailable():
            return Refusal("no worker is available", 503, {"retry-after": str(math.ceil(error.retry_after_s))})
        case ClientLeft():
            return Refusal("the client left", 499, {})
    return Refusal("the worker did not answer", 504 if isinstance(error, TimeoutError) else 502, {})


class Answer(TrackedStream[bytes], Generic[D]):
    """The answer of a worker: iterating over its bytes reports them to the decision, as `Decision.track` describes.

    Attributes:
        decision: The decision, or the pair, of the worker that answers.
        response: The result of `send`.
        status: Status of the answer.
        headers: Headers of the answer.

    Example:
        >>> import asyncio
        >>> from types import SimpleNamespace
        >>> from cachelb import Router
        >>> from cachelb.forward import Answer
        >>> async def send(decision):
        ...     async def chunks():
        ...         yield b"Hello"
        ...
        ...     return SimpleNamespace(status=200, headers={}, content=SimpleNamespace(iter_any=chunks), close=list)
        >>> async def run(router):
        ...     answer: Answer = await router.forward(send, by_load=True)
        ...     return answer.decision.worker, [chunk async for chunk in answer]
        >>> asyncio.run(run(Router(["gpu0"])))
        ('gpu0', [b'Hello'])
    """

    def __init__(self, decision: D, body: _Body) -> None:
        super().__init__(decision, body, None, lambda tail: read_usage(b"".join(tail)))
        self.decision, self.response = decision, body.response
        self.status, self.headers = body.status, body.headers

    async def send_to(
        self,
        send: Callable[[dict[str, Any]], Awaitable[object]],
        headers: Iterable[tuple[bytes, bytes]],
        more: Mapping[str, str],
    ) -> None:
        """Send the answer to the client of an ASGI server: its status and its bytes as they come.

        The end, ``await send({"type": "http.response.body"})``, is left to the caller, outside the ``async with``:
        servers report a disconnect once an answer is complete.

        Args:
            send: Of the ASGI application.
            headers: Those of the worker that the client may have.
            more: Others, such as `cachelb.answers.header_filter` leaves of the decision.
        """
        added = [(name.encode(), value.encode()) for name, value in more.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": [*headers, *added]})
        async for chunk in self:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def aclose(self) -> None:
        """Cancel the request if it has not ended, and close the connection. Clients may stop after the closing mark."""
        if self._open and self._is_over():
            await self._finish(self._end)
        await super().aclose()


class Forward(Generic[D]):
    """A request on its way: ``await`` it for an `Answer` that ends by itself, or enter it with ``async with``.

    Example:
        >>> import asyncio
        >>> from types import SimpleNamespace
        >>> from cachelb import Router
        >>> from cachelb.forward import Forward
        >>> async def send(decision):
        ...     async def chunks():
        ...         yield b"Hello"
        ...
        ...     return SimpleNamespace(status=200, headers={}, content=SimpleNamespace(iter_any=chunks), close=list)
        >>> async def run(router):
        ...     async def select():
        ...         return router.select_pair(tokens=range(64))
        ...
        ...     async with Forward(select, lambda pair: send(pair.decode)) as answer:
        ...         return answer.decision.decode.worker, [chunk async for chunk in answer]
        >>> asyncio.run(run(Router(["gpu0"])))
        ('gpu0', [b'Hello'])
    """

    def __init__(
        self,
        select: Callable[[], Awaitable[D]],
        send: Callable[[D], Awaitable[Any]],
        *,
        attempts: int = 3,
        first_byte_timeout_s: float | None = None,
        left: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare a request.

        Args:
            select: Coroutine function that books a decision, or a pair of them.
            send: As of `Router.forward`.
            attempts: As of `Router.forward`.
            first_byte_timeout_s: As of `Router.forward`.
            left: As of `Router.forward`.
        """
        self._select, self._send = select, send
        self._attempts = whole("attempts", attempts, 1)
        if first_byte_timeout_s is not None:
            first_byte_timeout_s = seconds("first_byte_timeout_s", first_byte_timeout_s)
        self._timeout_s = first_byte_timeout_s
        self._client = _Client(left)

    def __await__(self) -> Generator[Any, Any, Answer[D]]:
        """Send the request, and return once the first byte is there; the answer ends the request."""
        return self._begin().__await__()

    async def _begin(self) -> Answer[D]:
        with self._client:
            return await self._forward()

    async def __aenter__(self) -> Answer[D]:
        """Send the request, and watch for the client to leave until the block ends."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._client)
            answer = await self._forward()
            stack.push_async_callback(answer.aclose)
            self._exits = stack.pop_all()
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Cancel the request, unless its answer is complete or failed, and close the connection to the worker."""
        return await self._exits.__aexit__(kind, error, traceback)

    async def _forward(self) -> Answer[D]:
        """Try workers until one of them begins to answer."""
        decision: Any = await self._select()
        left = self._attempts
        while True:
            left -= 1
            try:
                body = await self._attempt(decision)
            except BaseException as error:
                if decision.on_error(error) not in _RETRIED or not left:
                    raise
            else:
                if body.status < _ERROR:
                    return Answer(decision, body)
                outcome = decision.on_error(body.status, retry_after_s=retry_after(body.headers))
                if outcome not in _RETRIED or not left:
                    return Answer(decision, body)
                await body.aclose()
            decision = decision.retry()

    async def _attempt(self, decision: D) -> _Body:
        """Send to one worker, and wait for the first byte of an answer that is no error."""
        import asyncio

        body: _Body | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                body = _Body(await self._send(decision))
                if body.status < _ERROR:
                    await body.begin()
                    decision.on_first_token()
                return body
        except BaseException:
            if body is not None:
                await body.aclose()
            raise


class _Body:
    """The bytes of a response of httpx or aiohttp, or of an object with the members of either."""

    def __init__(self, response: Any) -> None:  # noqa: ANN401 - of any client
        self.response = response
        self.status: int = response.status_code if hasattr(response, "status_code") else response.status
        self.headers: Mapping[str, str] = response.headers
        raw = response.aiter_raw if hasattr(response, "aiter_raw") else response.content.iter_any
        self._chunks: AsyncIterator[bytes] = aiter(raw())
        self._first = b""

    async def begin(self) -> None:
        self._first = await anext(self._chunks, b"")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._chunks)

    async def aclose(self) -> None:
        if hasattr(self.response, "aclose"):
            await self.response.aclose()
        else:
            self.response.close()


class _Client:
    """Cancels the task of a request once its client has left, and raises `ClientLeft` in place of the cancellation."""

    def __init__(self, left: Callable[[], Awaitable[object]] | None) -> None:
        self._left = left
        self._has_left = False

    def __enter__(self) -> Self:
        if self._left is not None:
            import asyncio

            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - in a coroutine
            self._task, self._cancelling = task, task.cancelling()
            self._watcher = asyncio.ensure_future(self._left())
            self._watcher.add_done_callback(self._cancel)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._left is None:
            return
        self._watcher.remove_done_callback(self._cancel)
        self._watcher.cancel()
        if self._has_left and self._task.uncancel() <= self._cancelling and not isinstance(error, Exception):
            raise ClientLeft("the client left") from error

    def _cancel(self, watcher: asyncio.Future[object]) -> None:
        self._has_left = not watcher.cancelled()
        if self._has_left:
            watcher.exception()  # an error of the server's is a client that left, too
            self._task.cancel()
