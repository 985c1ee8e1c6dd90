"""Distance of policies from the best placement that a search finds, for a window of requests of a trace.

    python -m benches.optimum chat rag --fleet 8xl40s --window 1000:100 --policy adaptive,adaptive+events
    python -m benches.optimum "agents.jsonl.xz(limit=60)" --part report --load 0.95

`adaptive` places the requests before the window for every policy, so that all begin with the same caches and queues.
Printed is the mean TTFT in the window over that of the clairvoyant search, which knows the state of the engines,
arrivals to come and lengths of answers, as no router does; `rollout` knows them for the next arrivals. A window of 100
requests on eight workers takes one to four minutes of a core. Budgets are frozen, so that figures of different versions
of a policy are compared with the same bound.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from cachelb.common.calls import split_list
from cachelb_lab.sim.contender import KV_EVENTS, ORACLE
from cachelb_lab.sim.league import League
from cachelb_lab.sim.league.capacity import capacity
from cachelb_lab.sim.league.cells import FIRST_SEED
from cachelb_lab.sim.league.traces import PARTS
from cachelb_lab.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from cachelb_lab.sim.fleet import FleetSpec
    from cachelb_lab.sim.league import Cell
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload

    Pinned = npt.NDArray[np.int32]
    """The worker of each request, -1 where the policy picks."""
    Cost = tuple[int, float]

WARM_UP = "adaptive"
"""The policy that places the requests before a window, and that the search begins with."""


class Excerpt:
    """Requests up to the end of a window, to be run any number of times; `WARM_UP` places those before the window."""

    def __init__(
        self,
        workload: Workload,
        fleet: FleetSpec,
        after: int,
        count: int,
        *,
        seed: int = 1,
    ) -> None:
        if len(workload) < after + count:
            raise ValueError(f"a window of {count} behind {after} ends behind the {len(workload)} of {workload.name}")
        self.after, self.end, self.fleet, self.seed = after, after + count, fleet, seed
        self.workload = workload.slice(0, self.end)
        self._prepared = prepare(self.workload)
        self.warm_up: Pinned = np.full(self.end, -1, dtype=np.int32)
        self.warm_up[:after] = self.run(WARM_UP).worker[:after]

    def until(self, end: int) -> Excerpt:
        """Return the same without the requests from a row on."""
        kept = object.__new__(Excerpt)
        kept.__dict__.update(self.__dict__)
        kept.workload = self.workload.slice(0, end)
        kept._prepared = prepare(kept.workload)
        kept.warm_up = self.warm_up[:end]
        return kept

    def run(self, policy: str, pinned: Pinned | None = None) -> SimResult:
        """Run a policy, with some requests pinned; by default those before the window, as the warm-up placed them."""
        return simulate(
            self.workload,
            self.fleet,
            policy,
            seed=self.seed,
            pinned=self.warm_up if pinned is None else pinned,
            sample_interval_s=float("inf"),
            prepared=self._prepared,
        )

    def cost(self, run: SimResult, begin: int) -> tuple[int, float]:
        """Return the cost that compares runs, from a row on: requests without a first token, seconds others waited."""
        waits_s = (run.first_token_s - run.arrival_s)[begin:]
        came = np.isfinite(waits_s)
        return int((~came).sum()), float(waits_s[came].sum())


HORIZON = 100
"""Arrivals after a request that `rollout` looks at."""

BUDGET = 2_000
"""Placements of a whole window that `clairvoyant` simulates."""

STARTS = (
    "cache-aware",
    "prefill-times-batch(crowding=1)",
    "prefill-times-batch(crowding=1)+events",
    "sticky-until-saturated",
)
"""Policies whose placements `clairvoyant` may start from, beside those of the policy that it is named after."""

_ONE_MOVE = 0.6
"""Chance that a placement tried differs by one move; by two at `_ONE_MOVE` of the rest, and so on."""

_ALONE = 0.5
"""Chance that a move is of one request alone."""


def rollout(excerpt: Excerpt, policy: str, horizon: int = HORIZON) -> Pinned:
    """Place each request of a window where it and those behind it wait least, if a policy places those.

    Request by request, every worker of the fleet is tried: what was decided so far is run again, the request goes
    there, and the policy places what arrives up to the horizon. The least sum of the times to first tokens, the
    request's own included, decides; of equal ones the policy's own pick.
    """
    pinned = excerpt.warm_up.copy()
    for row in range(excerpt.after, excerpt.end):
        end = min(row + 1 + horizon, excerpt.end)
        near = excerpt.until(end)
        own = near.run(policy, pinned[:end])
        picked = int(own.worker[row])
        best, least = picked, near.cost(own, row)
        for worker in range(len(excerpt.fleet)):
            if worker == picked:
                continue
            pinned[row] = worker
            cost = near.cost(near.run(policy, pinned[:end]), row)
            if cost < least:
                best, least = worker, cost
        pinned[row] = best
    return pinned


def clairvoyant(excerpt: Excerpt, policy: str, starts: Sequence[Pinned], budget: int) -> Pinned:
    """Search for the placement of a window whose requests wait least for their first tokens.

    The search begins with the best of `starts`, so that none of them is better, and tries `budget` placements. `policy`
    places nothing, as all requests are pinned.
    """

    def cost(pinned: Pinned) -> Cost:
        return excerpt.cost(excerpt.run(policy, pinned), excerpt.after)

    moves = Moves(excerpt.workload, len(excerpt.fleet), excerpt.after, excerpt.seed)
    return search(cost, moves, starts, budget)


def search(cost: Callable[[Pinned], Cost], moves: Moves, starts: Sequence[Pinned], budget: int) -> Pinned:
    """Change the best placement known at random, and keep one that is no worse."""
    least, best = min(((cost(start), start) for start in starts), key=lambda one: one[0])
    for _ in range(budget):
        tried = moves.neighbour(best)
        found = cost(tried)
        if found <= least:
            least, best = found, tried
    return best


class Moves:
    """Changes of a placement: a request goes to another worker, alone or with later ones that share its prefix.

    Requests before `begin` stay.
    """

    def __init__(self, workload: Workload, workers: int, begin: int, seed: int) -> None:
        self._rng = np.random.default_rng([seed, begin, workers])
        self._workers, self._begin = workers, begin
        self._prompts = [workload.prompt(row) for row in range(len(workload))]

    def neighbour(self, placed: Pinned) -> Pinned:
        """Return a copy of a placement with one move, or a few of them."""
        moved = placed.copy()
        for _ in range(int(self._rng.geometric(_ONE_MOVE))):
            row = int(self._rng.integers(self._begin, len(moved)))
            old = moved[row]
            new = (old + self._rng.integers(1, self._workers)) % self._workers if self._workers > 1 else old
            rows = [row] if self._rng.random() < _ALONE else self._sharing(row, moved)
            moved[rows] = new
        return moved

    def _sharing(self, row: int, placed: Pinned) -> list[int]:
        """Return a request and those behind it on its worker that have the same block at some depth."""
        prompt = self._prompts[row]
        if not len(prompt):
            return [row]
        depth = int(self._rng.integers(len(prompt)))
        rest = (at for at in range(row + 1, len(placed)) if placed[at] == placed[row])
        shared = [at for at in rest if len(self._prompts[at]) > depth and self._prompts[at][depth] == prompt[depth]]
        return [row, *shared]


def placements(excerpt: Excerpt, policies: Sequence[str]) -> dict[str, Pinned]:
    """Return the placements of policies, of the rollout and of the search, by name."""
    starts = (WARM_UP, WARM_UP + KV_EVENTS, WARM_UP + ORACLE, *STARTS)
    placed = {name: excerpt.run(name).worker for name in dict.fromkeys((*policies, *starts))}
    rolled = rollout(excerpt, WARM_UP)
    found = clairvoyant(excerpt, WARM_UP, [*placed.values(), rolled], BUDGET)
    return {**{name: placed[name] for name in policies}, "rollout": rolled, "clairvoyant": found}


def excerpt_of(cell: Cell, after: int, count: int) -> Excerpt:
    """Return the window of a cell, at its share of the rate that the fleet keeps up with."""
    label, part = cell.trace.label, cell.part
    first = cell.trace.requests(FIRST_SEED, part)
    fleet = cell.workers(first.block_size)
    speed = cell.load * capacity(first, fleet, label)
    return Excerpt(cell.trace.requests(cell.seed, part).speed_up(speed), fleet, after, count, seed=cell.seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per cell and policy."""
    parser = argparse.ArgumentParser(prog="python -m benches.optimum", description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="+", help="generators or files, as `cachelb league` takes them")
    parser.add_argument("--fleet", default="8xl40s", help="fleets, separated by commas")
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--window", default="1000:100", metavar="AFTER:COUNT")
    parser.add_argument("--policy", default="adaptive,adaptive+events", help="policies, separated by commas")
    parser.add_argument("--part", choices=PARTS, default="all")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    given = parser.parse_args(arguments)
    after, count = map(int, given.window.split(":"))
    fleets = split_list(given.fleet)
    league = League(given.traces, fleets, loads=(given.load,), seeds=(given.seed,), part=given.part)
    for cell in league.cells():
        excerpt = excerpt_of(cell, after, count)
        placed = placements(excerpt, split_list(given.policy))
        costs = {name: excerpt.cost(excerpt.run(WARM_UP, each), after) for name, each in placed.items()}
        least = costs["clairvoyant"][1]
        for name, (unserved, waits_s) in costs.items():
            text = f"{cell.trace.label} on {cell.fleet}: {name} {waits_s / least:.3f}, {unserved} without a first token"
            sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
