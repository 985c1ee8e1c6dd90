"""Which of the things a client sends is the key of its conversation."""

from __future__ import annotations

from email.message import Message
from types import MappingProxyType
from typing import Any

import pytest

from cachelb import session_key

HEADERS = ("x-semantic-cluster-id", "x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id")


@pytest.mark.parametrize("first", range(5), ids=HEADERS)
def test_the_first_header_of_the_list_wins_wherever_it_stands(first: int) -> None:
    headers = {name: f"value of {name}" for name in reversed(HEADERS[first:])}
    assert session_key(headers, {"user": "u"}) == f"value of {HEADERS[first]}"


BODY = {"session_params": {"session_id": "params"}, "user": "user", "session_id": "id", "user_id": "user-id"}


@pytest.mark.parametrize(
    ("gone", "key"),
    [
        ((), "params"),
        (("session_params",), "user"),
        (("session_params", "user"), "id"),
        (("session_params", "user", "session_id"), "user-id"),
        (("session_params", "user", "session_id", "user_id"), None),
    ],
    ids=str,
)
def test_the_first_field_of_the_body_wins_when_no_header_is_there(gone: tuple[str, ...], key: str | None) -> None:
    body = {name: value for name, value in BODY.items() if name not in gone}
    assert session_key({"accept": "*/*"}, body) == key
    assert session_key({"x-correlation-id": "header"}, body) == "header"


def test_ids_that_are_new_with_each_request_are_no_key() -> None:
    for request in ("1", "2"):
        assert session_key({"X-Request-Id": request, "X-Trace-Id": request, "traceparent": request}) is None
        assert session_key({"x-request-id": request}, {"request_id": request, "user": "ann"}) == "ann"


def test_an_extra_header_comes_after_the_known_ones_and_before_the_body() -> None:
    extra = ("X-Mine", "x-request-id")
    body = {"user": "ann"}
    assert session_key({"x-mine": "m", "x-session-id": "s"}, body, extra_headers=extra) == "s"
    assert session_key({"X-REQUEST-ID": "r", "x-mine": "m"}, body, extra_headers=extra) == "m"
    assert session_key({"x-request-id": "r"}, body, extra_headers=extra) == "r"
    assert session_key({}, body, extra_headers=extra) == "ann"


def message() -> Message:
    made = Message()
    made["X-Session-ID"] = "s"
    return made


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Session-ID": "s"},
        {b"x-session-id": b"s"},
        MappingProxyType({"x-SESSION-id": "s"}),
        [("X-Session-Id", "s")],
        [(b"X-Session-Id", b"s")],
        [["X-Session-Id", "s"]],
        iter([(b"host", b"h"), ("x-session-id", b"s")]),
        [("x-session-id", "s"), ("x-session-id", "t")],
        message(),
    ],
    ids=["dict", "bytes", "mapping", "pairs", "asgi", "lists", "iterator", "repeated", "message"],
)
def test_headers_come_in_any_case_and_form(headers: Any) -> None:
    assert session_key(headers) == "s"


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_blank_value_is_absent(blank: str) -> None:
    assert session_key({"x-session-id": blank, "x-user-id": "u"}) == "u"
    assert session_key([(b"x-session-id", blank.encode()), (b"X-Session-Id", b"s")]) == "s"
    assert session_key({"x-session-id": blank}, {"user": blank, "session_id": "id"}) == "id"
    assert session_key({}, {"session_params": {"session_id": blank}, "user": blank}) is None


def test_the_key_is_the_value_without_the_space_around_it() -> None:
    assert session_key({"x-session-id": " a b "}) == "a b"
    assert session_key([(b"x-session-id", b"caf\xe9")]) == session_key({"x-session-id": "café"}) == "café"


@pytest.mark.parametrize(
    ("value", "key"),
    [(7, "7"), (0, "0"), ("7", "7"), (True, None), (None, None), (1.5, None), ({"id": "x"}, None), (["x"], None)],
    ids=str,
)
def test_a_field_of_the_body_is_a_str_or_an_int(value: object, key: str | None) -> None:
    assert session_key({}, {"user": value}) == key
    assert session_key({}, {"session_params": {"session_id": value}}) == key
    assert session_key({}, {"session_params": value, "user_id": "next"}) == "next"


@pytest.mark.parametrize("body", [None, [], [{"user": "u"}], "text", 7, {}], ids=str)
def test_a_body_without_fields_has_no_key(body: object) -> None:
    assert session_key({}, body) is None
    assert session_key(None, body) is None


def test_half_of_a_surrogate_pair_never_gets_into_a_key() -> None:
    key = session_key({}, {"user": "ann \ud83d"})
    assert key is not None
    assert key.encode().startswith(b"ann ")


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        (("x-session-id: s",), {}, "headers must be a mapping or a list of pairs, got str"),
        ((7,), {}, "headers must be a mapping or a list of pairs, got int"),
        ((["x-session-id"],), {}, "headers must be pairs of name and value, got an item of type str"),
        (([("a", "b", "c")],), {}, "headers must be pairs of name and value, got an item of type tuple"),
        (({7: "s"},), {}, "a header's name must be str or bytes, got int"),
        (({"X-Session-Id": ["secret"]},), {}, "header x-session-id must be str or bytes, got list"),
        (({}, b'{"user": "secret"}'), {}, "body must be parsed JSON, got bytes"),
        (({},), {"extra_headers": "x-mine"}, "extra_headers must be several names"),
    ],
    ids=str,
)
def test_misuse_is_refused_without_showing_a_value(args: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text) as caught:
        session_key(*args, **options)
    assert "secret" not in str(caught.value)
