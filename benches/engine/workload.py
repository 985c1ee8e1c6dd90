"""Chats of several turns, as token ids: the same seed gives the same chats."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.engine.traffic import FIRST_PLAIN_TOKEN

from cachelb.index import hash_blocks


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the chats.

    Attributes:
        chats: How many there are.
        turns: Turns of each.
        shared: System prompts that several chats begin with.
        sharing: Chats with each of those; the others have a system prompt of their own.
        system_tokens: Length of a system prompt.
        turn_tokens: Least and most tokens that a turn adds.
        answer_tokens: Tokens of an answer, which the next turn repeats.
        in_flight: Requests at a time.
        vocabulary: Token ids are below this.
    """

    chats: int = 10
    turns: int = 4
    shared: int = 3
    sharing: int = 3
    system_tokens: int = 1536
    turn_tokens: tuple[int, int] = (600, 1400)
    answer_tokens: int = 16
    in_flight: int = 4
    vocabulary: int = 4096

    @property
    def requests(self) -> int:
        """Requests of all chats."""
        return self.chats * self.turns

    @property
    def longest(self) -> int:
        """Most tokens of a prompt with its answer."""
        return self.system_tokens + self.turns * (self.turn_tokens[1] + self.answer_tokens)

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt, on average."""
        return (
            self.system_tokens
            + (self.turns + 1) * sum(self.turn_tokens) / 4
            + (self.turns - 1) * self.answer_tokens / 2
        )

    @property
    def last_prompt(self) -> int:
        """Tokens of the last prompt of a chat, on average."""
        return self.system_tokens + self.turns * sum(self.turn_tokens) // 2 + (self.turns - 1) * self.answer_tokens

    @property
    def distinct(self) -> int:
        """Tokens of all chats together, on average, shared beginnings counted once."""
        systems = self.shared + self.chats - self.shared * self.sharing
        return systems * self.system_tokens + self.requests * (sum(self.turn_tokens) // 2 + self.answer_tokens)


def plan(shape: Shape, seed: int) -> list[list[list[int]]]:
    """Make the chats: for each, the tokens that every turn adds to the history; the first begins with a system prompt.

    Raises:
        ValueError: More chats share a system prompt than there are.
    """
    if shape.shared * shape.sharing > shape.chats:
        raise ValueError(f"{shape.shared} system prompts for {shape.sharing} chats each are more than {shape.chats}")
    dice = random.Random(seed)

    def fresh(length: int) -> list[int]:
        return [dice.randrange(FIRST_PLAIN_TOKEN, shape.vocabulary) for _ in range(length)]

    shared = [fresh(shape.system_tokens) for _ in range(shape.shared)]
    systems = [system for system in shared for _ in range(shape.sharing)]
    systems += [fresh(shape.system_tokens) for _ in range(shape.chats - len(systems))]
    chats = []
    for system in systems:
        turns = [fresh(dice.randint(*shape.turn_tokens)) for _ in range(shape.turns)]
        chats.append([system + turns[0], *turns[1:]])
    return chats


class Known:
    """One unbounded cache: the most that routing can find cached, but for requests in a race."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._hashes: set[int] = set()

    def possible(self, prompt: list[int]) -> int:
        """Return how many tokens of a prompt it would hold; the last token is always computed."""
        found = 0
        for each in hash_blocks(prompt[:-1], self._block_size).tolist():
            if each not in self._hashes:
                break
            found += 1
        return found * self._block_size

    def add(self, tokens: list[int]) -> None:
        """Hold a prompt, or a prompt and its answer."""
        self._hashes.update(hash_blocks(tokens, self._block_size).tolist())
