"""The typical request, the tail and sessions: how far the default is from the best of each cell, in every figure.

    python -m benches.typical                               # all of it: a quarter of an hour on two free cores
    python -m benches.typical --store mine.jsonl --from bench-results/typical.jsonl   # the default alone, once more
    python -m benches.typical --only report,agents --curve --out docs/maintainers/typical.md

Cells are the halves of traces that no policy was made on, agents whose turns follow the answer before, low loads with
few system prompts, wrong numbers of blocks, gateways that share nothing, and every fault and delay. A cell has three
seeds: its figure is the mean over them. Ratios are to the best policy of the cell, figure by figure, as geometric means
with the worst cell in brackets.

Runs are kept: references run once, `--from` copies them from another store, and with `--again` those of the default are
made again after a change of its rule.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.unlike import unlike

from cachelb_lab.sim.contender import KV_EVENTS
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.figures.metrics import measure
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.league import COMPARED, REALISM, League, Row, Standings, Store, play
from cachelb_lab.sim.league.cells import digest
from cachelb_lab.sim.league.documents import ratio_text
from cachelb_lab.sim.league.figures import figures_of
from cachelb_lab.sim.league.standings import Ratio
from cachelb_lab.sim.simulation import _router, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cachelb.router import Router
    from cachelb_lab.sim.league.cells import Cell
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload

DATA = Path(os.environ.get("CACHELB_DATA", Path(__file__).parents[2] / "shared")) / "traces"
CONVERSATION = f"{DATA}/mooncake/conversation_trace.jsonl.xz(jitter=3,limit=6000)"
TAUBENCH = f"{DATA}/agents/taubench_sessions_block16.jsonl.xz(copies=12)"
RECORDED = f"{DATA}/agents/agent_sessions_develop.jsonl.xz(limit=60{{loop}})"
AZURE = (f"{DATA}/azure/AzureLLMInferenceTrace_code.csv.xz(limit=3000)",)
CHATS = ("chat(count=5000)", "tool-agent(count=4000)", "rag(count=4000)", "tenants(count=4000)")
LONG = ("giants(count=4000)", "long-documents(count=3000)")
ANSWERS = ("chat(count=2400,output_tokens=2500)", "prefix-mixed(count=2400,output_tokens=1500)")
FEW = (
    "shared-prefix(groups=2,prompts=500,system_tokens=2000,question_tokens=200,output_tokens=200,count=1000)",
    "shared-prefix(groups=3,prompts=400,system_tokens=6000,question_tokens=300,output_tokens=300,count=1000)",
    "monopoly(count=1000)",
)
LOADS, HIGH, LOW = (0.7, 0.95), 0.9, (0.1, 0.2, 0.4)
FLEETS, LARGE = ("8xl40s", "4xh100-80+4xl40s"), ("8xh100-80", "4xh100-80+4xa100-80")

DEFAULT = ("adaptive+events", "adaptive")
RULE = "prefill-times-batch(crowding=1)"
REFERENCES = (
    *(f"{RULE}{KV_EVENTS}", RULE, "cache-aware", "kv-aware", "sticky-until-saturated", "estimated-ttft+events"),
    "round-robin",
)
POLICIES, COLUMNS = (*DEFAULT, *REFERENCES), (*DEFAULT, RULE)
OBJECTIVES = tuple(
    f"adaptive{choice}+events" for choice in ("(objective=median)", "", "(objective=ttft)", "(objective=e2e)")
)
OF_DISTURBED = REFERENCES[:4]
FIRST_SEED = 31
"""No policy was made with this seed or a later one."""
UNLIKE = """\
Both halves of a trace have one source. The report half is new to the default, but not of another kind, so a rule that
fits one half fits the other: halves of generators are two samples of one distribution. Only traffic from elsewhere
shows how a rule fares on traffic unlike its own; Azure's requests are in no other bench. Distances are those of
Kolmogorov and Smirnov, the largest difference of two distributions (0 for equal ones, 1 for disjoint ones): of prompt
tokens, of output tokens, and of gaps between arrivals by their mean. `blocks seen` is the share of the report half's
blocks that the half to develop on has too."""
HEAD = Path(__file__).with_name("typical.md")
FIGURES = {figure.name: figure for figure in COMPARED}


def leagues(seeds: Sequence[int]) -> dict[str, list[League]]:
    """Return the cells of each set; those of `kv-blocks` and `gateways` are compared with others of the same policy."""
    half = partial(League, seeds=seeds, part="report")
    recorded = [half((RECORDED.format(loop=loop),), LARGE[:1], LOADS) for loop in ("", ",loop=closed")]
    mixed = [replace(one, fleets=LARGE[1:], loads=LOADS[1:]) for one in recorded]
    agents = replace(recorded[0], loads=LOADS[1:])
    faults = [name for name in REALISM if name not in ("none", "tensor-parallel-loss", "gateways-4")]
    return {
        "report": [
            half((CONVERSATION, TAUBENCH, *CHATS), FLEETS, LOADS),
            half(LONG, FLEETS[:1], LOADS),
            half(ANSWERS, FLEETS, LOADS),
            half((CONVERSATION, CHATS[1]), ("8xa30",), LOADS),
            half(AZURE, FLEETS[:1], LOADS),
            *(recorded[0], mixed[0]),
        ],
        "agents": [
            half(("agent(count=5000,loop=closed)", "chat(count=5000,loop=closed)"), FLEETS, LOADS),
            *(recorded[1], mixed[1]),
        ],
        "low": [half(FEW, ("4xl40s",), LOW)],
        "kv-blocks": [half((LONG[1], CHATS[1]), FLEETS[:1], LOADS), agents],
        "gateways": [
            half((CONVERSATION, *CHATS[:2]), FLEETS[:1], LOADS, realism=("none", "gateways-4")),
            replace(agents, realism=("none", "gateways-4")),
        ],
        "faults": [
            half((*CHATS[:2], "agent(count=4000)"), FLEETS[:1], (0.85,), realism=faults),
        ],
    }


def over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Return one row per policy and cell apart from its seed, of the means over seeds."""
    together: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        facts = {name: value for name, value in row.facts.items() if name != "seed"}
        together[digest(facts), row.policy].append(replace(row, facts=facts))
    return [
        Row(cell, found[0].facts, policy, {name: mean_of(found, name) for name in found[0].figures})
        for (cell, policy), found in together.items()
    ]


