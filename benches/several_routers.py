"""Several routers in processes of their own behind round robin: gain and cost of sharing, and the effect of faults.

    python -m benches.several_routers [--requests 2000] [--factor 20] [--counts 2,4,8] [--conversations 6000]
        [--out docs/maintainers/several-routers.md]

Replays Mooncake's conversation trace in compressed real time: requests stay open as long as a worker would need for
them, divided by the same factor, so as many are open at a time as were then. Every worker has a true LRU cache. The
load in each router's book is noted every 50 ms and compared with the true load. Then routers are killed, stopped
and cut off from each other under requests. Last, eight of them and 240 workers serve generated conversations, in
processes and in the simulator. Prints the page and writes it to --out.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.sharing_cost import server, traffic
from tests.herd.partition import behind_proxies
from tests.herd.processes import RouterProcess, herd, seconds_until_agreed
from tests.herd.replay import Played, play
from tests.herd.router_process import Notes, Spec
from tests.herd.served import Served
from tests.herd.traffic import Traffic
from tests.herd.true_workers import TrueWorkers

from cachelb_lab.sim import FleetSpec, Signals, simulate
from cachelb_lab.sim.workloads import Draft, Plan, Poisson
from cachelb_lab.sim.workloads.files.traces import read_mooncake

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from redis import Redis

    from cachelb_lab.sim import Workload

WORKERS = [f"gpu{at}" for at in range(8)]
MAX_BLOCKS = 50_000
FAULT_S = 5.0
TRACE = Path("traces/mooncake/conversation_trace.jsonl.xz")
COLUMNS = (
    "routers",
    "hits",
    "points",
    "known",
    "true within 0.2 s",
    "age p90 / p99",
    "bytes per block",
    "select p50 / most",
    "CPU",
)
LARGE = [f"gpu{at}" for at in range(240)]
ROUTERS = 8
TURNS = 6
FIRST_TOKENS, LATER_TOKENS, ANSWER_TOKENS = 2_000, 400, 200
THINK_S = 1.0
SIMULATED, SIMULATED_RATE = 12_000, 120.0
LARGE_COLUMNS = (
    "routers",
    "hits of follow-ups",
    "of what one view finds",
    "CoV in flight: now / mean",
    "CoV of tokens",
    "in flight",
    "bytes per block",
    "select p50 / most",
    "CPU",
)
HEAD, LARGE_HEAD = (Path(__file__).with_name(name) for name in ("several_routers.md", "several_routers_large.md"))


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of some values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def replay(
    requests: Workload, count: int, factor: float, *, shared: bool, specials: Mapping[int, Mapping[str, object]]
) -> Played:
    """Play the trace to some routers."""
    with herd(count, WORKERS, shared=shared, specials=specials, max_blocks_per_worker=MAX_BLOCKS) as routers:
        return play(requests, routers, TrueWorkers(WORKERS, max_blocks=MAX_BLOCKS), factor=factor)


def row(name: str, played: Played, one: Played) -> str:
    """Return a line of the first table."""
    within = played.views.share_within(0.2)
    ages = played.views.ages(exact=True)
    cells = [
        name,
        f"{played.hit_rate:.1%}",
        f"{100 * (played.hit_rate - one.hit_rate):+.1f}",
        f"{played.known_rate:.1%}",
        f"{within:.2%}",
        " / ".join(f"{1e3 * quantile(ages, share):.0f}" for share in (0.9, 0.99)) + " ms",
        f"{played.bytes_per_block:.1f}" if len(played.stats) > 1 else "",
        f"{1e6 * quantile(played.select_s, 0.5):.0f} us / {1e3 * max(played.select_s):.1f} ms",
        f"{played.cpu_share:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def longest_ms(routers: Sequence[RouterProcess]) -> float:
    """Return the longest selection of some routers."""
    notes: list[Notes] = [router.ask("report") for router in routers]
    return 1e3 * max(seconds for each in notes for seconds in each.select_s)


def busy(traffic: Traffic, routers: Sequence[RouterProcess], seconds: float) -> None:
    """Send requests for some time."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        traffic.route(routers, len(routers))
        traffic.end(routers, 1)
        time.sleep(0.05)


def killed() -> tuple[float, float, str]:
    """Kill one of three; the others go on, and it comes back at the same address."""
    with herd(3, WORKERS) as routers:
        traffic = Traffic(WORKERS)
        traffic.route(routers, 60)
        seconds_until_agreed(routers, traffic.loads())
        routers[0].kill()
        traffic.forget(routers[0])
        began_s = time.monotonic()
        living = routers[1:]
        gone_s = seconds_until_agreed(living, traffic.loads(), traffic.prompts)
        busy(traffic, living, FAULT_S - (time.monotonic() - began_s))
        with RouterProcess(Spec(**{**routers[0].spec.__dict__, "mesh": {"warm_start_s": 60.0}})) as reborn:
            reborn.answer()
            took_s = seconds_until_agreed([reborn, *living], traffic.loads(), traffic.prompts)
            return took_s, longest_ms(living), f"its load was gone {gone_s:.2f} s after it died"


