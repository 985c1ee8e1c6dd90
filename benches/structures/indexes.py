"""cachelb's indexes behind one interface, which `benches/compare` implements for other systems."""

from __future__ import annotations

from typing import Any, Protocol

from benches.structures.prompts import BLOCK, CHARS, Prompt

from cachelb.index import BlockTracker, RadixTree


class Index(Protocol):
    """An index of which worker holds which prefix; a new one is empty."""

    name: str

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        ...

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - only `best` reads it
        """Look up the holders of a prompt: the call that is timed."""
        ...

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - what `match` returned
        """Read an answer: leading blocks of the best, and its holders."""
        ...


class Blocks:
    """`BlockTracker` with lists of token ids."""

    name = "cachelb"

    def __init__(self) -> None:
        """Start empty."""
        self._tracker = BlockTracker(block_size=BLOCK, max_blocks_per_worker=1 << 24)

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        self._tracker.record_request(self._form(prompt), str(worker))

    def match(self, prompt: Prompt) -> dict[str, int]:
        """Return the blocks that every worker holds."""
        return self._tracker.overlaps(self._form(prompt))

    def best(self, answer: dict[str, int]) -> tuple[int, frozenset[int]]:
        """Read an answer."""
        most = max(answer.values(), default=0)
        return most, frozenset(int(key) for key, blocks in answer.items() if blocks == most > 0)

    @staticmethod
    def _form(prompt: Prompt) -> Any:  # noqa: ANN401 - a list or an array
        return prompt.tokens


class Arrays(Blocks):
    """`BlockTracker` with numpy arrays, which are read without a copy."""

    name = "cachelb, numpy"

    @staticmethod
    def _form(prompt: Prompt) -> Any:  # noqa: ANN401 - a list or an array
        return prompt.array


class Text:
    """`RadixTree` of text, for gateways that do not tokenize."""

    name = "cachelb, text"

    def __init__(self) -> None:
        """Start empty."""
        self._tree = RadixTree()

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        self._tree.insert(prompt.text, str(worker))

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - the tree's own answer
        """Return the longest prefix that has a holder."""
        return self._tree.match_prefix(prompt.text)

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - the tree's own answer
        """Read an answer."""
        blocks = answer.matched // (CHARS * BLOCK)
        return blocks, frozenset(int(key) for key in answer.workers) if blocks else frozenset()


OWN: tuple[type[Index], ...] = (Blocks, Arrays, Text)
