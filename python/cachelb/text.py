"""Chat messages as one stable text, for prompts without tokens.

The text is not a chat template, and no engine sees it. It has the properties that routing needs: different requests
have different texts, requests with a common prefix have texts with one, and client content cannot pass for structure.
It is a row of fields, each behind a mark: U+001F and a letter. In client content, U+001F is doubled::

    text    = { "t" tool as JSON } { message }          the quoted letters are marks
    message = "m" role ["n" name] ["i" tool_call_id] ["h" reasoning] ["r" reasoning_content]
              ["c" part { "p" part }] ["f" refusal] ["l" tool_calls as JSON] ["x" every other field as JSON]
    part    = text ["k" the part's other fields as JSON] | "o" a part that is no text, as JSON

JSON holds no raw control characters, so it cannot contain a mark. Texts have no length in front: two long system
prompts would differ from their first byte on, however much they share.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import accumulate
from json import JSONEncoder
from typing import Any

_MARK = "\x1f"
# Asking for dict and list first costs a quarter of asking for the abstract class alone.
_MAPPING = (dict, Mapping)
_LIST = (list, tuple)
# Fields of a message that are text, in the order of most chat templates, and their marks.
_FIELDS = (
    ("name", "\x1fn"),
    ("tool_call_id", "\x1fi"),
    ("reasoning", "\x1fh"),
    ("reasoning_content", "\x1fr"),
    ("content", "\x1fc"),
    ("refusal", "\x1ff"),
)
_TEXT_PARTS = ("text", "input_text", "output_text")

# Where APIs put the bytes of a recording or a file, without a "data:" in front.
_BYTES_FIELDS = frozenset({"data", "file_data"})
# Elsewhere, a longer ASCII string without a space is taken for bytes, unless it is a URL.
_LONGEST_WORD = 512

# Tells the provider what to cache. Clients move it to the newest message, so with it every turn would look new.
_CACHE_CONTROL = "cache_control"


def render_messages(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Render chat messages and tools as one text, always the same for the same request.

    Lists with the same tools that share their first messages share the text of these. The order of keys does not
    matter, a field that is None counts as absent, and a str as content equals one text part. Text is kept code point by
    code point. Of images, audio and files there is a digest, of remote ones the URL. `cache_control` is left out.

    Args:
        messages: Messages as in the OpenAI API: mappings with a `role`.
        tools: Tools as in the OpenAI API. They come first, as in chat templates. An empty list counts as absent.

    Returns:
        The text. Hash or compare it; its form may change between releases.

    Raises:
        TypeError: Messages or tools are not a list, an item is not a mapping, a role is not a str, or a value is of a
            type that JSON does not know. No error shows content.
        ValueError: A message has no role, or something contains itself or is nested too deeply.

    Example:
        >>> from cachelb.text import render_messages
        >>> hello = {"role": "user", "content": "Hello!"}
        >>> parts = {"content": [{"type": "text", "text": "Hello!"}], "role": "user"}
        >>> render_messages([hello]) == render_messages([parts])
        True
        >>> longer = render_messages([hello, {"role": "assistant", "content": "Hi, how can I help?"}])
        >>> longer.startswith(render_messages([hello]))
        True
    """
    out: list[str] = []
    if tools is not None:
        _render_each(tools, "tools", _render_tool, out)
    _render_each(messages, "messages", _render_message, out)
    return "".join(out)


