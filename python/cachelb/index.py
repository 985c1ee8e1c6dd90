"""The data structures behind the router, each usable alone.

Example:
    >>> from cachelb.index import BlockTracker
    >>> tracker = BlockTracker(block_size=16)
    >>> tracker.record_request(range(64), "gpu0")
    4
    >>> tracker.find_best_worker(range(100)).worker
    'gpu0'
"""

from __future__ import annotations

from cachelb._core import BlockTracker, Match, Namespace, PrefixMatch, RadixTree, hash_blocks, hash_text

__all__ = ["BlockTracker", "Match", "Namespace", "PrefixMatch", "RadixTree", "hash_blocks", "hash_text"]
