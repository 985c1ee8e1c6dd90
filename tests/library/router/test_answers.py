"""Fields read from answers of engines, and headers of decisions that go to clients."""

from __future__ import annotations

import pytest

from cachelb import Router
from cachelb.answers import header_filter, read_usage


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b"", {}),
        (b'"usage":{"prompt_tokens":7,"completion_tokens":2}', {"prompt_tokens": 7, "output_tokens": 2}),
        (b'"usage": {"prompt_tokens_details": {"cached_tokens" : 48}}', {"cached_tokens": 48}),
        (b'"prompt_tokens_details":{"cached_tokens":null}', {}),
        (b'"usage":{"completion_tokens":1}} data: "usage":{"completion_tokens":2}', {"output_tokens": 2}),
        (rb'"text":"they say \"cached_tokens\": 99"', {}),
        (b'"cached_tokens": 9999999999999999999999999', {}),
        (
            b'"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,"total_tokens":11}',
            {"prompt_tokens": 9, "cached_tokens": 4, "output_tokens": 2},
        ),
        (
            b'"usage":{"input_tokens":9,"output_tokens":0} "usage":{"input_tokens":3,"cache_read_input_tokens":4,%b'
            % b'"cache_creation_input_tokens":2,"output_tokens":5}',
            {"prompt_tokens": 9, "cached_tokens": 4, "output_tokens": 5},
        ),
    ],
)
def test_usage_is_found_where_it_is_and_only_there(tail: bytes, expected: dict[str, int]) -> None:
    assert read_usage(tail) == expected


def test_headers_leave_only_by_name() -> None:
    headers = Router(["http://gpu0:8000"]).select_worker(by_load=True).headers
    assert header_filter()(headers) == {}
    assert header_filter(["X-Cachelb-Reason"])(headers) == {"x-cachelb-reason": "only-one"}
    assert header_filter("x-cachelb-worker")(headers) == {"x-cachelb-worker": "http://gpu0:8000"}
    with pytest.raises(ValueError, match="'x-data-parallel-rank'; there are x-cachelb-decision, "):
        header_filter(["x-data-parallel-rank"])