def render_with_ends(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> tuple[str, list[int]]:
    """Render as `render_messages` does, and return the end of each message.

    Args:
        messages: Messages as in the OpenAI API.
        tools: Tools as in the OpenAI API.

    Returns:
        The text, and a position in characters for every message; the last is the length of the text.

    Raises:
        TypeError: As `render_messages`.
        ValueError: As `render_messages`.

    Example:
        >>> from cachelb.text import render_messages, render_with_ends
        >>> system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}
        >>> text, ends = render_with_ends([system, user])
        >>> text[: ends[0]] == render_messages([system]), ends[1] == len(text)
        (True, True)
    """
    out: list[str] = []
    if tools is not None:
        _render_each(tools, "tools", _render_tool, out)
    places: list[int] = []

    def place(message: Mapping[str, Any], out: list[str]) -> None:
        _render_message(message, out)
        places.append(len(out))

    _render_each(messages, "messages", place, out)
    lengths = [0, *accumulate(map(len, out))]
    return "".join(out), [lengths[place] for place in places]


def _render_each(
    items: object, name: str, render: Callable[[Mapping[str, Any], list[str]], None], out: list[str]
) -> None:
    """Render every item; `render` may raise an error whose text follows the name of the item."""
    if not isinstance(items, _LIST):
        raise TypeError(f"{name} must be a list of mappings, got {type(items).__name__}")
    for at, item in enumerate(items):
        if not isinstance(item, _MAPPING):
            raise TypeError(f"{name}[{at}] must be a mapping, got {type(item).__name__}")
        try:
            render(item, out)
        except RecursionError:
            raise ValueError(f"{name}[{at}] contains itself or is nested too deeply") from None
        except TypeError as error:
            raise TypeError(f"{name}[{at}] {error}") from None
        except ValueError as error:
            raise ValueError(f"{name}[{at}] {error}") from None


def _render_tool(tool: Mapping[str, Any], out: list[str]) -> None:
    out += ("\x1ft", _json(tool))


def _render_message(message: Mapping[str, Any], out: list[str]) -> None:
    out += ("\x1fm", _escape(_role(message)))
    done = {"role"}
    for field, mark in _FIELDS:
        value = message.get(field)
        if value is None:
            continue
        if isinstance(value, str):
            out += (mark, _escape(value))
        elif field == "content" and isinstance(value, _LIST):
            _render_parts(value, out)
        else:
            continue
        done.add(field)
    if len(done) == len(message):
        return
    calls = message.get("tool_calls")
    if isinstance(calls, _LIST):
        if calls:
            out += ("\x1fl", _json(calls))
        done.add("tool_calls")
    others = _others(message, done)
    if others:
        out += ("\x1fx", _json(others))


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if isinstance(role, str):
        return role
    if role is None:
        raise ValueError("has no role")
    raise TypeError(f"must have a str as role, got {type(role).__name__}")


def _render_parts(parts: Sequence[Any], out: list[str]) -> None:
    mark = "\x1fc"
    for part in parts or ("",):
        out.append(mark)
        mark = "\x1fp"
        if isinstance(part, str):
            out.append(_escape(part))
        elif not isinstance(part, _MAPPING):
            out += ("\x1fo", _json(_without_bytes(part)))
        elif part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            out.append(_escape(part["text"]))
            others = _others(part, ("type", "text"))
            if others:
                out += ("\x1fk", _json(others))
        else:
            out += ("\x1fo", _json(_others(part, ())))


def _others(fields: Mapping[str, Any], done: Container[str]) -> dict[str, object]:
    """Collect the fields that are not done."""
    return {
        key: _without_bytes(value, in_bytes_field=key in _BYTES_FIELDS)
        for key, value in fields.items()
        if value is not None and key not in done and key != _CACHE_CONTROL
    }


def _escape(text: str) -> str:
    return text.replace(_MARK, _MARK + _MARK) if _MARK in text else text


def _without_bytes(value: object, *, in_bytes_field: bool = False) -> object:
    """Replace every str that encodes bytes by a digest.

    The digest begins with "data:", and no str that begins so stays as it is, so that none can pass for a digest.
    """
    if isinstance(value, str):
        return _digest(value) if _is_bytes(value, in_bytes_field=in_bytes_field) else value
    if isinstance(value, _MAPPING):
        return {key: _without_bytes(item, in_bytes_field=key in _BYTES_FIELDS) for key, item in value.items()}
    if isinstance(value, _LIST):
        return [_without_bytes(item, in_bytes_field=in_bytes_field) for item in value]
    return value


def _is_bytes(text: str, *, in_bytes_field: bool) -> bool:
    start = text[:8].lower()
    if start.startswith("data:"):
        return True
    if start.startswith(("http://", "https://")):
        return False
    return in_bytes_field or (len(text) > _LONGEST_WORD and text.isascii() and " " not in text)


def _digest(text: str) -> str:
    # Imported here: loading OpenSSL takes longer than loading the rest of this package.
    from hashlib import sha256

    # JSON may carry half of a surrogate pair, which UTF-8 does not know.
    return "data:" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: object) -> dict[Any, Any]:
    """Convert what the encoder does not know."""
    if isinstance(value, _MAPPING):
        return dict(value)
    raise TypeError(f"it is {type(value).__name__}")


_encoder = JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_plain)


def _json(value: object) -> str:
    try:
        return _encoder.encode(value)
    except TypeError as error:
        raise TypeError(f"holds a value that JSON does not know: {error}") from None
    except ValueError:
        raise ValueError("contains itself or is nested too deeply") from None
