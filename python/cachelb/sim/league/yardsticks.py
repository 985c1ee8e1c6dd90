"""Bounds on the placement of a window's requests: by trying each worker in the simulator, and by searching.

Both use knowledge that no router has: the state of the engines, arrivals to come and lengths of answers. Their
budgets are frozen, so that figures of different versions of a policy are compared with the same bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.sim.league.window import Excerpt, Pinned
    from cachelb.sim.workloads import Workload

    Cost = tuple[int, float]

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
    for row in range(excerpt.window.after, excerpt.window.end):
        end = min(row + 1 + horizon, excerpt.window.end)
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


def clairvoyant(excerpt: Excerpt, policy: str, starts: Sequence[Pinned], budget: int = BUDGET) -> Pinned:
    """Search for the placement of a window whose requests wait least for their first tokens.

    The search begins with the best of `starts`, so that none of them is better, and tries `budget` placements. `policy`
    places nothing, as all requests are pinned.
    """

    def cost(pinned: Pinned) -> Cost:
        return excerpt.cost(excerpt.run(policy, pinned), excerpt.window.after)

    moves = Moves(excerpt.workload, len(excerpt.fleet), excerpt.window.after, excerpt.seed)
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
