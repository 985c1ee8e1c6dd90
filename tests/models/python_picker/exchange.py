"""One stream: the messages about one HTTP request and its answer, in the order in which the proxy sends them.

There is no I/O here: a message goes in, replies come out. In "duplex" mode the proxy keeps nothing, so the headers wait
until the body is complete, and every byte is given back. In "buffered" mode the proxy keeps headers and body until it
has the reply to the body. In the others the headers leave before the body is there, and are all there is to pick by.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from cachelb.answers import PassingAnswer, retry_after
from tests.models.python_picker import replies
from tests.models.python_picker.messages import (
    BODY_BUFFERED,
    BODY_BUFFERED_PARTIAL,
    BODY_DUPLEX,
    BODY_NONE,
    BODY_STREAMED,
)
from tests.models.python_picker.picking import Pick, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from cachelb.decision import Decision
    from tests.models.python_picker.picking import Picker

_MODES = {"none": BODY_NONE, "streamed": BODY_STREAMED, "buffered": BODY_BUFFERED, "duplex": BODY_DUPLEX}
_WHOLE = frozenset({BODY_BUFFERED, BODY_BUFFERED_PARTIAL})

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET = "x-gateway-destination-endpoint-subset"
_SERVED = "x-gateway-destination-endpoint-served"
_CODE_DETAILS = "response.code_details"
_UPSTREAM = re.compile("upstream|response_timeout")
_CLIENT_ERROR, _SERVER_ERROR = 400, 500

# For the tests of the inference extension.
_TEST_SELECTION = "test-epp-endpoint-selection"
_TEST_SERVED = "x-conformance-test-served-endpoint"


class Exchange:
    """The state of one request, from its headers to the end of its answer."""

    def __init__(self, picker: Picker) -> None:
        self.over = False
        self._picker = picker
        self._request_mode = self._answer_mode = _MODES[picker.options.default_body_mode]
        self._first = True
        self._headers: dict[str, str] = {}
        self._subset: list[str] | None = None
        self._body = bytearray()
        self._held = self._kept = 0
        self._pick: Pick | None = None
        self._answer: PassingAnswer | None = None

    async def receive(self, message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        """Process a ProcessingRequest; `over` says whether the exchange ends with the replies."""
        if self._first:
            self._first = False
            if message.HasField("protocol_config"):
                self._request_mode = message.protocol_config.request_body_mode
                self._answer_mode = message.protocol_config.response_body_mode
        if message.observability_mode:
            # The proxy only lets us watch and has no use for a pick.
            self._picker.counts["observed"] += 1
            self.over = True
            return ()
        kind = message.WhichOneof("request")
        handle: Callable[[Any], Awaitable[Iterable[Any]]] | None = getattr(self, f"_on_{kind}", None)
        return () if handle is None else await handle(message)

    def deadline(self, began_s: float, now_s: float) -> float:
        """Return until when the next message has to come, by the clock of both times."""
        options = self._picker.options
        if self._pick is None:
            return began_s + options.body_timeout_s
        end_s = began_s + options.stream_timeout_s
        # An answer whose body passes elsewhere is silent until it ends.
        is_silent = self._answer is not None and self._answer_mode == BODY_NONE
        return end_s if is_silent else min(end_s, now_s + options.idle_timeout_s)

    def expire(self) -> Iterable[Any]:
        """Handle a message that did not come in time: answer the client if it has not sent the whole request."""
        self.over = True
        if self._pick is None:
            return self._refuse(self._picker.refuse(408, "slow-body", "the request took too long to arrive"))
        self._picker.counts["expired"] += 1
        return ()

    def close(self) -> None:
        """Handle the end of the messages, which releases any booking."""
        self.over = True
        self._drop_body()
        if self._pick is None:
            return
        self._forget_prompt(self._pick)
        if self._answer is not None and self._answer_mode == BODY_NONE:
            # The body of the answer passes elsewhere: this is the only sign of its end.
            self._pick.decision.on_complete()
        else:
            self._pick.decision.cancel()

    # --- the request ---

    async def _on_request_headers(self, message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        self._headers = _read_headers(message.request_headers.headers)
        self._subset = _read_subset(message)
        if self._picker.options.conformance and _TEST_SELECTION in self._headers:
            self._subset = _split(self._headers[_TEST_SELECTION])
        # An upgraded request becomes a connection, whose body ends with it.
        if message.request_headers.end_of_stream or "upgrade" in self._headers:
            return await self._go("request_headers", None)
        if self._request_mode == BODY_DUPLEX:
            return ()
        if self._request_mode in _WHOLE:
            return (replies.headers_reply("request_headers"),)
        self._picker.counts["body-not-sent"] += 1
        return await self._go("request_headers", None)

    async def _on_request_body(self, message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        chunk, end = message.request_body.body, message.request_body.end_of_stream
        if self._pick is not None:
            if self._request_mode == BODY_DUPLEX:
                return replies.streamed_replies("request_body", chunk, end=end)
            return (replies.body_reply("request_body"),)
        picker, options = self._picker, self._picker.options
        self._body += chunk
        self._hold(len(chunk))
        refusal: tuple[int, str, str, float | None] | None = None
        if len(self._body) > options.max_body_bytes:
            refusal = 413, "too-large", f"the body is longer than {options.max_body_bytes} bytes", None
        elif picker.held > options.max_held_bytes:
            refusal = 503, "full", "too many requests arrive", 1.0
        if refusal is not None:
            if options.large_bodies == "refuse":
                return self._refuse(picker.refuse(*refusal))
            picker.counts[refusal[1]] += 1
            return await self._send(None, end=end)
        if end or self._request_mode in _WHOLE:
            return await self._send(bytes(self._body), end=end)
        return ()

    async def _on_request_trailers(self, _message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        sent = () if self._pick is not None else await self._send(bytes(self._body), end=False)
        return sent if self.over else chain(sent, (replies.trailers_reply("request_trailers"),))

    async def _send(self, read: bytes | None, *, end: bool) -> Iterable[Any]:
        """Pick by the readable part of the body, and release the held messages."""
        if self._request_mode != BODY_DUPLEX:
            self._drop_body()
            return await self._go("request_body", read)
        headers = await self._go("request_headers", read)
        if self._pick is None:
            return headers
        if self._pick.body is not None:
            self._replace_body(self._pick.body)
            self._pick.body = None
        return chain(headers, self._give_back(end=end))

    def _give_back(self, *, end: bool) -> Iterator[Any]:
        """Give the body back, of which every part counts as held until it is sent: a proxy may be slow to read."""
        while True:
            part = bytes(self._body[: replies.CHUNK_BYTES])
            del self._body[: len(part)]
            yield from replies.streamed_replies("request_body", part, end=end and not self._body)
            self._hold(-min(len(part), self._held))
            if not self._body:
                return

    async def _go(self, part: str, body: bytes | None) -> Iterable[Any]:
        if self._pick is not None:
            self._pick.decision.cancel()  # a proxy that sends two requests in one stream means the last
            self._forget_prompt(self._pick)
        found = await self._picker.pick(self._headers, body, self._subset)
        if isinstance(found, Refusal):
            return self._refuse(found)
        self._pick = found
        self._keep_prompt(found)
        reply = replies.picked_reply(part, found)
        if part == "request_body" and found.body is not None:
            self._hold(len(found.body))
            found.body = None
            return self._whole(reply)
        return (reply,)

    def _whole(self, reply: Any) -> Iterator[Any]:  # noqa: ANN401 - a message
        yield reply
        self._drop_body()

    def _refuse(self, refusal: Refusal) -> Iterable[Any]:
        self.over = True
        self._drop_body()
        return (replies.refusal_reply(refusal),)

    def _hold(self, count: int) -> None:
        self._held += count
        self._picker.held += count

    def _replace_body(self, body: bytes) -> None:
        self._drop_body()
        self._body += body
        self._hold(len(body))

    def _drop_body(self) -> None:
        self._hold(-self._held)
        self._body.clear()

    def _keep_prompt(self, pick: Pick) -> None:
        """Keep the prompt, if there is room, until the answer begins: another worker may serve the request."""
        size, picker = pick.prompt_bytes, self._picker
        if picker.held + size > picker.options.max_held_bytes // 2:
            pick.forget_prompt()
            return
        self._kept += size
        picker.held += size

    def _forget_prompt(self, pick: Pick) -> None:
        pick.forget_prompt()
        self._picker.held -= self._kept
        self._kept = 0

    # --- the answer ---

    async def _on_response_headers(self, message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        if self._pick is None:
            return (replies.headers_reply("response_headers"),)
        served = _text(message, "envoy.lb", _SERVED)
        if served is not None:
            self._picker.commit(self._pick, served)
        self._forget_prompt(self._pick)
        decision = self._pick.decision
        headers = _read_headers(message.response_headers.headers)
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._answer = PassingAnswer(decision, is_stream=is_stream)
        status = int(headers.get(":status", "200"))
        if status >= _CLIENT_ERROR:
            _report_error(decision, status, _code_details(message), retry_after(headers))
        elif message.response_headers.end_of_stream:
            decision.on_complete()
        shown = self._picker.exposed(decision.headers)
        if self._picker.options.conformance:
            shown[_TEST_SERVED] = served or "fail: missing destination endpoint served metadata"
        return (replies.headers_reply("response_headers", shown),)

    async def _on_response_body(self, message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        chunk, end = message.response_body.body, message.response_body.end_of_stream
        if self._answer is not None:
            self._answer.feed(chunk)
            if end:
                self._answer.end()
        if self._answer_mode == BODY_DUPLEX:
            return replies.streamed_replies("response_body", chunk, end=end)
        return (replies.body_reply("response_body"),)

    async def _on_response_trailers(self, _message: Any) -> Iterable[Any]:  # noqa: ANN401 - a message
        if self._answer is not None:
            self._answer.end()
        return (replies.trailers_reply("response_trailers"),)


def _read_headers(header_map: Any) -> dict[str, str]:  # noqa: ANN401 - a message
    """Read headers; of several with one name the first, as no caller reads lists."""
    headers: dict[str, str] = {}
    for header in header_map.headers:
        headers.setdefault(header.key.lower(), header.raw_value.decode("latin-1") or header.value)
    return headers


def _metadata(message: Any, namespace: str, name: str) -> Any:  # noqa: ANN401 - a message
    """Find a value in the metadata, None if it is not there; looking must not add it, as maps of protobuf do."""
    spaces = message.metadata_context.filter_metadata
    if namespace not in spaces or name not in spaces[namespace].fields:
        return None
    return spaces[namespace].fields[name]


def _text(message: Any, namespace: str, name: str) -> str | None:  # noqa: ANN401 - a message
    value = _metadata(message, namespace, name)
    return value.string_value if value is not None and value.string_value else None


def _read_subset(message: Any) -> list[str] | None:  # noqa: ANN401 - a message
    """Read the addresses to choose from: a list, or names in one string where a filter copied them from a header."""
    value = _metadata(message, _SUBSET_NAMESPACE, _SUBSET)
    if value is None:
        return None
    entries = [entry.string_value for entry in value.list_value.values] or [value.string_value]
    return [part for entry in entries for part in _split(entry)]


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]


def _code_details(message: Any) -> str | None:  # noqa: ANN401 - a message
    """Read the source of the answer, None if the proxy does not name it."""
    for attributes in message.attributes.values():
        if _CODE_DETAILS in attributes.fields:
            return str(attributes.fields[_CODE_DETAILS].string_value)
    return None


def _report_error(decision: Decision[Any], status: int, details: str | None, retry_after_s: float | None) -> None:
    """End a request that failed, and count the failure only if the worker caused it.

    The proxy answers by itself when it cannot reach a worker, and for many reasons that have nothing to do with one,
    such as limits of its own.
    """
    if details is None or details == "via_upstream":
        decision.on_error(status, retry_after_s=retry_after_s)
    elif status >= _SERVER_ERROR and _UPSTREAM.search(details) and "overflow" not in details:
        decision.on_error(502)
    else:
        decision.cancel()
