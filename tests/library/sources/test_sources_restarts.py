"""Restarts of engines on their metrics pages, and answers that show that a worker is there."""

from __future__ import annotations

import pytest

from cachelb.sources import read_metrics_page
from cachelb.sources.http import PageError
from cachelb.sources.restarts import Restarts

Page = tuple[int | None, int | None, int | None]
"""Start time, prompt tokens and output tokens."""


def seen(*pages: Page) -> list[int]:
    """Return which pages are those of a new process."""
    restarts, found = Restarts(), []
    names = ("process_start_time_seconds", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    for number, page in enumerate(pages):
        lines = [f"{name} {value}\n" for name, value in zip(names, page, strict=True) if value is not None]
        text = "vllm:num_requests_running 0\n" + "".join(lines)
        if restarts.observe(read_metrics_page(text.encode())):
            found.append(number)
    return found


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        pytest.param([(100, 5, 5), (100, 9, 9), (160, 0, 0), (160, 1, 1)], [2], id="a later start"),
        pytest.param([(100, 5, 5), (100, 1, 1), (100, 1, 1)], [], id="one process whose counters fell"),
        pytest.param([(100, 0, 0), (160, 0, 0)], [1], id="before the first request"),
        pytest.param([(100, 5, 5), (160, 900, 900)], [1], id="more tokens than before"),
        pytest.param([(100, 5, 5), (160, 0, 0), (100, 6, 6), (160, 1, 1)], [1], id="two processes in turn"),
        pytest.param([(None, 5, 5), (None, 0, 0), (None, 0, 0), (None, 1, 1)], [2], id="counters fell"),
        pytest.param([(None, 5, 5), (None, 9, 0), (None, 9, 0)], [2], id="one counter fell"),
        pytest.param([(None, 5, 5), (None, 0, 0), (None, 6, 6), (None, 1, 1)], [], id="two addresses in turn"),
        pytest.param([(None, 5, 5), (None, 9, 9), (None, 9, 9)], [], id="counters rise"),
        pytest.param([(None, 5, 5), (100, 5, 5), (None, 6, 6), (100, 7, 7)], [], id="a start time now and then"),
        pytest.param([(None, 5, 5), (None, None, None), (None, None, None), (None, 6, 6)], [], id="counters missing"),
        pytest.param([(None, 5, 5), (None, None, None), (None, 0, 0), (None, 0, 0)], [3], id="missing, then fell"),
        pytest.param([(None, None, None), (None, 3, 3), (None, 4, 4)], [], id="counters begin"),
    ],
)
def test_a_page_of_a_new_process_is_told_from_those_before(pages: list[Page], expected: list[int]) -> None:
    assert seen(*pages) == expected


@pytest.mark.parametrize("start", ["NaN", "-1", "x", "1e300", ""])
def test_a_start_time_that_is_none_is_as_good_as_missing(start: str) -> None:
    text = f"process_start_time_seconds {start}\nvllm:num_requests_running 1\n".encode()
    page = read_metrics_page(text)
    assert (page.start_s, page.engine, page.load.running) == (None, "vllm", 1)


def test_a_start_time_alone_is_no_page_of_an_engine() -> None:
    page = read_metrics_page(b"process_start_time_seconds 1.5\n")
    assert (page.start_s, page.engine) == (1.5, None)


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [("HTTP 404", True), ("HTTP 401", True), ("HTTP 302", True), ("not HTTP", True), ("page too large", True)]
    + [(error, False) for error in ("HTTP 500", "HTTP 503", "closed", "cut short", "bad request")],
)
def test_an_answer_of_a_server_shows_that_it_is_there(error: str, is_answer: bool) -> None:
    assert PageError(error).is_answer is is_answer