def stopped() -> tuple[float, float, str]:
    """Stop one of three for a while."""
    with herd(3, WORKERS) as routers:
        traffic = Traffic(WORKERS)
        traffic.route(routers, 60)
        seconds_until_agreed(routers, traffic.loads())
        routers[2].stop()
        before = routers[0].ask("memory_mib")
        busy(traffic, routers[:2], FAULT_S)
        grown = routers[0].ask("memory_mib") - before
        routers[2].resume()
        took_s = seconds_until_agreed(routers, traffic.loads(), traffic.prompts)
        return took_s, longest_ms(routers[:2]), f"the others grew by {grown:.1f} MiB"


def parted(way: str) -> tuple[float, float, str]:
    """Part two from each other for a while."""
    with behind_proxies(WORKERS) as (routers, proxies):
        traffic = Traffic(WORKERS)
        traffic.route(routers, 60)
        seconds_until_agreed(routers, traffic.loads())
        for proxy in proxies:
            getattr(proxy, way)()
        busy(traffic, routers, FAULT_S)
        for proxy in proxies:
            proxy.heal()
        took_s = seconds_until_agreed(routers, traffic.loads(), traffic.prompts)
        stats = [router.ask("stats") for router in routers]
        return took_s, longest_ms(routers), f"{sum(each.snapshots for each in stats)} snapshots since the start"


FAULTS: dict[str, Callable[[], tuple[float, float, str]]] = {
    "killed, restarted at the same address": killed,
    "stopped (SIGSTOP, SIGCONT)": stopped,
    "connections cut and refused": lambda: parted("cut"),
    "connections silent": lambda: parted("hold"),
}


def conversations(count: int, rate: float) -> Workload:
    """Make conversations of equal lengths that have nothing in common; their turns come to any router."""
    draft = Draft("conversations", Plan(seed=1, count=count * TURNS, arrivals=Poisson(rate)))
    for _ in range(count):
        history = [draft.piece(FIRST_TOKENS)]
        answer = draft.piece(ANSWER_TOKENS)
        parent = draft.request(history, answer)
        for _ in range(TURNS - 1):
            history += [answer, draft.piece(LATER_TOKENS)]
            answer = draft.piece(ANSWER_TOKENS)
            parent = draft.request(history, answer, parent=parent, think_s=THINK_S)
    return draft.finish()


def large_row(name: str, served: Served, *, answers: bool, rest: Sequence[str] = ()) -> str:
    """Return a line of a table on the large fleet."""
    hits, even = served.follow_up_hits(), served.evenness()
    cells = [
        name,
        f"{hits:.1%}",
        f"{hits / served.findable(answers=answers):.1%}",
        f"{even.open_now:.3f} / {even.open_mean:.3f}",
        f"{even.tokens:.3f}",
        f"{served.per_worker:.1f}",
        *rest,
    ]
    return f"| {' | '.join(cells)} |"


def ideal_rows(served: Served, columns: int) -> list[str]:
    """Return how evenly routers that see all loads would place the same requests at the same times."""
    rows = []
    for how in ("in turn", "least loaded", "conversations stay"):
        even = served.dispatched(how).evenness()
        cells = [f"*{how}*", "", "", f"{even.open_now:.3f} / {even.open_mean:.3f}", f"{even.tokens:.3f}"]
        cells += [""] * (columns - len(cells))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def large_processes(requests: Workload, factor: float, *, way: str, redis: tuple[str, Redis] | None) -> Played:
    """Play conversations to eight routers before the large fleet."""
    url = redis[0] if redis is not None else None
    with herd(
        *(ROUTERS, LARGE),
        shared=way != "alone",
        redis=url,
        look_every_s=5.0,
        policy="adaptive",
        max_blocks_per_worker=MAX_BLOCKS,
    ) as routers:
        return play(requests, routers, TrueWorkers(LARGE, max_blocks=MAX_BLOCKS), factor=factor)


