"""The index of NVIDIA Dynamo's router: `RadixTree` of ai-dynamo-runtime, which is fed with events as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benches.structures.prompts import BLOCK

if TYPE_CHECKING:
    from benches.structures.prompts import Prompt


def stored(number: int, parent: int | None, blocks: list[tuple[int, int]]) -> bytes:
    """Make the event for stored blocks.

    Args:
        number: Number of the event.
        parent: Engine hash of the block before, None for the root.
        blocks: Engine hash and content hash of each.

    Returns:
        The event.
    """
    data = {"parent_hash": parent, "blocks": [{"block_hash": own, "tokens_hash": tokens} for own, tokens in blocks]}
    return json.dumps({"event_id": number, "data": {"stored": data}, "dp_rank": 0}).encode()


def removed(number: int, hashes: list[int]) -> bytes:
    """Make the event for removed blocks.

    Args:
        number: Number of the event.
        hashes: Engine hashes.

    Returns:
        The event.
    """
    return json.dumps({"event_id": number, "data": {"removed": {"block_hashes": hashes}}, "dp_rank": 0}).encode()


class Dynamo:
    """Hashes with `compute_block_hash_for_seq`, asks with `find_matches`."""

    name = "Dynamo"
    package = "ai-dynamo-runtime"
    module = "dynamo._core"

    def __init__(self) -> None:
        """Start empty."""
        from dynamo._core import RadixTree, compute_block_hash_for_seq

        self._hash = compute_block_hash_for_seq
        self._tree = RadixTree()
        self._events = 0

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        hashes = self._hash(prompt.tokens, BLOCK)
        blocks, chained = [], 0
        for tokens in hashes:
            # The engine's name of a block: equal for equal beginnings, as engines have it.
            chained = hash((chained, tokens)) & 0x7FFF_FFFF_FFFF_FFFF
            blocks.append((chained, tokens))
        self._tree.apply_event(worker, stored(self._events, None, blocks))
        self._events += 1

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - its own answer
        """Return the blocks that every worker holds."""
        return self._tree.find_matches(self._hash(prompt.tokens, BLOCK)).scores

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - its own answer
        """Read an answer: workers are pairs of a number and a rank."""
        most = max(answer.values(), default=0)
        return most, frozenset(worker for (worker, _), blocks in answer.items() if blocks == most > 0)
