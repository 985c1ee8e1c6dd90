"""The naive truth about block trackers, and random operations, for a gateway's own tests.

`NaiveTracker` answers like `cachelb.index.BlockTracker` by brute force. Drive both with the same `operations` and call
`assert_agrees` after each. The strategies need the extra ``cachelb[testing]``; the oracle does not.

Example:
    >>> from hypothesis import given, settings, strategies as st
    >>> from cachelb.index import BlockTracker
    >>> from cachelb.testing import NaiveTracker, assert_agrees, operations, token_sequences
    >>> @settings(max_examples=5, deadline=None, derandomize=True)
    ... @given(st.lists(operations(), max_size=20), token_sequences())
    ... def test_tracker_is_exact(history, prompt):
    ...     tracker = BlockTracker(block_size=1, max_blocks_per_worker=30)
    ...     oracle = NaiveTracker(block_size=1, max_blocks_per_worker=30)
    ...     for operation in history:
    ...         assert operation.apply(tracker) == operation.apply(oracle)
    ...         assert_agrees(tracker, oracle, prompt)
    >>> test_tracker_is_exact()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.testing.contract import assert_policy_contract
from cachelb.testing.oracle import Best, Found, ManualClock, NaiveTracker
from cachelb.testing.strategies import (
    Operation,
    Tracker,
    assert_agrees,
    operations,
    token_sequences,
    worker_names,
)

__all__ = [
    "Best",
    "Found",
    "ManualClock",
    "NaiveTracker",
    "Operation",
    "Tracker",
    "assert_agrees",
    "assert_policy_contract",
    "operations",
    "token_sequences",
    "worker_names",
]

if not TYPE_CHECKING:
    from functools import partial

    from cachelb.common.moved import moved_name

    __getattr__ = partial(moved_name, __name__)
