"""cachelb's own indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachelb import BlockTracker, RadixTree
from cachelb.bench.prompts import BLOCK, CHARS

if TYPE_CHECKING:
    from cachelb.bench.prompts import Prompt


class Blocks:
    """`BlockTracker` with lists of token ids."""

    name = "cachelb"
    package = "cachelb"
    module = "cachelb"

    def __init__(self) -> None:
        """Begin with nothing."""
        self._tracker = BlockTracker(block_size=BLOCK, max_blocks_per_worker=1 << 24)

    def record(self, prompt: Prompt, worker: int) -> None:
        """Record that a worker holds a prompt."""
        self._tracker.record_request(self._form(prompt), str(worker))

    def match(self, prompt: Prompt) -> dict[str, int]:
        """Ask for the blocks that every worker holds."""
        return self._tracker.overlaps(self._form(prompt))

    def best(self, answer: dict[str, int]) -> tuple[int, frozenset[int]]:
        """Read an answer."""
        most = max(answer.values(), default=0)
        return most, frozenset(int(key) for key, blocks in answer.items() if blocks == most > 0)

    @staticmethod
    def _form(prompt: Prompt) -> Any:  # noqa: ANN401 - a list or an array
        return prompt.tokens


class Arrays(Blocks):
    """The same with numpy arrays, which are read where they are."""

    name = "cachelb, numpy"

    @staticmethod
    def _form(prompt: Prompt) -> Any:  # noqa: ANN401 - a list or an array
        return prompt.array


class Text:
    """`RadixTree` of text, for gateways that do not tokenize."""

    name = "cachelb, text"
    package = "cachelb"
    module = "cachelb"

    def __init__(self) -> None:
        """Begin with nothing."""
        self._tree = RadixTree()

    def record(self, prompt: Prompt, worker: int) -> None:
        """Record that a worker holds a prompt."""
        self._tree.insert(prompt.text, str(worker))

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - the tree's own answer
        """Ask for the longest prefix that is held."""
        return self._tree.match_prefix(prompt.text)

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - the tree's own answer
        """Read an answer."""
        blocks = answer.matched // (CHARS * BLOCK)
        return blocks, frozenset(int(key) for key in answer.workers) if blocks else frozenset()
