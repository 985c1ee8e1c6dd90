"""The index of production-stack's router: a trie of hashed chunks of text, with asyncio locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.structures.prompts import BLOCK, CHARS, WORKERS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benches.structures.prompts import Prompt


class Trie:
    """`HashTrie`; its coroutines never really wait here, so they are stepped by hand, without an event loop's cost."""

    name = "production-stack HashTrie"
    package = "production-stack's vllm_router"
    module = "vllm_router.prefix.hashtrie"

    def __init__(self) -> None:
        """Start empty."""
        from vllm_router.prefix.hashtrie import HashTrie  # type: ignore[import-not-found]

        self._trie = HashTrie()
        self._workers = {str(worker) for worker in range(WORKERS)}

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        _run(self._trie.insert(prompt.text, str(worker)))

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - its own answer
        """Return the longest prefix that has a holder."""
        return _run(self._trie.longest_prefix_match(prompt.text, self._workers))

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - its own answer
        """Read an answer."""
        characters, holders = answer
        blocks = characters // (CHARS * BLOCK)
        return blocks, frozenset(int(worker) for worker in holders) if blocks else frozenset()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what it returns
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value
