"""Event messages of a fleet of engines, and the truth about the holders after them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cachelb.bench.prompts import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STEP = 64
"""Blocks stored by a message, and as many removed once the worker is full."""

CHAIN = 8 * STEP
"""Blocks of a prompt."""

WORKERS = 8
_VOCABULARY = 128_000


@dataclass(frozen=True)
class Message:
    """The message of one engine after one step."""

    worker: int
    stored: range  # engine names of consecutive blocks
    parent: int | None  # name of the block before, None at the start of a prompt
    tokens: np.ndarray
    removed: Sequence[int]  # names of blocks evicted before any was stored

    @property
    def blocks(self) -> int:
        """Blocks stored and removed."""
        return len(self.stored) + len(self.removed)


class Stream:
    """Messages of engines with room for `held` long prompts.

    Each prompt reaches two engines; the oldest is evicted from its end.

    Example:
        >>> stream = Stream(16)
        >>> [message.worker for message in stream.messages] == [*range(8), *range(8)]
        True
    """

    def __init__(self, messages: int, *, held: int = 32, seed: int = 5) -> None:
        """Draw it."""
        self._messages = messages
        self._held = held
        self._seed = seed
        self._prompts: dict[int, np.ndarray] = {}

    def prompt(self, chain: int) -> np.ndarray:
        """Return the tokens of a prompt by its number."""
        if chain not in self._prompts:
            draw = np.random.default_rng((self._seed, chain))
            self._prompts[chain] = draw.integers(_VOCABULARY, size=CHAIN * BLOCK, dtype=np.uint32)
        return self._prompts[chain]

    @cached_property
    def messages(self) -> list[Message]:
        """All messages, in the order of publication."""
        return list(self._make())

    @cached_property
    def last(self) -> dict[int, Message]:
        """The last message of every worker."""
        return {message.worker: message for message in self.messages}

    def _make(self) -> Iterator[Message]:
        steps = CHAIN // STEP
        for number in range(self._messages):
            step, worker = divmod(number, WORKERS)
            turn, part = divmod(step, steps)
            first = name(chain_of(turn, worker)) + part * STEP
            tokens = self.prompt(chain_of(turn, worker))[part * STEP * BLOCK :][: STEP * BLOCK]
            gone: Sequence[int] = ()
            if turn >= self._held:
                oldest = name(chain_of(turn - self._held, worker))
                # The end of a prompt goes first, as engines free it.
                gone = range(oldest + (steps - part) * STEP - 1, oldest + (steps - part - 1) * STEP - 1, -1)
            yield Message(worker, range(first, first + STEP), first - 1 if part else None, tokens, gone)

    def chains(self) -> set[int]:
        """Return the numbers of the prompts with published blocks."""
        return {(message.stored.start - 1) // CHAIN for message in self.messages}

    def truth(self, messages: int | None = None) -> Held:
        """Return which worker holds which blocks after some messages, None for all."""
        held = Held()
        for message in self.messages[:messages]:
            held.apply(message)
        return held


class Held:
    """The names of all blocks that every worker holds, one by one."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._blocks: set[tuple[int, int]] = set()

    def apply(self, message: Message) -> None:
        """Apply a message."""
        self._blocks.difference_update((message.worker, block) for block in message.removed)
        self._blocks.update((message.worker, block) for block in message.stored)

    def overlaps(self, chain: int) -> dict[int, int]:
        """Count the leading blocks of a prompt on each worker that holds one, block by block."""
        found = {}
        for worker in range(WORKERS):
            depth = 0
            while depth < CHAIN and (worker, name(chain) + depth) in self._blocks:
                depth += 1
            if depth:
                found[worker] = depth
        return found


def chain_of(turn: int, worker: int) -> int:
    """Return the prompt of a worker's turn: a new one, then the previous one of its neighbour."""
    return turn // 2 * WORKERS + (worker + turn % 2) % WORKERS


def name(chain: int) -> int:
    """Return the engine's name of a prompt's first block; the others follow, and all names are distinct."""
    return chain * CHAIN + 1
