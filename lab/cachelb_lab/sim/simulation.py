"""Running one policy over one workload and one fleet, in simulated time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb._core import SimWorkload
from cachelb._core import simulate as native_simulate
from cachelb.admission import AdmissionOptions
from cachelb.common.arguments import listed, number, whole
from cachelb.policies import PolicyLike
from cachelb.router import Router
from cachelb.router.flat import grouped
from cachelb_lab.sim.checks import check_fields, seconds_or_for_ever
from cachelb_lab.sim.contender import KV_EVENTS, ORACLE, PEERS, POOL_BLIND, PULL, Contender, admission_apart
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.gateway import Gateway, RouterGateway
from cachelb_lab.sim.result import SimResult
from cachelb_lab.sim.workloads import Workload

_LEAST_INTERVAL_S = 1e-4
_MOST_SAMPLES = 100_000_000

_SHARED_TTL_S, _SHARED_BYTES = 3600.0, 16 << 20  # the defaults of cachelb.state.ZmqMesh

_SIGNALS_OF = {
    "": {},
    KV_EVENTS: {"kv_events": True},
    POOL_BLIND: {"kv_events": True, "pool_known": False},
    ORACLE: {"kv_events": True, "oracle": True},
}
"""By the ending of a policy's name."""

MOST_GATEWAYS = 4_096
"""That share one fleet."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals that a gateway receives of its workers, and their delays.

    Attributes:
        kv_events: Whether engines publish KV events; None publishes them for policies that use them.
        pool_known: Whether gateways know the pool of a fleet: its workers, and from its events its blocks; and whether
            ``adaptive`` knows how long a worker loads from its own host memory.
        event_lag_s: From the end of a pass to the arrival of its events.
        event_loss: Share of their messages that is lost: of each worker the same ones by number,
            whatever the policy does. A gap is noticed when the next one arrives, and the router's own
            follower deals with it.
        replay_delay_s: Until an engine has sent again what was lost; None for one that cannot: what
            is known of the worker is doubtful then.
        scrape_interval_s: Between load reports.
        report_lag_s: From a scrape to its arrival.
        report_queued_tokens: Whether load reports have the queued prompt tokens, which vLLM's lack.
        report_cached_tokens: Whether answers report cached prompt tokens.
        net_delay_s: Network delay of requests to a worker, and of answers back.
        first_token_delay_s: From the arrival of a request's first token to the gateway's notice of it; it has notice of
            further tokens and of the end no earlier. Clients have their tokens on time.
        detection_delay_s: From a crash or a return to the gateway knowing of it.
        sharing_lag_s: From a decision, first token or end at one gateway to the others knowing of it, if they share;
            5 ms is the interval of `cachelb.state.ZmqMesh`.
        decision_s: That a gateway is busy with a decision. Its decisions are made one after the other, in the order of
            arrival, and each is booked when it is made.
        oracle: Everything at once and exact, for comparison.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, Signals, build, simulate
        >>> late = Signals(kv_events=True, event_lag_s=0.5)
        >>> run = simulate(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"), "kv-aware", signals=late)
        >>> run.policy
        'kv-aware'
    """

    kv_events: bool | None = None
    event_lag_s: float = 0.005
    event_loss: float = 0.0
    replay_delay_s: float | None = 0.05
    scrape_interval_s: float = 0.1
    report_lag_s: float = 0.0
    report_queued_tokens: bool = True
    report_cached_tokens: bool = True
    net_delay_s: float = 0.001
    first_token_delay_s: float = 0.0
    detection_delay_s: float = 1.0
    sharing_lag_s: float = 0.005
    decision_s: float = 0.0
    pool_known: bool = True
    oracle: bool = False

    def __post_init__(self) -> None:
        check_fields(self, but=("scrape_interval_s",))
        number("event_loss", self.event_loss, least=0.0, most=1.0)
        seconds_or_for_ever("scrape_interval_s", self.scrape_interval_s, least=_LEAST_INTERVAL_S)

    def native(self) -> dict[str, Any]:
        """Return the form the event loop takes."""
        exact = {"event_lag_s": 0.0, "event_loss": 0.0, "first_token_delay_s": 0.0}
        exact |= {"report_queued_tokens": True, "report_cached_tokens": True}
        given = asdict(self) | (exact if self.oracle else {})
        for name in ("kv_events", "pool_known", "sharing_lag_s"):  # not of the event loop
            del given[name]
        return {name.removesuffix("_s"): value for name, value in given.items()}


