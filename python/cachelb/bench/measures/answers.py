"""Cases in which indexes gave wrong overlaps."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cachelb.bench.rivals import is_here
from cachelb.bench.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TOKENS: Final = 16


class _Case(NamedTuple):
    """The stored and removed blocks, in order, and the query.

    Steps are ("store", parent, blocks) or ("remove", blocks); a block is a letter, which is its engine hash too.
    """

    name: str
    steps: Sequence[tuple[Any, ...]]
    asked: str
    right: int


_CASES: Final = (
    _Case("a chain", [("store", None, "abcde")], "abcde", 5),
    _Case("a hole that was stored again", [("store", None, "abcde"), ("remove", "b"), ("store", "a", "b")], "abcde", 5),
    _Case("a head that was stored again", [("store", None, "abc"), ("remove", "a"), ("store", None, "a")], "abc", 3),
    _Case("a hole", [("store", None, "abcde"), ("remove", "c")], "abcde", 2),
    _Case("an unknown parent", [("store", None, "ab"), ("store", "x", "cd")], "abcd", 2),
    _Case("an unknown removal", [("store", None, "abc"), ("remove", "x")], "abc", 3),
    _Case("the same tail behind another head", [("store", None, "abcd")], "abef", 2),
    _Case("another block in the middle", [("store", None, "abcd")], "axcd", 1),
)


def measure(_calls: int) -> Iterator[Row]:
    """Play every case: a row per contender with the number of wrong answers, and which they were."""
    players: dict[str, Callable[[_Case], int]] = {}
    if is_here("msgpack"):
        players["cachelb"] = _own
    if is_here("dynamo._core"):
        players["Dynamo"] = _dynamo
    for name, play in players.items():
        wrong = []
        for case in _CASES:
            try:
                got: int | str = play(case)
            except Exception as error:  # noqa: BLE001 - that it raises is its answer
                got = type(error).__name__
            if got != case.right:
                wrong.append(f"{case.name}: {got} instead of {case.right}")
        note = "; ".join(wrong)
        yield Row(
            "answers", name, float(len(wrong)), None, unit="wrong", wrong=len(wrong), answers=len(_CASES), note=note
        )


def _tokens(block: str) -> list[int]:
    return [ord(block) * 100 + at for at in range(_TOKENS)]


def _flat(blocks: str) -> list[int]:
    return [token for block in blocks for token in _tokens(block)]


def _own(case: _Case) -> int:
    """Apply vLLM's events to a router."""
    import msgpack  # type: ignore[import-untyped]

    from cachelb import Router
    from cachelb.testing.events import removed, stored

    router = Router(["w"], policy="kv-aware", seed=1)
    for number, (kind, *step) in enumerate(case.steps):
        if kind == "store":
            parent, blocks = step
            hashes = [ord(block) for block in blocks]
            event = stored(hashes, _flat(blocks), block_size=_TOKENS, parent=None if parent is None else ord(parent))
        else:
            event = removed([ord(block) for block in step[0]])
        router.apply_kv_events("w", bytes(msgpack.packb([0.0, [event]]) or b""), seq=number)
    # One token more than the query: an engine computes at least one.
    seen = router.explain(tokens=[*_flat(case.asked), 0])
    return int(seen.candidates[0].matched_tokens) // _TOKENS


def _dynamo(case: _Case) -> int:
    """Apply the case to a RadixTree. Entries that raise are skipped, as in a stream."""
    from dynamo._core import RadixTree, compute_block_hash_for_seq  # pyright: ignore[reportMissingImports]

    from cachelb.bench.rivals import dynamo

    tree = RadixTree()
    for number, (kind, *step) in enumerate(case.steps):
        if kind == "store":
            parent, blocks = step
            hashes = [(ord(block), compute_block_hash_for_seq(_tokens(block), _TOKENS)[0]) for block in blocks]
            event = dynamo.stored(number, None if parent is None else ord(parent), hashes)
        else:
            event = dynamo.removed(number, [ord(block) for block in step[0]])
        with contextlib.suppress(Exception):
            tree.apply_event(0, event)
    asked = compute_block_hash_for_seq(_flat(case.asked), _TOKENS)
    return int(tree.find_matches(asked).scores.get((0, 0), 0))