def mean_of(rows: Iterable[Row], name: str) -> float | None:
    """Return the mean of a figure; None where a run lacks it."""
    values = [row.figures.get(name) for row in rows]
    return None if None in values else float(np.mean([value for value in values if value is not None]))


def summary(ratios: Sequence[float]) -> str:
    """Write geometric mean and worst of some ratios."""
    return ratio_text(Ratio.of(dict(enumerate(ratios)), defaultdict(dict)))  # type: ignore[arg-type]


GOALS = {
    "ttft_p50_s": "1.10 (1.6)",
    "ttft_mean_s": "1.06 (1.6)",
    "ttft_p99_s": "1.10 (2.0)",
    "tpot_mean_s": "1.05 (1.3)",
    "e2e_mean_s": "1.03 (1.3)",
}
CLOSED_GOALS = dict.fromkeys(("ttft_mean_s", "e2e_mean_s", "session_mean_s"), "1.05")


class Bench:
    """The runs of one store, and the tables of them."""

    def __init__(self, store: Store, seeds: Sequence[int], threads: int) -> None:
        self.store, self.seeds, self.threads = store, seeds, threads
        self.leagues = leagues(seeds)
        self._requests = cache(lambda trace, seed, part: trace.requests(seed, part))

    def standings(self, name: str, policies: Sequence[str]) -> Standings:
        """Run a set and return its standings over seeds."""
        say(f"{name}: {sum(len(league.cells()) for league in self.leagues[name])} cells, {len(policies)} policies")
        found = play(self.leagues[name], policies, store=self.store, threads=self.threads)
        return Standings(over_seeds(found.rows), policies)

    def each(
        self, kind: str, name: str, policies: Sequence[str], do: Callable[[Cell, str], dict[str, Any]]
    ) -> dict[tuple[tuple[Any, ...], str], list[dict[str, Any]]]:
        """Run policies outside the leagues in the cells of a set; return figures by cell, seeds together and policy."""
        say(f"{name}: {kind}")
        tasks = list(product(chain.from_iterable(league.cells() for league in self.leagues[name]), policies))

        def one(task: tuple[Cell, str]) -> dict[str, Any]:
            cell, policy = task
            key = digest([kind, cell.facts(), policy])
            known = self.store.get(kind, key)
            if known is None:
                known = {**cell.facts(), "policy": policy, "figures": do(cell, policy)}
                self.store.add(kind, key, known)
            return known

        with ThreadPoolExecutor(self.threads) as pool:
            rows = list(pool.map(one, tasks))
        found: dict[tuple[tuple[Any, ...], str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            found[place_of(row), row["policy"]].append(row["figures"])
        return found

    def simulated(self, cell: Cell, policy: str, *, factor: float = 1.0, **options: Any) -> SimResult:  # noqa: ANN401
        """Run a cell whose router has another number of blocks than its workers."""
        [speed] = [
            row["speed"]
            for row in self.store.rows("capacity")
            if (row["trace"], row["part"], row["fleet"], row["mfu"])
            == (cell.trace.label, cell.part, cell.fleet, cell.realism.mfu)
        ]
        requests: Workload = self._requests(cell.trace, cell.seed, cell.part)
        fleet = cell.workers(requests.block_size)
        router = missized_router(policy, requests, fleet, factor, cell.seed) if factor != 1 else None
        faster = requests.speed_up(cell.load * speed)
        return simulate(faster, fleet, policy, seed=cell.seed, gateway=router, **options)

    def missized(self, factor: float, cell: Cell, policy: str) -> dict[str, Any]:
        """Return the figures of a run with a wrong number of blocks."""
        result = self.simulated(cell, policy, factor=factor)
        bound = PoolProfile(result.workload).hits(1)
        return figures_of(measure(result, bound=bound, infinite=bound))

    def idle(self, cell: Cell, policy: str) -> dict[str, Any]:
        """Return how long a worker was idle while another had several requests."""
        samples = self.simulated(cell, policy, sample_interval_s=0.05).samples
        flight = samples[:, :, :2].sum(axis=2)
        return {"share": float(((flight.min(axis=1) == 0) & (flight.max(axis=1) > 1)).mean())}


def place_of(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the facts that cells differ in, apart from their seed."""
    return tuple(facts[name] for name in ("trace", "fleet", "load"))


def missized_router(policy: str, requests: Workload, fleet: FleetSpec, factor: float, seed: int) -> Router[str]:
    """Return a router that has a multiple of the blocks of workers."""
    wrong = FleetSpec(tuple(replace(one, kv_tokens=max(1, round(one.cache_tokens * factor))) for one in fleet))
    name = policy.removesuffix(KV_EVENTS)
    return _router(name, requests, wrong, clock=lambda: 0.0, seed=seed)


class Page:
    """The tables of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.lines: list[list[str]] = []
        self.worst: list[list[str]] = []

    def add(self, title: str, goal: str, cells: Iterable[str]) -> None:
        """Add a line of the first table."""
        self.lines.append([title, goal, *cells])

    def ratios(self, where: str, found: Standings, cells: Sequence[str], goals: Mapping[str, str]) -> None:
        """Add a line per figure: of the default by both ways to know caches, and of one other rule."""
        for figure in COMPARED:
            ratios = [found.ratios(policy, figure, cells) for policy in COLUMNS]
            if not ratios[0]:
                continue
            self.add(f"{where}{figure.title}", goals.get(figure.name, ""), (summary(list(r.values())) for r in ratios))
            if goals:
                facts = {row.cell: row.facts for row in found.rows}
                cell = max(ratios[0], key=lambda one: ratios[0][one])
                place = (str(facts[cell][name]) for name in ("trace", "fleet", "load"))
                self.worst.append([f"{where}{figure.title}", f"{ratios[0][cell]:.2f}", *place])

    def report(self) -> None:
        """Add the report half, and its cells near saturation."""
        found = self.bench.standings("report", POLICIES)
        self.ratios("", found, all_cells(found), GOALS)
        near = [cell for load, cells in found.groups("load").items() if load >= HIGH for cell in cells]
        self.ratios(f"load {HIGH:g} and above: ", found, near, {})

    def agents(self) -> None:
        """Add sessions whose turns follow the answer before."""
        found = self.bench.standings("agents", POLICIES)
        self.ratios("closed loop: ", found, all_cells(found), CLOSED_GOALS)

    def low(self) -> None:
        """Add low loads with few system prompts."""
        found = self.bench.standings("low", POLICIES)
        for other in ("round-robin", "cache-aware"):
            over = found.over(other)
            ratios = (over.ratios(policy, FIGURES["e2e_mean_s"]).values() for policy in COLUMNS)
            self.add(f"low load: E2E beside {other}", "1.00", (summary(list(each)) for each in ratios))
        names = (*COLUMNS, "round-robin")
        idle = self.bench.each("idle", "low", names, self.bench.idle)
        shares = [
            np.mean([one["share"] for (_, of), each in idle.items() if of == name for one in each]) for name in names
        ]
        *own, other_share = (f"{share:.1%}" for share in shares)
        self.add("low load: time with an idle worker beside one that has several requests", f"({other_share})", own)

    def kv_blocks(self) -> None:
        """Add wrong numbers of blocks, beside the right one of the same policy."""
        found = self.bench.standings("kv-blocks", DEFAULT)
        right = {(place_of(row.facts), row.policy): row.figures for row in found.rows}
        for factor in (0.25, 4.0):
            do = partial(self.bench.missized, factor)
            wrong = self.bench.each(f"kv-blocks-{factor:g}", "kv-blocks", DEFAULT, do)
            for name in ("ttft_mean_s", "e2e_mean_s"):
                texts = [
                    summary(
                        [
                            np.mean([one[name] for one in each]) / right[key][name]
                            for key, each in wrong.items()
                            if key[1] == policy
                        ]
                    )
                    for policy in DEFAULT
                ]
                title = f"`kv_blocks` of {factor:g} times the truth, beside the right ones: {FIGURES[name].title}"
                self.add(title, "1.10", [*texts, ""])

    def gateways(self) -> None:
        """Add gateways that share nothing, beside one."""
        found = self.bench.standings("gateways", DEFAULT)
        value = {(place_of(row.facts), row.facts["realism"], row.policy): row.figures for row in found.rows}
        for name in ("ttft_mean_s", "e2e_mean_s"):
            texts = []
            for policy in DEFAULT:
                places = [key[0] for key in value if key[1:] == ("none", policy)]
                pairs = [
                    [value[place, realism, policy][name] for realism in ("gateways-4", "none")] for place in places
                ]
                texts.append(summary([four / one for four, one in pairs]))  # type: ignore[operator]
            self.add(f"4 gateways that share nothing, beside one: {FIGURES[name].title}", "1.5", [*texts, ""])

    def faults(self) -> None:
        """Add faults and delays."""
        found = self.bench.standings("faults", (*DEFAULT, *OF_DISTURBED))
        self.ratios("disturbed: ", found, all_cells(found), {"ttft_mean_s": "1.11"})

    def curve(self) -> list[str]:
        """Return the table of objectives: the figures that each of them reaches."""
        rows = []
        for name in ("report", "agents"):
            found = self.bench.standings(name, (*OBJECTIVES, *REFERENCES))
            for policy in OBJECTIVES:
                ratios = (found.ratios(policy, figure).values() for figure in COMPARED)
                title = policy if "(" in policy else policy.replace("+", "(objective=balanced)+")
                rows.append([name, f"`{title}`", *(summary(list(each)) if each else "" for each in ratios)])
        return table(["cells", "policy", *(figure.title for figure in COMPARED)], rows)


def all_cells(found: Standings) -> list[str]:
    """Return the keys of all cells."""
    return [cell for cells in found.groups("load").values() for cell in cells]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table."""
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


SETS: dict[str, Callable[[Page], None]] = {
    "report": Page.report,
    "agents": Page.agents,
    "low": Page.low,
    "kv-blocks": Page.kv_blocks,
    "gateways": Page.gateways,
    "faults": Page.faults,
}


def written(bench: Bench, chosen: Sequence[str], *, curve: bool) -> str:
    """Return the page."""
    page = Page(bench)
    for name in chosen:
        SETS[name](page)
    titles = ("adaptive, with KV events", "adaptive, by placements", f"{RULE}, by placements")
    lines = [HEAD.read_text(encoding="utf-8"), *table(["ratio", "goal", *titles], page.lines)]
    lines += [
        "## Worst cells",
        "",
        "With KV events, by the ratio.",
        "",
        *table(["figure", "ratio", "trace", "fleet", "load"], page.worst),
    ]
    if curve:
        lines += ["## Objectives", "", *page.curve()]
    sources = [text for league in bench.leagues["report"] for text in league.traces]
    lines += ["## How unlike the halves are", "", UNLIKE, "", *table(*unlike(sources, bench.seeds[0]))]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run missing cells, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETS), help="sets by commas: " + ", ".join(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--store", type=Path, default=Path("bench-results/typical.jsonl"))
    parser.add_argument(
        "--from", dest="source", type=Path, help="store to copy into a new one, less the default's runs"
    )
    parser.add_argument("--again", action="store_true", help="the default's rule has changed: make its runs again")
    parser.add_argument("--curve", action="store_true", help="add what each objective reaches")
    parser.add_argument("--out", type=Path, help="Markdown; standard output by default")
    given = parser.parse_args()
    fresh = given.source is not None and not given.store.exists()
    if fresh:
        given.store.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(given.source, given.store)
    store = Store(given.store)
    if fresh or given.again:
        store.forget({*DEFAULT, *OBJECTIVES})
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    page = written(Bench(store, seeds, given.threads), given.only.split(","), curve=given.curve)
    say("done")
    if given.out is None:
        print(page)
    else:
        given.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
