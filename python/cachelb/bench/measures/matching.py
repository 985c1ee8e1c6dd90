"""Time to match a prompt, and to record one more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachelb.bench.prompts import WORKERS, Prompt, Truth, prompts
from cachelb.bench.rivals import available
from cachelb.bench.rows import Row
from cachelb.bench.timing import in_turns, p10, p50_p99

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cachelb.bench.rivals.index import Index

LENGTHS = (512, 2_048, 8_192)
_HELD_TOKENS = 2_000_000


def measure(calls: int) -> Iterator[Row]:
    """Fill every index with the same prompts, then look up and record in turns."""
    for length in LENGTHS:
        held = prompts(max(64, _HELD_TOKENS // length), length, seed=1)
        asked = [_asked(prompt, i) for i, prompt in enumerate(held[:calls])]
        new = prompts(calls, length, seed=2)
        truth = Truth()
        indexes = [make() for make in available()]
        for i, prompt in enumerate(held):
            truth.record(prompt, i % WORKERS)
            for index in indexes:
                index.record(prompt, i % WORKERS)
        for prompt in (*asked, *new):
            _ = prompt.array, prompt.text
        expected = [truth.best(prompt) for prompt in asked]
        times = in_turns({index.name: _match(index, asked) for index in indexes}, calls)
        for index in indexes:
            wrong = sum(not _is_right(index, prompt, best) for prompt, best in zip(asked, expected, strict=True))
            # No p10: the fastest quarter are unknown prompts.
            yield Row(
                f"match/{length}", index.name, *p50_p99(times[index.name]), unit="us", wrong=wrong, answers=len(asked)
            )
        times = in_turns({index.name: _record(index, new) for index in indexes}, calls)
        for index in indexes:
            own = times[index.name]
            yield Row(f"record/{length}", index.name, *p50_p99(own), unit="us", p10=p10(own))


def _asked(prompt: Prompt, i: int) -> Prompt:
    """Look up a held prompt, one that diverges halfway, and an unknown one, in turns."""
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
    """Compare the depth, and check that each named worker is a holder: some contenders name only one."""
    blocks, holders = index.best(index.match(prompt))
    depth, truly = expected
    return blocks == depth and (not depth or bool(holders)) and holders <= truly