NO_REPORTS = Signals(scrape_interval_s=float("inf"))
"""For policies that use none: sessions of hours make millions of reports."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to a worker.

    Attributes:
        at_s: When.
        worker: Position of the worker.
        what: ``crash``, ``join`` or ``drain``.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, Incident, build, simulate
        >>> crash = Incident(0.5, 0, "crash")
        >>> run = simulate(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"), incidents=(crash,))
        >>> len(run.arrival_s)
        20
    """

    at_s: float
    worker: int
    what: str

    def __post_init__(self) -> None:
        check_fields(self)


def simulate(
    workload: Workload,
    fleet: FleetSpec,
    policy: PolicyLike = "adaptive",
    *,
    seed: int = 0,
    signals: Signals | None = None,
    gateways: int = 1,
    sharing: bool = False,
    retries: int = 1,
    incidents: tuple[Incident, ...] = (),
    pinned: Sequence[int] | npt.NDArray[np.int32] | None = None,
    until_s: float = float("inf"),
    sample_interval_s: float = 1.0,
    prepared: SimWorkload | None = None,
    gateway: Gateway | Router[str] | None = None,
    progress: Callable[[int], object] | None = None,
    **router_options: Any,  # noqa: ANN401 - the router's
) -> SimResult:
    """Run a workload through the real router over simulated engines.

    Args:
        workload: The requests.
        fleet: The workers; blocks as large as the workload's.
        policy: A name, or a policy. A name may have options, as in ``prefill-times-batch(crowding=1)``, and may end in
            ``+events``: engines publish KV events; in ``+events+pool-blind``: they do, and nothing is known of a pool
            that they share; or in ``+oracle``: caches and loads are known at once and exactly.
            ``learned`` trains in the call by default, so that runs repeat.
        seed: Seed of the routers, of the gateway of each request, and of losses.
        signals: The signals of gateways, and their delays.
        gateways: Routers before the fleet; requests come to them by session, or evenly.
        sharing: Whether they share placements and bookings, as `cachelb.state` does; if not, they are independent.
            A policy that keeps prompts in a tree shares its load alone.
        retries: Most retries of a failed request.
        incidents: Incidents of workers.
        pinned: The worker of each request, by position, -1 where the policy picks. Gateways find all others among the
            workers tried, and go along; a request that its worker failed is pinned no longer.
        until_s: End of the run, with or without requests left.
        sample_interval_s: Between samples of the workers.
        prepared: The workload in the engine model's form, from `prepare`, to share among runs.
        gateway: Routes instead of routers with ``policy``, which is then no more than its name; for one run. A
            `Router` of the fleet's ``names`` works too, for example one without the workers' capacities.
        progress: Called now and then with the number of requests that are over.
        **router_options: Options of `cachelb.Router` and of the policy; those of `cachelb.Admission`, with which
            requests are refused; and ``pull_min_tokens``, from which on a request takes cached blocks from another
            worker of the fleet, by llm-d's rule: the one with the longest prefix in host memory, as far as KV events
            show it, or of several one drawn by 1 / (1 + waiting requests). With ``peers_times`` routers name that
            worker themselves (`Router.peer_groups`), from the true times of copies, multiplied by it.

    Returns:
        The outcome of every request.

    Raises:
        ValueError: A setting is out of range, block sizes differ, ``gateway`` comes with several ``gateways`` or
            with ``sharing``, ``pull_min_tokens`` with a gateway or policy in Python, or ``pinned`` or bounds of
            admission with a fleet whose prompts are computed apart.
        TypeError: The policy does not take an option.

    Example:
        >>> from cachelb_lab.sim import simulate
        >>> from cachelb_lab.sim.fleet import FleetSpec
        >>> from cachelb_lab.sim.workloads import build
        >>> chats = build("chat", seed=1, count=200)
        >>> result = simulate(chats, FleetSpec.parse("4xa30"))
        >>> int(result.finished.sum()), bool(result.ttft_s.mean() < 1)
        (200, True)

        A fleet whose prompts are computed apart has a policy for either half:

        >>> split = FleetSpec.parse("1xh100@prefill+2xh100@decode")
        >>> apart = simulate(chats, split, prefill_policy="cache-aware", decode_policy="least-loaded")
        >>> sorted(set(apart.prefill_worker.tolist())), sorted(set(apart.worker.tolist()))
        ([0], [1, 2])
    """
    whole("seed", seed, 0, (1 << 64) - 1)
    whole("gateways", gateways, 1, MOST_GATEWAYS)
    whole("retries", retries, 0)
    seconds_or_for_ever("until_s", until_s, least=0.0)
    seconds_or_for_ever("sample_interval_s", sample_interval_s, least=_LEAST_INTERVAL_S)
    signals = signals or Signals()
    _check_length(workload, min(sample_interval_s, signals.scrape_interval_s), until_s)
    name = policy if isinstance(policy, str) else getattr(policy, "name", type(policy).__name__)
    if isinstance(policy, str):
        contender = Contender.parse(policy)
        policy, router_options = contender.name, {**router_options, **contender.options}
        signals = replace(signals, **_SIGNALS_OF[contender.ending])
    if policy == "learned":
        # A thread would train in real time, which runs otherwise than the simulated one.
        router_options = {"training": "inline", **router_options}
    if fleet.tier is not None and signals.pool_known and policy == "adaptive":
        router_options = {"load_ms_per_token": {"cpu": fleet.tier.load_ms_per_token}, **router_options}
    pull_min_tokens, peers_times = router_options.get(PULL), router_options.get(PEERS)
    router_options, bounds = admission_apart(router_options)
    halves = (router_options.get("prefill_policy"), router_options.get("decode_policy"))
    events = signals.kv_events if signals.kv_events is not None else "kv-aware" in (policy, *halves)

    def make(clock: Callable[[], float]) -> Router[str]:
        router = _router(policy, workload, fleet, clock=clock, seed=seed, replicas=gateways, **router_options)
        _register(router, fleet, workload.block_size if signals.pool_known else None, peers_times)
        return router

    if gateway is not None and (gateways != 1 or sharing):
        raise ValueError(
            f"a gateway of your own stands alone, got gateways={gateways}, sharing={sharing}; leave one of them out"
        )
    admission = _admission(bounds, fleet, gateways, is_routed=gateway is None) if bounds else None
    entrances: list[Any] = [gateway]
    if gateway is None:
        entrances = _entrances(make, workload, fleet, gateways, sharing=sharing, admission=admission)
    if pull_min_tokens is not None and not isinstance(entrances[0], Router):
        raise ValueError("pull_min_tokens is for routers with policies of this library; leave it out")
    options = {
        **signals.native(),
        PULL: pull_min_tokens,
        "loss_seed": seed,
        "retries": retries,
        "incidents": [(one.at_s, one.worker, one.what) for one in listed("incidents", incidents)],
        "pinned": _pinned(pinned, workload, fleet),
        "until": until_s,
        "sample_interval": sample_interval_s,
    }
    begin = time.perf_counter()
    columns = native_simulate(
        entrances,
        prepared or prepare(workload),
        [{**worker, "kv_events": events} for worker in fleet.native()],
        names=fleet.names,
        options=options,
        clients=_clients(workload, gateways, seed),
        sharing_lag=(0.0 if signals.oracle else signals.sharing_lag_s) if sharing else None,
        progress=progress,
        admission=admission,
    )
    run_s = time.perf_counter() - begin
    if not isinstance(entrances[0], Router):
        columns["reasons"] = list(entrances[0].reasons)
    return SimResult.from_native(
        columns,
        run_s=run_s,
        policy=name,
        seed=seed,
        workload=workload,
        fleet=fleet.describe(),
        workers=fleet.names,
    )


