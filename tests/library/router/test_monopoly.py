"""One long system prompt that all requests share: it must not pull them to the worker that holds it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from tests.models.engine_caches import EngineCaches

from cachelb import Decision, Router
from cachelb.policies import POLICIES

Workload = Callable[[], Iterator[tuple[str, npt.NDArray[np.uint32]]]]

WORKERS = [f"w{n}" for n in range(8)]
REQUESTS = 2048
IN_FLIGHT = 64
BLOCK = 16
DEFAULT = "adaptive"


def tokens(rng: np.random.Generator, low: int, high: int) -> npt.NDArray[np.uint32]:
    return rng.integers(0, 32_000, int(rng.integers(low, high)), dtype=np.uint32)


def single_questions() -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
    """Every session asks one question, so that nothing but the system prompt is ever seen again."""
    rng = np.random.default_rng(7)
    system = tokens(rng, 4000, 4001)
    for number in range(REQUESTS):
        yield f"s{number}", np.concatenate([system, tokens(rng, 50, 400)])


def conversations() -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
    """Every session goes on asking, so that it matters, too, which worker has the rest."""
    rng = np.random.default_rng(7)
    system = tokens(rng, 4000, 4001)
    said: dict[str, npt.NDArray[np.uint32]] = {}
    for _ in range(REQUESTS):
        session = f"s{rng.integers(200)}"
        said[session] = np.concatenate([said.get(session, system), tokens(rng, 200, 600)])
        yield session, said[session]


class Served(NamedTuple):
    """How a policy did.

    Attributes:
        share: Requests of the busiest worker, in parts of what each would have if all had the same.
        hit_rate: Prompt tokens found in the engines' caches, whatever the router predicted.
    """

    share: float
    hit_rate: float


def serve(workload: Workload, policy: str) -> Served:
    """Route a workload with the policy's defaults; every request is in flight until so many others came."""
    router = Router(WORKERS, policy=policy, seed=1, hash_seed=1)
    engines = EngineCaches(WORKERS, kv_tokens=400_000, block_size=BLOCK)
    running: deque[tuple[Decision[str], int]] = deque()
    picks: Counter[str] = Counter()
    found = asked = 0
    for session, prompt in workload():
        if len(running) == IN_FLIGHT:
            decision, cached = running.popleft()
            decision.on_complete(cached_tokens=cached)
        decision = router.select_worker(tokens=prompt, session=session)
        cached = engines.serve(decision.key, prompt) * BLOCK
        running.append((decision, cached))
        picks[decision.key] += 1
        found, asked = found + cached, asked + len(prompt)
    return Served(max(picks.values()) * len(WORKERS) / REQUESTS, found / asked)


@pytest.mark.parametrize("workload", [single_questions, conversations])
def test_default_policy_shares_a_common_prompt_out_and_keeps_the_hits(workload: Workload) -> None:
    served = {policy: serve(workload, policy) for policy in POLICIES}
    default = served[DEFAULT]
    best = max(served.values(), key=lambda one: one.hit_rate)
    assert default.share <= 2, served
    assert default.hit_rate >= 0.9 * best.hit_rate, served
    # The workload discriminates: there are policies that give everything to one worker.
    assert max(one.share for one in served.values()) == len(WORKERS)
    if workload is conversations:  # and some that ignore prefixes
        assert served["round-robin"].hit_rate < 0.9 * default.hit_rate


def test_thousand_equal_prompts_at_once_are_neither_piled_up_nor_scattered() -> None:
    router = Router(WORKERS, policy="cache-aware", seed=1, hash_seed=1)
    prompt = tokens(np.random.default_rng(7), 4000, 4001)
    decisions = [router.select_worker(tokens=prompt) for _ in range(1000)]
    # Every worker that joins has to compute the prompt once more, so it joins only when the others are busy.
    spread = {number: len({decision.key for decision in decisions[:number]}) for number in (4, 16, 64, 1000)}
    assert spread[4] == 1
    assert 2 <= spread[16] <= 4
    assert 3 <= spread[64] <= 6
    assert spread[1000] < len(WORKERS)
    assert sum(decision.reason in {"cold", "spill"} for decision in decisions) == spread[1000]
    assert max(router.loads().values()) <= 2 * 1000 / len(WORKERS)
    for decision in decisions:
        decision.on_complete()
    assert router.stats().open_requests == 0
