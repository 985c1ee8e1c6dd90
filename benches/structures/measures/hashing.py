"""Token ids to block hashes."""

from __future__ import annotations

from collections.abc import Iterator

from benches.structures.prompts import BLOCK, Contender, prompts
from benches.structures.rows import Row
from benches.structures.timing import timed

from cachelb.index import hash_blocks

LENGTHS = (512, 2_048, 32_768)
_OWN = (
    Contender("cachelb", lambda prompt: hash_blocks(prompt.tokens, BLOCK)),
    Contender("cachelb, numpy", lambda prompt: hash_blocks(prompt.array, BLOCK)),
)


def measure(calls: int, *others: Contender) -> Iterator[Row]:
    """Hash prompts of several lengths."""
    contenders = (*_OWN, *others)
    for length in LENGTHS:
        given = prompts(8, length)
        for prompt in given:
            _ = prompt.array
        notes = {each.name: each.note for each in contenders}
        yield from timed(f"hash/{length}", {each.name: each.over(given) for each in contenders}, calls, notes)
