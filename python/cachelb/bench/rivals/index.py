"""The interface of all contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cachelb.bench.prompts import Prompt


class Index(Protocol):
    """An index of which worker holds which prefix."""

    name: str  # in tables
    package: str  # to install
    module: str  # to import then

    def record(self, prompt: Prompt, worker: int) -> None:
        """Record that a worker holds a prompt."""
        ...

    def match(self, prompt: Prompt) -> Any:  # noqa: ANN401 - whatever it answers; only `best` understands it
        """Look up its overlaps; this is timed."""
        ...

    def best(self, answer: Any) -> tuple[int, frozenset[int]]:  # noqa: ANN401 - what `match` returned
        """Read an answer: leading blocks of the best, and their holders."""
        ...
