"""Sequences of events after which some index was seen to answer wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from benches.structures.rows import Row
from benches.structures.running import can_write_events

TOKENS: Final = 16
"""Tokens of a block."""


class Case(NamedTuple):
    """Events, in order, and a question with its right answer in blocks.

    Steps are ("store", parent, blocks) or ("remove", blocks); a block is a letter, which is its engine hash too.
    """

    name: str
    steps: Sequence[tuple[Any, ...]]
    asked: str
    right: int


_CASES: Final = (
    Case("a chain", [("store", None, "abcde")], "abcde", 5),
    Case("a hole that was stored again", [("store", None, "abcde"), ("remove", "b"), ("store", "a", "b")], "abcde", 5),
    Case("a head that was stored again", [("store", None, "abc"), ("remove", "a"), ("store", None, "a")], "abc", 3),
    Case("a hole", [("store", None, "abcde"), ("remove", "c")], "abcde", 2),
    Case("an unknown parent", [("store", None, "ab"), ("store", "x", "cd")], "abcd", 2),
    Case("an unknown removal", [("store", None, "abc"), ("remove", "x")], "abc", 3),
    Case("the same tail behind another head", [("store", None, "abcd")], "abef", 2),
    Case("another block in the middle", [("store", None, "abcd")], "axcd", 1),
)


def measure(_calls: int, others: Mapping[str, Callable[[Case], int]] | None = None) -> Iterator[Row]:
    """Play every case."""
    own = {"cachelb": _own} if can_write_events() else {}
    for name, play in {**own, **(others or {})}.items():
        wrong = []
        for case in _CASES:
            try:
                got: int | str = play(case)
            except Exception as error:  # noqa: BLE001 - an exception is an answer too
                got = type(error).__name__
            if got != case.right:
                wrong.append(f"{case.name}: {got} instead of {case.right}")
        note = "; ".join(wrong)
        yield Row(
            "answers", name, float(len(wrong)), None, unit="wrong", wrong=len(wrong), answers=len(_CASES), note=note
        )


def tokens_of(blocks: str) -> list[int]:
    """Return the tokens of blocks."""
    return [ord(block) * 100 + at for block in blocks for at in range(TOKENS)]


def _own(case: Case) -> int:
    """Apply vLLM's events to a router."""
    from cachelb import Router
    from cachelb_fakes.events import encode_batch, removed, stored

    router = Router(["w"], policy="kv-aware", seed=1)
    for number, (kind, *step) in enumerate(case.steps):
        if kind == "store":
            parent, blocks = step
            hashes = [ord(block) for block in blocks]
            event = stored(hashes, tokens_of(blocks), block_size=TOKENS, parent=None if parent is None else ord(parent))
        else:
            event = removed([ord(block) for block in step[0]])
        router.event_sink.apply_events("w", encode_batch([event], ts=0.0), seq=number)
    # One token more than is asked for: an engine computes at least one.
    seen = router.explain(tokens=[*tokens_of(case.asked), 0])
    return int(seen.candidates[0].matched_tokens) // TOKENS