def _admission(options: Mapping[str, Any], fleet: FleetSpec, gateways: int, *, is_routed: bool) -> dict[str, Any]:
    """Check the options of an admission, and return its native settings."""
    if not is_routed:
        raise ValueError("bounds of admission are for routers, not for a gateway of your own; leave them out")
    if any(worker.role == "prefill" for worker in fleet):
        raise ValueError("admission is for fleets without workers for prefill alone")
    return AdmissionOptions(**options).native(gateways)


def _entrances(
    make: Callable[[Callable[[], float]], Router[str]],
    workload: Workload,
    fleet: FleetSpec,
    gateways: int,
    *,
    sharing: bool,
    admission: Mapping[str, Any] | None,
) -> list[Any]:
    """Return the routers of a run, those with a policy written in Python behind gateways."""
    routers = [make(lambda: 0.0) for _ in range(gateways)]
    entrances: list[Any] = list(routers)
    if not routers[0].policy.is_native:
        gateways_of = [RouterGateway(make, workload, fleet.names) for _ in routers]
        for one in gateways_of:
            one.admit(admission)
        entrances, routers = [*gateways_of], [one.router for one in gateways_of]
    if sharing:
        for origin, router in enumerate(routers, start=1):
            router.shared_state.begin(origin, _SHARED_TTL_S, _SHARED_BYTES)
    return entrances


