"""Switches by name: delays and losses of a router's signals, and incidents of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cachelb.errors import did_you_mean
from cachelb_lab.sim.simulation import Incident, Signals
from cachelb_lab.sim.workloads import Workload


@dataclass(frozen=True, slots=True)
class Realism:
    """One switch: everything else is as in an undisturbed run.

    Attributes:
        name: Its name.
        summary: Its effect, in one line.
        signals: The signals of gateways, and their delays.
        gateways: Routers before the fleet.
        sharing: Whether they share placements and bookings; if not, they are independent.
        incidents: Incidents of the first worker: the time, as a share of the time of the arrivals, and the kind.
        mfu: Factor on the arithmetic that the GPUs reach; capacity is that of the slower fleet.
        all_reduce: Whether devices that share a model lose time to each other; capacity is that of the slower fleet.
        burst: Requests that arrive at one instant, in the mean; 0 for arrivals as they are.

    Example:
        >>> REALISM["crash"].incidents_in(300.0)
        (Incident(at_s=100.0, worker=0, what='crash'), Incident(at_s=200.0, worker=0, what='join'))
    """

    name: str
    summary: str
    signals: Signals = field(default_factory=Signals)
    gateways: int = 1
    sharing: bool = False
    incidents: tuple[tuple[float, str], ...] = ()
    mfu: float = 1.0
    all_reduce: bool = False
    burst: int = 0

    def incidents_in(self, span_s: float) -> tuple[Incident, ...]:
        """Return the incidents of a run.

        Args:
            span_s: From the first to the last arrival.

        Returns:
            The incidents, by time.
        """
        return tuple(Incident(round(share * span_s, 6), 0, what) for share, what in self.incidents)

    def disturbed(self, workload: Workload) -> Workload:
        """Return the requests as they arrive under the switch.

        Args:
            workload: As they would otherwise.

        Returns:
            The requests with arrivals moved to the beginning of their burst.

        Example:
            >>> from cachelb_lab.sim import build
            >>> even = build("rag", seed=1, count=300)
            >>> len(set(REALISM["bursts"].disturbed(even).arrival_s.tolist())) <= 300 // 15 + 1
            True
        """
        if not self.burst:
            return workload
        arrival_s = workload.arrival_s
        period_s = float(np.nanmax(arrival_s)) * self.burst / max(1, int(np.isfinite(arrival_s).sum()))
        if not period_s:
            return workload
        return replace(workload, arrival_s=np.floor(arrival_s / period_s) * period_s)


_SWITCHES = (
    Realism("none", "load reports every 100 ms, KV events 5 ms late, nothing fails"),
    Realism("reports-late", "load reports 5 s late", Signals(report_lag_s=5.0)),
    Realism("reports-rare", "a load report every 10 s", Signals(scrape_interval_s=10.0)),
    Realism("no-reports", "no load reports", Signals(scrape_interval_s=float("inf"))),
    Realism("events-late", "KV events 0.5 s late", Signals(event_lag_s=0.5)),
    Realism("events-replayed", "5 % of the KV events lost, and replayed 50 ms later", Signals(event_loss=0.05)),
    Realism("events-lost", "5 % of the KV events lost for good", Signals(event_loss=0.05, replay_delay_s=None)),
    Realism("queue-unknown", "load reports without queued tokens, as vLLM's", Signals(report_queued_tokens=False)),
    Realism("cached-unknown", "answers without cached tokens", Signals(report_cached_tokens=False)),
    Realism(
        "first-tokens-late",
        "gateways have notice of first tokens, and of what follows, 0.25 s late",
        Signals(first_token_delay_s=0.25),
    ),
    Realism("slow-decisions", "a gateway is busy 1 ms with each decision", Signals(decision_s=0.001)),
    Realism("gateways-4", "four gateways that share nothing", gateways=4),
    Realism("gateways-4-sharing", "four gateways that share their placements, 5 ms late", gateways=4, sharing=True),
    Realism(
        "crash",
        "a worker crashes after a third of the run and is back, empty, after two",
        incidents=((1 / 3, "crash"), (2 / 3, "join")),
    ),
    Realism(
        "cold-worker",
        "a worker joins, empty, after a third of the run",
        # Drained before the first request, it holds nothing when it takes part.
        incidents=((0.0, "drain"), (1 / 3, "join")),
    ),
    Realism("bursts", "arrivals bunched, 15 at one instant in the mean", burst=15),
    Realism("slow-engines", "engines compute at half the speed of their data sheets", mfu=0.5),
    Realism(
        "tensor-parallel-loss",
        "devices that share a model wait for each other's sums; of no effect on fleets without :tpN",
        all_reduce=True,
    ),
)

REALISM: Mapping[str, Realism] = {switch.name: switch for switch in _SWITCHES}
"""Every switch by name; ``none`` is the undisturbed run."""


def find_realism(name: str) -> Realism:
    """Return a switch.

    Example:
        >>> find_realism("crashes")
        Traceback (most recent call last):
        ValueError: there is no realism 'crashes'; did you mean 'crash'?
    """
    if name not in REALISM:
        raise ValueError(f"there is no realism {name!r}{did_you_mean(name, REALISM)}")
    return REALISM[name]
