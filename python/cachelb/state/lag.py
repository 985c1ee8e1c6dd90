"""Delay of messages without synchronised clocks."""

from __future__ import annotations

_WINDOW_S = 60.0


class Lag:
    """Delay of heartbeats relative to the fastest recent ones.

    A heartbeat has the time of its sender's clock. The offset to the local clock is unknown but constant: the smallest
    difference of the last one or two minutes counts as no delay. Older ones are forgotten, since clocks drift apart, by
    some milliseconds in that time.

    Example:
        >>> from cachelb.state.lag import Lag
        >>> lag = Lag()
        >>> for sent_s, received_s in [(0.0, 1000.0), (0.25, 1000.25), (0.5, 1002.5)]:
        ...     lag.add(sent_s, received_s)
        >>> lag.late_s
        2.0
    """

    def __init__(self) -> None:
        self.late_s = 0.0
        self._least = self._least_before = float("inf")
        self._turn_s = float("-inf")

    def add(self, sent_s: float, received_s: float) -> None:
        """Process a heartbeat; the times are of any monotonic clock of the sender, and of this process."""
        apart = received_s - sent_s
        if received_s >= self._turn_s:
            self._turn_s = received_s + _WINDOW_S
            self._least_before, self._least = self._least, apart
        self._least = min(self._least, apart)
        self.late_s = apart - min(self._least, self._least_before)
