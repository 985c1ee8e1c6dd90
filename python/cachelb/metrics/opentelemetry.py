"""Observable instruments of OpenTelemetry."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

from cachelb.common.extras import need
from cachelb.metrics.families import SELECTION, families
from cachelb.metrics.family import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from cachelb.metrics.families import Measured
    from cachelb.types import RouterStats


def instrument(router: Measured, meter: Meter) -> None:
    """Show a router through a meter. Needs the extra `cachelb[otel]`, which is the API; the SDK is your choice.

    Every instrument is observable: it reads the router when a reader collects. OpenTelemetry has no observable
    histogram, so the selection times are three counters: `cachelb.select_seconds.count`, `.sum`, and `.bucket` with the
    attribute `le`, cumulated as Prometheus does. The meter does not keep the router alive; once it is gone, nothing is
    shown.

    Args:
        router: The router to show.
        meter: Where the instruments belong, such as `opentelemetry.metrics.get_meter("cachelb")`.

    Raises:
        ModuleNotFoundError: The extra is not installed.

    Example:
        >>> import cachelb
        >>> from cachelb.metrics import instrument
        >>> from opentelemetry.metrics import get_meter
        >>> router = cachelb.Router(["gpu0"])
        >>> instrument(router, get_meter("cachelb"))
    """
    need("instrument()", "opentelemetry.metrics")
    snapshot = _Snapshot(router)
    for family in _families(router.stats()):
        create = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
        callback = partial(_observe, snapshot, family.name)
        create(f"cachelb.{family.name}", callbacks=[callback], unit=family.unit, description=family.help)


def _observe(snapshot: _Snapshot, name: str, _options: CallbackOptions) -> list[Observation]:
    from opentelemetry.metrics import Observation

    family = snapshot.family(name)
    if family is None:
        return []
    return [
        Observation(value, {label: text for label, text in zip(family.labels, labels, strict=True) if text})
        for labels, value in family.rows
    ]


class _Snapshot:
    """The statistics that the instruments of one collection share.

    Instruments are asked one by one. The first to ask a second time begins the next collection.
    """

    def __init__(self, router: Measured) -> None:
        self._router = weakref.ref(router)
        self._lock = threading.Lock()
        self._unread: dict[str, Family] = {}

    def family(self, name: str) -> Family | None:
        """Return a family as of this collection, None if the router is gone."""
        with self._lock:
            if name not in self._unread:
                router = self._router()
                if router is None:
                    return None
                self._unread = {family.name: family for family in _families(router.stats())}
            return self._unread.pop(name)


def _families(stats: RouterStats) -> Iterator[Family]:
    yield from families(stats)
    (name, text), histogram = SELECTION, stats.select_seconds
    counts = [sum(histogram.counts[: i + 1]) for i in range(len(histogram.counts))]
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = [((bound,), float(count)) for bound, count in zip(bounds, counts, strict=True)]
    yield Family(f"{name}.bucket", "counter", f"{text} By upper bound.", "{selection}", ("le",), buckets)
    yield Family(f"{name}.count", "counter", f"{text} How many.", "{selection}", (), [((), counts[-1])])
    yield Family(f"{name}.sum", "counter", f"{text} Sum.", "s", (), [((), histogram.sum)])
