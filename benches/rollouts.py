"""RL rollouts: how long a step takes whose trajectories all begin at once, by policy and number of engines.

    python -m benches.rollouts                          # five minutes
    python -m benches.rollouts --engines 12 --seeds 1

Generated coding agents on H100 with Llama-3-8B: 610 trajectories of 32 turns in the mean, prompts of up to 120,000
tokens, a turn as soon as the one before is answered, as NVIDIA-NeMo/RL's pull request 3663 replays its own. Where many
engines share them all prompts stay cached; where few do, the trajectories evict each other's.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from cachelb_lab.sim import FleetSpec, build, simulate

TRAJECTORIES, TURNS = 610, 32
# Sticky by the trajectory with the fewest open requests first, as verl does; by a hash of it; by a hash of the prompt.
POLICIES = ("session", "rendezvous", "consistent-hash", "cache-aware", "adaptive", "adaptive+events")
# Prompts wait for a worker that computes few others; those that are cached go first, however long others wait.
ADMISSION: dict[str, Any] = {"max_pending_tokens": 1_024, "max_wait_s": None, "ageing_tokens_per_s": 0}


def main() -> None:
    """Print a row for each number of engines and policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="4,6,12")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    print("| engines | policy | wall, s | half of the turns, s | token hits |\n|---|---|---|---|---|")
    for engines in map(int, given.engines.split(",")):
        fleet = FleetSpec.parse(f"{engines}xh100-80")
        runs = [*((policy, {}) for policy in POLICIES), *((policy, ADMISSION) for policy in POLICIES[-2:])]
        for policy, bounds in runs:
            figures = []
            for seed in range(1, given.seeds + 1):
                requests = build(
                    "agent",
                    seed=seed,
                    count=TRAJECTORIES * TURNS,
                    turns=TURNS,
                    rate=1e4,
                    gap_s=0.01,
                    max_prompt_tokens=120_000,
                )
                run = simulate(requests, fleet, policy, seed=seed, **bounds)
                hits = run.cached_tokens.sum() / requests.prompt_tokens.sum()
                figures.append((np.nanmax(run.finish_s), np.nanmedian(run.finish_s), hits))
            wall, half, hits = np.mean(figures, axis=0)
            held = ", admission" if bounds else ""
            print(f"| {engines} | `{policy}`{held} | {wall:,.0f} | {half:,.0f} | {hits:.0%} |", flush=True)


if __name__ == "__main__":
    main()
