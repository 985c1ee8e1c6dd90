"""The published oracle against an independent one that recomputes everything from the log."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.replay import Replay

from cachelb.testing import ManualClock, NaiveTracker, Operation, operations, token_sequences


def replayed(replay: Replay, operation: Operation) -> int | None:
    """Make the same call on the other model; ``None`` where it has no number to compare."""
    prompt, worker, options = operation.tokens, operation.worker, dict(operation.options)
    if operation.name == "record_request":
        return replay.insert(worker, prompt, start=0, medium="gpu", ttl_s=options["ttl_s"])
    if operation.name == "store":
        start = min(options["start"], len(prompt))
        return replay.insert(worker, prompt, start=start, medium=options["medium"], ttl_s=None)
    if operation.name == "remove":
        paths = [prompt[: depth + 1] for depth in range(len(prompt))][options["start"] : options["stop"]]
        return replay.remove(worker, paths, options["medium"])
    if operation.name == "evict_worker":
        for shelf in replay.shelves.get(worker, {}).values():
            replay.evict(shelf, options["max_blocks"])
    if operation.name in ("clear", "remove_worker") and worker in replay.shelves:
        del replay.shelves[worker]
        if operation.name == "clear":
            replay.register(worker)
    return None


def play(history: Sequence[Operation | float], prompts: Sequence[list[int]], cap: int) -> None:
    clock = ManualClock()
    oracle, replay = NaiveTracker(block_size=1, max_blocks_per_worker=cap, clock=clock), Replay(cap)
    for step in history:
        if isinstance(step, Operation):
            got, expected = step.apply(oracle), replayed(replay, step)
            assert expected in (None, got), step
        else:
            clock.advance(step)
            replay.advance(step)
        for prompt in prompts:
            assert oracle.overlaps(prompt) == replay.overlaps(prompt), step
        assert {worker: oracle.block_count(worker) for worker in oracle.workers()} == replay.counts(), step


STEPS = st.one_of(
    operations(ttls_s=(None, 0.5, 2.0), media=("gpu", "gpu", "cpu"), max_blocks=12),
    operations(tokens=token_sequences(alphabet=2, max_tokens=10), ttls_s=(None, 1.0), max_blocks=12),
    st.sampled_from([0.25, 1.0, 3.0]),
)


@settings(max_examples=6 * settings().max_examples)
@given(
    st.lists(STEPS, min_size=10, max_size=40),
    st.lists(token_sequences(max_tokens=12), min_size=1, max_size=4),
    st.sampled_from([1, 3, 6, 15, 1000]),
)
def test_the_oracle_equals_a_replay_of_the_whole_log(
    history: list[Operation | float], prompts: list[list[int]], cap: int
) -> None:
    play(history, prompts, cap)
