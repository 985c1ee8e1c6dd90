"""Restarts of an engine, seen on its metrics pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb.sources.prometheus_text import MetricsPage

_APART_S = 0.5
"""Start times that differ by less are those of one process."""

_PAGES = 2
"""Pages in a row with lower counters, as one address may lead to several processes in turn."""


class Restarts:
    r"""Recognises the pages of a new process.

    The start time of the process decides where the page has one, else counters that fell.

    Example:
        >>> from cachelb.sources import read_metrics_page
        >>> from cachelb.sources.restarts import Restarts
        >>> restarts = Restarts()
        >>> page = b"vllm:generation_tokens_total 1\nprocess_start_time_seconds %d\n"
        >>> [restarts.observe(read_metrics_page(page % start)) for start in (100, 100, 160, 160)]
        [False, False, True, False]
    """

    def __init__(self) -> None:
        """Begin without a page."""
        self._start_s: float | None = None
        self._totals: tuple[float | None, ...] = (None, None)
        self._lower = 0

    def observe(self, page: MetricsPage) -> bool:
        """Return whether the page is that of a new process."""
        start_s, before_s = page.start_s, self._start_s
        totals = (page.totals.prompt_tokens, page.totals.output_tokens)
        pairs = list(zip(totals, self._totals, strict=True))
        if start_s is not None and before_s is not None:
            self._start_s = max(start_s, before_s)
            is_new = start_s > before_s + _APART_S
        else:
            self._start_s = start_s if before_s is None else before_s
            fell = any(new is not None and old is not None and new < old for new, old in pairs)
            self._lower = self._lower + 1 if fell else 0
            if fell and self._lower < _PAGES:
                return False
            is_new = fell
        self._lower, self._totals = 0, tuple(old if new is None else new for new, old in pairs)
        return is_new
