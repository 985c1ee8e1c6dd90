"""KV events that a fleet of engines publishes, and a model of the holders after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benches.structures.prompts import BLOCK

STEP = 64
"""Blocks stored by a message, and as many removed once the worker is full."""

CHAIN = 8 * STEP
"""Blocks of a prompt."""

WORKERS = 8
_NAMES = 1 << 62
_VOCABULARY = 128_000


@dataclass(frozen=True)
class Message:
    """A message of one engine after one step."""

    worker: int
    stored: range
    parent: int | None
    tokens: np.ndarray
    removed: Sequence[int]

    @property
    def blocks(self) -> int:
        """Blocks stored and removed."""
        return len(self.stored) + len(self.removed)


class Stream:
    """Messages of engines that answer long prompts, two engines each, and evict the oldest prompt from its end.

    Example:
        >>> stream = Stream(16)
        >>> [message.worker for message in stream.messages] == [*range(8), *range(8)]
        True
    """

    def __init__(self, messages: int, *, held: int = 32, seed: int = 5) -> None:
        """Keep the settings; messages are drawn when they are read."""
        self._messages = messages
        self._held = held
        self._seed = seed
        self._prompts: dict[int, np.ndarray] = {}

    def prompt(self, chain: int) -> np.ndarray:
        """Return a prompt."""
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
        """Return the prompts that messages are about."""
        return {chain_named(message.stored.start) for message in self.messages}

    def sample(self, most: int = 64) -> list[int]:
        """Return some of the prompts, evenly spread."""
        chains = sorted(self.chains())
        return chains[:: -(-len(chains) // most)]

    def truth(self, messages: int | None = None) -> Held:
        """Apply messages to a model."""
        held = Held()
        for message in self.messages[:messages]:
            held.apply(message)
        return held


class Held:
    """A model: the names of all blocks of every worker."""

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: set[tuple[int, int]] = set()

    def apply(self, message: Message) -> None:
        """Apply a message."""
        self._blocks.difference_update((message.worker, block) for block in message.removed)
        self._blocks.update((message.worker, block) for block in message.stored)

    def overlaps(self, chain: int) -> dict[int, int]:
        """Count the leading blocks of a prompt, one by one."""
        found = {}
        for worker in range(WORKERS):
            depth = 0
            while depth < CHAIN and (worker, name(chain) + depth) in self._blocks:
                depth += 1
            if depth:
                found[worker] = depth
        return found


def chain_of(turn: int, worker: int) -> int:
    """Return the prompt that a worker answers: a new one, then the previous one of its neighbour."""
    return turn // 2 * WORKERS + (worker + turn % 2) % WORKERS


def name(chain: int) -> int:
    """Return the engine's name of the first block of a prompt; the others follow. Names have 64 bits, as hashes do."""
    return _NAMES + chain * CHAIN


def chain_named(block: int) -> int:
    """Return the prompt of a named block."""
    return (block - _NAMES) // CHAIN
