"""Load reports in response headers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelb
from cachelb.sources import LoadReport, OrcaError, parse_orca

REPORT = LoadReport(waiting=3, kv_usage=0.25)


NAME = "endpoint-load-metrics"
TEXT = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0"
COLONS = "TEXT kv_cache_usage_perc:0.25,num_requests_waiting:3,cpu_utilization:0.9"
JSON = 'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25, "x": 1}}'
OTHER_NAME = b'json {"named_metrics":{"num_requests_waiting":3,"kv_cache_utilization":0.25}}'


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({NAME: TEXT}, id="text"),
        pytest.param({NAME: COLONS}, id="text with colons and another field"),
        pytest.param({NAME.title(): JSON}, id="json"),
        pytest.param([(b"content-type", b"text/plain"), (NAME.upper().encode(), OTHER_NAME)], id="pairs of bytes"),
    ],
)
def test_report_is_read_in_every_format(headers: Any) -> None:
    assert parse_orca(headers) == REPORT


@pytest.mark.parametrize("headers", [{}, [], {"content-type": "text/plain"}, [(b"x", b"y")]])
def test_response_without_the_header_has_no_report(headers: Any) -> None:
    assert parse_orca(headers) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "it must begin with TEXT or JSON, got ''"),
        ("XML <a/>", "it must begin with TEXT or JSON, got 'XML'"),
        ("BIN QgU=", "it must begin with TEXT or JSON, got 'BIN'"),
        ("TEXT kv_cache_usage_perc", "expected name=number, got 'kv_cache_usage_perc'"),
        ("TEXT kv_cache_usage_perc=much", "expected name=number, got 'kv_cache_usage_perc=much'"),
        ("TEXT =1", "expected name=number, got '=1'"),
        ("JSON {", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("JSON [1]", "expected a JSON object, got list"),
        ('JSON {"named_metrics": 1}', "named_metrics must be a JSON object, got int"),
        ('JSON {"named_metrics": {"a": "1"}}', "'a' must be a number, got str"),
        ('JSON {"named_metrics": {"a": true}}', "'a' must be a number, got bool"),
        ("JSON " + "[" * 100_000, "not JSON: RecursionError"),
    ],
)
def test_malformed_header_is_an_error_that_says_what_is_wrong(value: str, message: str) -> None:
    with pytest.raises(OrcaError) as caught:
        parse_orca({"endpoint-load-metrics": value})
    assert str(caught.value).startswith("endpoint-load-metrics: ")
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, cachelb.CachelbError)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1", "1e300", "1" * 400])
def test_number_that_makes_no_sense_is_unknown(number: str) -> None:
    header = f'JSON {{"named_metrics": {{"num_requests_waiting": {number}, "kv_cache_usage_perc": 1.5}}}}'
    assert parse_orca({"endpoint-load-metrics": header}) == LoadReport(kv_usage=1.0)


def test_running_requests_are_taken_where_an_engine_gives_them() -> None:
    assert parse_orca({"endpoint-load-metrics": "TEXT num_requests_running=2"}) == LoadReport(running=2)


@given(
    st.tuples(
        st.sampled_from(["TEXT ", "JSON ", ""]),
        st.text(max_size=60),
    )
)
def test_any_header_is_a_report_or_an_orca_error(parts: tuple[str, str]) -> None:
    try:
        report = parse_orca({"endpoint-load-metrics": "".join(parts)})
    except OrcaError:
        return
    assert report is not None
    assert report.waiting is None or report.waiting >= 0
    assert report.kv_usage is None or 0.0 <= report.kv_usage <= 1.0
