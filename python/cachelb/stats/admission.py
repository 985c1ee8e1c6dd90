"""Outcomes of requests at the admission queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb.common.measure import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class BandStats:
    """Outcomes of the requests of one priority at an `Admission`.

    Attributes:
        priority: The priority; beyond 16 of them, the requests of others are counted with the lowest.
        admitted: Requests sent to a worker as soon as they arrived.
        released: Requests sent to a worker after they waited.
        refused: Requests refused on arrival.
        expired: Requests refused because they waited longer than `max_wait_s`.
        displaced: Requests refused because the queue was full and one of a higher priority arrived.
        cancelled: Requests whose client left while they waited.
        queued: Requests that wait for a worker with room.
        waited_s: Total seconds that released requests waited.
    """

    priority: int
    admitted: int = field(metadata=counter("admission_requests", "{request}", "result", row="admitted"))
    released: int = field(metadata=counter("admission_requests", "{request}", "result", row="released"))
    refused: int = field(metadata=counter("admission_requests", "{request}", "result", row="refused"))
    expired: int = field(metadata=counter("admission_requests", "{request}", "result", row="expired"))
    displaced: int = field(metadata=counter("admission_requests", "{request}", "result", row="displaced"))
    cancelled: int = field(metadata=counter("admission_requests", "{request}", "result", row="cancelled"))
    queued: int = field(metadata=gauge("admission_queued", "{request}"))
    waited_s: float = field(metadata=counter("admission_waited_seconds", "s"))


def read_bands(rows: Iterable[dict[str, Any]]) -> tuple[BandStats, ...]:
    """Read native counts."""
    return tuple(BandStats(waited_s=row.pop("waited_ms") / 1000, **row) for row in rows)
