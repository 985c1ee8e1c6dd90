"""Answers of LMCache's controller."""

from __future__ import annotations

import pytest

from cachelb.events.lmcache import LookupHit, lookup_request, parse_lookup


def test_each_instance_has_a_location_and_a_length() -> None:
    body = b'{"event_id": "L", "layout_info": {"a": ["LocalCPUBackend", 12], "b": ["LocalDiskBackend", 0]}}'
    assert parse_lookup(body) == {"a": LookupHit("LocalCPUBackend", 12), "b": LookupHit("LocalDiskBackend", 0)}
    assert lookup_request(iter([1, 2])) == b'{"tokens": [1, 2]}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"layout_info": []}',
        b'{"layout_info": {"a": ["x"]}}',
        b'{"layout_info": {"a": ["x", true]}}',
        b'{"layout_info": {"a": ["x", -1]}}',
        b'{"layout_info": {"a": [1, 1]}}',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"look-up|layout_info|Expecting"):
        parse_lookup(body)
