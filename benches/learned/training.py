"""The cost of rounds of training as samples pile up, by the samples that are kept."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from cachelb import Router
from cachelb.policies import Learned

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 16_000
EVERY = 2_000
_BLOCKS = 40


def rounds(options: dict[str, Any], seed: int) -> Iterator[tuple[int, int, float]]:
    """Feed a router samples whose times follow from queues and hits, and watch it train.

    Args:
        options: Options of the policy.
        seed: Seed of all draws.

    Yields:
        Samples so far, samples that the latest round was trained on, and the seconds it took.
    """
    draws = random.Random(seed)
    now = 0.0
    router: Router[str] = Router(
        [f"gpu{at}" for at in range(8)], policy=Learned(training="inline", **options), clock=lambda: now, seed=seed
    )
    open_until: list[tuple[float, Any]] = []
    for sample in range(1, SAMPLES + 1):
        group, length = draws.randrange(50), draws.randrange(5, _BLOCKS)
        decision = router.select_worker(tokens=range(group * 10_000, group * 10_000 + 16 * length))
        begun = now
        work_s = 0.002 * (length - decision.matched_tokens / 16) * (1 + 0.3 * draws.random())
        now = begun + work_s
        decision.on_first_token()
        open_until.append((begun + draws.expovariate(1.0), decision))
        now = begun + 0.05
        for until, one in open_until:
            if until <= now:
                one.on_complete()
        open_until = [entry for entry in open_until if entry[0] > now]
        if sample % EVERY == 0:
            (stats,) = router.policy.learned_stats()
            yield sample, stats.pooled, stats.round_s
    assert math.isfinite(now)
