"""The index of Ray Serve's prefix-aware router: a tree of text in Python, here without its actor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benches.structures.prompts import BLOCK, CHARS, WORKERS

if TYPE_CHECKING:
    from benches.structures.prompts import Prompt


class Ray:
    """`PrefixTree`, called in this process; Serve calls it in another one, which costs a round trip more."""

    name = "Ray PrefixTree"
    package = "ray[serve,llm]"
    module = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree"

    def __init__(self) -> None:
        """Start empty."""
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

        self._tree = PrefixTree()
        self._tree.add_tenants([str(worker) for worker in range(WORKERS)], time.time())

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        self._tree.insert(prompt.text, str(worker), time.time())

    def match(self, prompt: Prompt) -> tuple[str, list[str] | None]:
        """Return the longest prefix that has a holder."""
        found: tuple[str, list[str] | None] = self._tree.prefix_match(prompt.text)
        return found

    def best(self, answer: tuple[str, list[str] | None]) -> tuple[int, frozenset[int]]:
        """Read an answer."""
        text, holders = answer
        blocks = len(text) // (CHARS * BLOCK)
        return blocks, frozenset(int(worker) for worker in holders or ()) if blocks else frozenset()
