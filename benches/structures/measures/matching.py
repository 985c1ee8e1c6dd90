"""Looking up the holders of a prompt, and adding one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benches.structures.indexes import OWN, Index
from benches.structures.prompts import WORKERS, Prompt, Truth, prompts
from benches.structures.rows import Row
from benches.structures.timing import timed

LENGTHS = (512, 2_048, 8_192)
_HELD_TOKENS = 2_000_000


def measure(calls: int, makers: Sequence[type[Index]] = OWN) -> Iterator[Row]:
    """Fill every index with the same prompts, then look up and record in turns."""
    for length in LENGTHS:
        held = prompts(max(64, _HELD_TOKENS // length), length, seed=1)
        asked = [_asked(prompt, i) for i, prompt in enumerate(held[:calls])]
        new = prompts(calls, length, seed=2)
        truth = Truth()
        indexes = {make.name: make() for make in makers}
        for i, prompt in enumerate(held):
            truth.record(prompt, i % WORKERS)
            for index in indexes.values():
                index.record(prompt, i % WORKERS)
        for prompt in (*asked, *new):
            _ = prompt.array, prompt.text
        expected = [truth.best(prompt) for prompt in asked]
        for row in timed(f"match/{length}", {name: _match(index, asked) for name, index in indexes.items()}, calls):
            index = indexes[row.contender]
            wrong = sum(not _is_right(index, prompt, best) for prompt, best in zip(asked, expected, strict=True))
            # No p10: the fastest quarter are prompts that no worker holds.
            yield replace(row, p10=None, wrong=wrong, answers=len(asked))
        yield from timed(f"record/{length}", {name: _record(index, new) for name, index in indexes.items()}, calls)


def _asked(prompt: Prompt, i: int) -> Prompt:
    """Return, by turns, a prompt that diverges halfway, one without a holder, and two that are held."""
    match i % 4:
        case 0:
            return Prompt([*prompt.tokens[: len(prompt.tokens) // 2], *([i] * (len(prompt.tokens) // 2))])
        case 1:
            return Prompt([i + 1, *prompt.tokens[1:]])
        case _:
            return prompt


def _match(index: Index, asked: list[Prompt]) -> Callable[[int], Any]:
    return lambda i: index.match(asked[i % len(asked)])


def _record(index: Index, new: list[Prompt]) -> Callable[[int], Any]:
    return lambda i: index.record(new[i], i % WORKERS)


def _is_right(index: Index, prompt: Prompt, expected: tuple[int, frozenset[int]]) -> bool:
    """Compare the depth, and that every named worker is a holder: some indexes name only one."""
    blocks, holders = index.best(index.match(prompt))
    depth, truly = expected
    return blocks == depth and (not depth or bool(holders)) and holders <= truly