def _pinned(
    pinned: Sequence[int] | npt.NDArray[np.int32] | None, workload: Workload, fleet: FleetSpec
) -> npt.NDArray[np.int32]:
    """Return the worker of each pinned request."""
    if pinned is None:
        return np.empty(0, dtype=np.int32)
    rows = np.asarray(pinned)
    if rows.size and rows.dtype.kind not in "iu":
        raise TypeError(f"pinned must be whole numbers, got {rows.dtype}")
    least, most = (int(rows.min()), int(rows.max())) if rows.size else (-1, -1)
    if rows.shape != (len(workload),) or least < -1 or most >= len(fleet):
        raise ValueError(
            f"pinned must be a position of one of the {len(fleet)} workers or -1 for each of the {len(workload)} "
            f"requests, got {rows.size} from {least} to {most}"
        )
    if any(worker.role == "prefill" for worker in fleet):
        raise ValueError("pinned is for fleets without workers for prefill alone")
    return rows.astype(np.int32)


def _check_length(workload: Workload, interval_s: float, until_s: float) -> None:
    """Refuse a run of more samples than fit in memory."""
    arrival_s = workload.arrival_s[workload.parent < 0]
    last_s = min(until_s, float(arrival_s.max(initial=0.0)))
    if last_s > interval_s * _MOST_SAMPLES:
        raise ValueError(
            f"requests arrive for {last_s:g} s, and the shorter of sample_interval_s and scrape_interval_s is"
            f" {interval_s:g}: {_MOST_SAMPLES} intervals at most; speed_up() the workload or lengthen both"
        )


def prepare(workload: Workload) -> SimWorkload:
    """Bring a workload into the engine model's form, which several runs can share.

    Args:
        workload: The requests.

    Returns:
        Its copy.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, prepare, simulate
        >>> workload, fleet = build("rag", seed=1, count=20), FleetSpec.parse("2xh100")
        >>> prepared = prepare(workload)
        >>> runs = [simulate(workload, fleet, policy, prepared=prepared) for policy in ("random", "cache-aware")]
        >>> [run.policy for run in runs]
        ['random', 'cache-aware']
    """
    return SimWorkload(workload.columns(), block_size=workload.block_size, sessions=workload.session)


def _router(
    policy: PolicyLike,
    workload: Workload,
    fleet: FleetSpec,
    **options: Any,  # noqa: ANN401 - the router's
) -> Router[str]:
    router: Router[str] = Router(**grouped({"policy": policy, "block_size": workload.block_size, **options}))
    for name, worker in zip(fleet.names, fleet, strict=True):
        router.add_worker(
            name,
            gpu=worker.gpu.name,
            kv_blocks=worker.kv_blocks,
            role=worker.role,
            cache_layout=worker.cache_layout,
        )
    return router


def _register(router: Router[str], fleet: FleetSpec, block_size: int | None, peers_times: float | None) -> None:
    """Register the pool that workers share, if its block size is known, and peers by the times of their copies."""
    if fleet.pool is not None and block_size is not None:
        pool, members = fleet.pool
        blocks, ms = pool.blocks(block_size), pool.load_ms_per_token
        router.shared_caches.add("pool", load_ms_per_token=ms, ttl_s=None, kv_blocks=blocks, workers=members)
    if fleet.peers is not None and peers_times is not None:
        ms, startup_ms = (peers_times * ms for ms in (fleet.peers.load_ms_per_token, fleet.peers.startup_ms))
        router.peer_groups.add("peers", load_ms_per_token=ms, startup_ms=startup_ms, port=1)


def _clients(workload: Workload, gateways: int, seed: int) -> list[int] | None:
    """Return the gateway of every request: one per session, or any."""
    if gateways == 1:
        return None
    drawn = np.random.default_rng([seed, gateways]).integers(gateways, size=len(workload))
    if workload.session is None:
        return [int(at) for at in drawn]
    of: dict[str, int] = {}
    rows = zip(workload.session, drawn, strict=True)
    return [of.setdefault(session, int(at)) if session else int(at) for session, at in rows]