def large_fleet(count: int, rate: float, factor: float, say: Callable[[str], None]) -> None:
    """Measure processes before the large fleet."""
    requests = conversations(count, rate)
    say(
        f"Processes: {len(requests)} requests, {rate:g} conversations a second, {factor:g} times as fast; load average"
        f" {os.getloadavg()[0]:.1f} at the start."
    )
    for line in ("", f"| {' | '.join(LARGE_COLUMNS)} |", "|---" * len(LARGE_COLUMNS) + "|"):
        say(line)
    for way in ("mesh", "Redis", "alone"):
        with server() if way == "Redis" else nullcontext() as redis:
            before = traffic(redis[1]) if redis is not None else (0, 0)
            played = large_processes(requests, factor, way=way, redis=redis)
            size = f"{played.bytes_per_block:.1f}" if way == "mesh" else ""
            if redis is not None:
                # Every block was learned by all others.
                blocks = sum(each.blocks for each in played.stats) / (ROUTERS - 1)
                sent, read = (now - then for now, then in zip(traffic(redis[1]), before, strict=True))
                size = f"{sent / blocks:.1f} sent, {read / ROUTERS / blocks:.1f} read"
        times = f"{1e6 * quantile(played.select_s, 0.5):.0f} us / {1e3 * max(played.select_s):.1f} ms"
        say(large_row(f"8, {way}", played.served, answers=False, rest=(size, times, f"{played.cpu_share:.0%}")))
        if way == "mesh":
            for line in ideal_rows(played.served, len(LARGE_COLUMNS)):
                say(line)


def large_simulated(say: Callable[[str], None]) -> None:
    """Measure the same in the simulator."""
    requests = conversations(SIMULATED, SIMULATED_RATE)
    say("")
    say(f"Simulator: {len(requests)} requests, {SIMULATED_RATE:g} conversations a second, {len(LARGE)} L40S.")
    for line in ("", f"| {' | '.join(LARGE_COLUMNS[:6])} |", "|---" * 6 + "|"):
        say(line)
    ways: dict[str, dict[str, Any]] = {
        "1": {},
        "8, shared": {"gateways": ROUTERS, "sharing": True},
        **{
            f"8, shared, {1e3 * lag_s:g} ms": {
                "gateways": ROUTERS,
                "sharing": True,
                "signals": Signals(sharing_lag_s=lag_s),
            }
            for lag_s in (0.0025, 0.001, 0.0)
        },
        "8, alone": {"gateways": ROUTERS},
    }
    for name, options in ways.items():
        run = simulate(requests, FleetSpec.parse(f"{len(LARGE)}xl40s"), **options)
        served = Served.simulated(run)
        say(large_row(name, served, answers=True))
        if name == "8, shared":
            for line in ideal_rows(served, 6):
                say(line)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--factor", type=float, default=20.0, help="how much faster than it was")
    parser.add_argument("--counts", default="2,4,8", help="numbers of routers")
    parser.add_argument("--conversations", type=int, default=6000, help="of the large fleet in processes")
    parser.add_argument("--rate", type=float, default=75.0, help="of these, a second")
    parser.add_argument("--large-factor", type=float, default=0.7, help="how much faster they are played")
    parser.add_argument("--large-only", action="store_true", help="print the large fleet's part alone")
    parser.add_argument("--out", type=Path, help="file that the page is written to")
    options = parser.parse_args()
    data = Path(os.environ.get("CACHELB_DATA", Path(__file__).parents[2] / "shared"))
    # The timestamps of the trace come in batches of three seconds.
    requests = read_mooncake(data / TRACE, limit=options.requests).jitter(3.0, seed=1)
    lines = [HEAD.read_text().rstrip(), ""]

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    if options.large_only:
        large_fleet(options.conversations, options.rate, options.large_factor, say)
        large_simulated(say)
        return
    say(
        f"{len(requests)} requests, {options.factor:g} times as fast, {len(WORKERS)} workers of {MAX_BLOCKS} blocks;"
        f" {os.cpu_count()} processors ({platform.machine()}), load average {os.getloadavg()[0]:.1f} at the start."
    )
    say("")
    say(f"| {' | '.join(COLUMNS)} |")
    say("|---" * len(COLUMNS) + "|")
    one = replay(requests, 1, options.factor, shared=False, specials={})
    say(row("1", one, one))
    for count in map(int, options.counts.split(",")):
        say(row(f"{count}, shared", replay(requests, count, options.factor, shared=True, specials={}), one))
        if count == 2:
            skewed = replay(requests, 2, options.factor, shared=True, specials={1: {"clock": (3600.0, 1.01)}})
            say(row("2, shared, one clock an hour ahead and 1 % fast", skewed, one))
        say(row(f"{count}, alone", replay(requests, count, options.factor, shared=False, specials={}), one))
    say("")
    say(f"| fault of {FAULT_S:g} s | until all agree | longest selection | |")
    say("|---|---|---|---|")
    for name, fault in FAULTS.items():
        took_s, longest, note = fault()
        say(f"| {name} | {took_s:.2f} s | {longest:.1f} ms | {note} |")
    for line in ("", *LARGE_HEAD.read_text().splitlines(), ""):
        say(line)
    large_fleet(options.conversations, options.rate, options.large_factor, say)
    large_simulated(say)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
