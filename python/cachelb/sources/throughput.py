"""Tokens per second, computed from the counters of successive metrics pages.

A rate between two polls 100 ms apart means little: engines count a whole prompt at its first token, or even at its
end. So the rates are averages over the last seconds **of work**; idle time is left out.

- Output: tokens over the time in which either page showed a request.
- Prompt: where the engine publishes prefill tokens and seconds of finished requests (vLLM, TensorRT-LLM), their
  quotient: the real rate of a request's prefill, however much decoding went on beside it. Elsewhere prompt
      tokens over working time, which on a worker that mostly decodes is the rate of arrival and thus a lower bound.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb.sources.prometheus_text import MetricsPage

_HORIZON_S = 10.0
"""Seconds of work after which an observation weighs 1/e."""

_LEAST_S = 0.5
"""Working time in seconds before a rate over wall time is published."""

_LEAST_PREFILL_S = 0.001
"""Prefill time in seconds, as engines measure it, before a rate over it is published."""


class _Average:
    """Sum of tokens over sum of seconds, both with exponential decay."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Count tokens that took so many seconds."""
        keep = math.exp(-seconds / _HORIZON_S)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    def rate(self, least_s: float) -> float | None:
        """Return tokens per second, above 0; None before `least_s` seconds or the first token."""
        if self._seconds < least_s:
            return None
        return self._tokens / self._seconds or None


class Throughput:
    r"""Rates of one worker, page after page.

    Example:
        >>> from cachelb.sources import read_metrics_page
        >>> from cachelb.sources.throughput import Throughput
        >>> rates = Throughput()
        >>> page = b"vllm:num_requests_running 1\nvllm:generation_tokens_total %d\n"
        >>> rates.observe(read_metrics_page(page % 1000), now_s=0.0)
        (None, None)
        >>> rates.observe(read_metrics_page(page % 1300), now_s=1.0)
        (None, 300.0)
    """

    def __init__(self) -> None:
        """Begin without a page."""
        self._before: tuple[float, MetricsPage] | None = None
        self._prefill = _Average()
        self._prompt = _Average()
        self._output = _Average()
        self._stated_gen_tps: float | None = None

    def observe(self, page: MetricsPage, *, now_s: float) -> tuple[float | None, float | None]:
        """Process the next page; return prompt and output tokens per second of work, None while unknown."""
        before, self._before = self._before, (now_s, page)
        if _is_working(page) and page.totals.gen_tps:
            self._stated_gen_tps = page.totals.gen_tps
        if before is not None:
            self._compare(before[1], page, now_s - before[0])
        prefill_tps = self._prefill.rate(_LEAST_PREFILL_S) or self._prompt.rate(_LEAST_S)
        return prefill_tps, self._stated_gen_tps or self._output.rate(_LEAST_S)

    def _compare(self, old: MetricsPage, new: MetricsPage, seconds: float) -> None:
        """Add the differences between two pages."""
        tokens = _grown(old.totals.prefill_tokens, new.totals.prefill_tokens)
        prefill_s = _grown(old.totals.prefill_seconds, new.totals.prefill_seconds)
        if tokens is not None and prefill_s:
            self._prefill.add(tokens, prefill_s)
        if seconds <= 0.0 or not (_is_working(old) or _is_working(new)):
            return
        for average, grown in (
            (self._prompt, _grown(old.totals.prompt_tokens, new.totals.prompt_tokens)),
            (self._output, _grown(old.totals.output_tokens, new.totals.output_tokens)),
        ):
            if grown is not None:
                average.add(grown, seconds)


def _is_working(page: MetricsPage) -> bool:
    """Return whether the engine has requests."""
    return bool(page.load.running or page.load.waiting)


def _grown(old: float | None, new: float | None) -> float | None:
    """Return the increase of a counter; None if it is unknown or fell, which is a restart."""
    return None if old is None or new is None or new < old else new - old
