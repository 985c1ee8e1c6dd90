"""Token ids to block hashes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cachelb import hash_blocks
from cachelb.bench.prompts import BLOCK, prompts
from cachelb.bench.rivals import is_here
from cachelb.bench.rows import Row
from cachelb.bench.timing import in_turns, p10, p50_p99

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cachelb.bench.prompts import Prompt

LENGTHS = (512, 2_048, 32_768)


def measure(calls: int) -> Iterator[Row]:
    """Hash prompts of several lengths."""
    for length in LENGTHS:
        given = prompts(8, length)
        for prompt in given:
            _ = prompt.array
        contenders: dict[str, Callable[[Prompt], object]] = {
            "cachelb": lambda prompt: hash_blocks(prompt.tokens, BLOCK),
            "cachelb, numpy": lambda prompt: hash_blocks(prompt.array, BLOCK),
        }
        if is_here("dynamo._core"):
            from dynamo._core import compute_block_hash_for_seq  # pyright: ignore[reportMissingImports]

            contenders["Dynamo"] = lambda prompt: compute_block_hash_for_seq(prompt.tokens, BLOCK)
        times = in_turns({name: partial(_nth, hashed, given) for name, hashed in contenders.items()}, calls)
        for name, each in times.items():
            note = "hashes of blocks alone, not of what is before them" if name == "Dynamo" else ""
            yield Row(f"hash/{length}", name, *p50_p99(each), unit="us", note=note, p10=p10(each))


def _nth(hashed: Callable[[Prompt], object], given: list[Prompt], i: int) -> object:
    return hashed(given[i % len(given)])
