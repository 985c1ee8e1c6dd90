"""The tasks of `python -m benches.structures`, with the other systems that are installed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benches.compare import following
from benches.compare.contenders import available, dynamo, litellm_router, missing
from benches.structures.measures import answers, hashing, matching, memory, selecting, threads
from benches.structures.prompts import BLOCK, WORKERS, Contender
from benches.structures.running import TASKS, can_write_events, installed, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benches.structures import Report, Row
    from benches.structures.prompts import Prompt

_PACKAGES = ("cachelb", "ai-dynamo-runtime", "ray", "litellm", "numpy")


def measure(tasks: Sequence[str], *, calls: int, progress: Callable[[str], None]) -> Report:
    """Measure cachelb beside the other systems that are installed; all tasks if none is named."""
    known: dict[str, Callable[[int], Iterable[Row]]] = {
        "hashing": _hashing,
        "matching": lambda calls: matching.measure(calls, available()),
        "selecting": _selecting,
        "events": following.measure,
        "threads": lambda calls: threads.measure(calls, available()),
        "memory": lambda calls: memory.measure(calls, available()),
        "answers": _answers,
    }
    return run(known, tasks or TASKS, calls=calls, progress=progress, packages=_PACKAGES, missing=missing())


def _hashing(calls: int) -> Iterable[Row]:
    if not installed("dynamo._core"):
        return hashing.measure(calls)
    from dynamo._core import compute_block_hash_for_seq

    def hashed(prompt: Prompt) -> object:
        return compute_block_hash_for_seq(prompt.tokens, BLOCK)

    return hashing.measure(calls, Contender("Dynamo", hashed, "hashes of blocks alone, not of what is before them"))


def _selecting(calls: int) -> Iterable[Row]:
    others: list[Callable[[Sequence[Prompt], contextlib.ExitStack], Contender]] = []
    if installed("litellm"):
        others.append(litellm_router.contender)
    if installed("dynamo._core") and can_write_events():
        others.append(_selection_service)
    return selecting.measure(calls, *others)


def _selection_service(given: Sequence[Prompt], stack: contextlib.ExitStack) -> Contender:
    from benches.compare.contenders.selection_service import Service

    service = Service(WORKERS, given)
    stack.callback(service.close)
    note = "SelectionService: select_and_reserve, prefill_complete, free_reservation; its event loop's turn included"
    return Contender("Dynamo", service.select, note)


def _answers(calls: int) -> Iterable[Row]:
    return answers.measure(calls, {"Dynamo": _dynamo} if installed("dynamo._core") else {})


def _dynamo(case: answers.Case) -> int:
    """Apply a case to Dynamo's RadixTree. Events that raise are skipped, as a reader of a stream must."""
    from dynamo._core import RadixTree, compute_block_hash_for_seq

    tree = RadixTree()
    for number, (kind, *step) in enumerate(case.steps):
        if kind == "store":
            parent, blocks = step
            contents = compute_block_hash_for_seq(answers.tokens_of(blocks), answers.TOKENS)
            named = [(ord(block), content) for block, content in zip(blocks, contents, strict=True)]
            event = dynamo.stored(number, None if parent is None else ord(parent), named)
        else:
            event = dynamo.removed(number, [ord(block) for block in step[0]])
        with contextlib.suppress(Exception):
            tree.apply_event(0, event)
    asked = compute_block_hash_for_seq(answers.tokens_of(case.asked), answers.TOKENS)
    return int(tree.find_matches(asked).scores.get((0, 0), 0))
