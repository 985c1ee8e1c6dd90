"""The native tracker against the published oracle, through the binding, with real tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from cachelb.index import BlockTracker, Namespace
from cachelb.testing import (
    ManualClock,
    NaiveTracker,
    Operation,
    assert_agrees,
    operations,
    token_sequences,
)

Step = Operation | float | Literal["restore"]

NAMESPACES = (None, "tenant-1", Namespace("adapter-a"))
PROMPTS = token_sequences(alphabet=2, max_tokens=40)
STEPS: st.SearchStrategy[Step] = st.one_of(
    operations(tokens=PROMPTS, media=("gpu", "cpu", "disk"), max_blocks=30),
    operations(tokens=PROMPTS, namespaces=NAMESPACES, ttls_s=(None, 0.5, 2.0), max_blocks=30),
    operations(tokens=PROMPTS, ttls_s=(None, 1.0)),
    st.sampled_from([0.25, 1.0, 3.0, "restore"]),
)


def play(history: Sequence[Step], prompts: Sequence[list[int]], *, block_size: int, cap: int, matcher: str) -> None:
    clock = ManualClock()
    tracker = BlockTracker(block_size=block_size, max_blocks_per_worker=cap, matcher=matcher, clock=clock)
    oracle = NaiveTracker(block_size=block_size, max_blocks_per_worker=cap, clock=clock)
    for step in history:
        if isinstance(step, Operation):
            got, expected = step.apply(tracker, block_size=block_size), step.apply(oracle, block_size=block_size)
            assert got == expected, f"{step}: {got}, by the model {expected}"
        elif step == "restore":
            tracker = BlockTracker.restore(tracker.snapshot(), clock=clock)
        else:
            clock.advance(float(step))
        for number, prompt in enumerate(prompts):
            among = [None, ["w0"], ["w1", "nobody", "w2"]][number % 3]
            assert_agrees(tracker, oracle, prompt, among=among, namespace=NAMESPACES[number % 2])
            assert_agrees(tracker, oracle, prompt)
        assert all(oracle.block_count(worker) <= 3 * cap for worker in oracle.workers())
        tracker.validate()
    before = tracker.snapshot()
    for prompt in prompts:
        tracker.find_best_worker(prompt)
        tracker.overlaps(prompt, among=["w0"])
        tracker.overlaps_of_hashes(oracle.hashes(prompt))
    assert tracker.snapshot() == before, "a question changed the tracker"


@settings(max_examples=6 * settings().max_examples)
@given(
    st.lists(STEPS, min_size=10, max_size=40),
    st.lists(PROMPTS, min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([1, 4, 12, 40, 1000]),
    st.sampled_from(["kary", "binary", "linear"]),
)
def test_tracker_equals_the_oracle_after_every_operation(
    history: list[Step], prompts: list[list[int]], block_size: int, cap: int, matcher: str
) -> None:
    play(history, prompts, block_size=block_size, cap=cap, matcher=matcher)
